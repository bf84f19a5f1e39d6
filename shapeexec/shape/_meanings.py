"""JAX's errors of symbolic tracing, in our words."""

import re

from shapeexec import _compat
from shapeexec._errors import InconclusiveShapeError, ShapeExecError, made_exact, named
from shapeexec.shape import _ways_out
from shapeexec.shape._attempt import Program, Stuck

_AS_INT = (
    "needs the size as a Python int (a loop over it, `int(s)`, `range(s)`, `np.zeros(s)`)",
    "loop with `jax.lax.scan` or `jax.lax.fori_loop`",
)
_AS_FLOAT = (
    "needs the size as a Python float (`float(s)`, `from math import sqrt`)",
    "write `1.0 * s` for `float(s)`, and call `math.sqrt(s)` by that name, not `sqrt(s)`: then the "
    "size stays symbolic",
)
_AS_INTEGER = (
    "needs a number that is computed from the size as a Python int",
    "compute it in integers: `n // 2` for `int(n / 2)` and `n * 9 // 10` for `int(0.9 * n)`, or by "
    "`math.floor(n / 2)` or `math.ceil(n / 2)`",
)
_UNTOLD = ("cannot be traced at a symbolic size", "use JAX functions of the size")
_BY_NEED = {"int": _AS_INT, "float": _AS_FLOAT}
# What errors mean, by the text they carry: (pattern, what the function does, way out).
_MEANINGS = (
    ("^the (int|index) of `", *_AS_INTEGER),
    (
        "requires a constant|interpreted as an integer|process_primitive|'_DimExpr'.*int"
        "|unhashable: the size|has no attribute|not iterable",
        *_AS_INT,
    ),
    (
        r"for \*: ('(list|tuple|str|bytes)'|.* and '(list|tuple|str|bytes)')",
        "repeats a list or a text as often as a size says",
        "write `jnp.broadcast_to(x, (n, *x.shape))` for `jnp.stack([x] * n)`",
    ),
    ("non-integer powers|negative powers|must be real number|float\\(\\)", *_AS_FLOAT),
    (
        "Cannot divide evenly",
        "divides a size that may not divide evenly",
        'write a spec such as "4*s", so that it divides',
    ),
    (
        "is inconclusive",
        "compares sizes in a way that no guard decides",
        "pass a constraint that decides it",
    ),
    (
        "ncompatible (shapes|types)|must have (compatible|equal|the same) shapes",
        "combines axes whose sizes agree in this call only",
        "use one symbol for axes that always have the same size",
    ),
)


def told(stuck: Stuck, program: Program, symbols: frozenset[str]) -> InconclusiveShapeError:
    """What to tell of a function that cannot be traced.

    Args:
        stuck: What happened.
        program: The function.
        symbols: Those whose sizes would have to be known; empty if that was not found out.
    """
    text = str(stuck.error)
    meaning, way_out = _UNTOLD
    for need in stuck.needs:
        meaning, way_out = _BY_NEED.get(need.what, (meaning, way_out))
    for pattern, means, fix in _MEANINGS:
        if re.search(pattern, text, re.DOTALL):
            meaning, way_out = means, fix
            break
    found = _ways_out.of_call(_compat.failed_call(stuck.error))
    is_of_size = meaning in (_AS_INT[0], _AS_FLOAT[0]) or "<locals>" in text
    if isinstance(stuck.error, ShapeExecError):
        meaning, way_out, text = _UNTOLD[0], stuck.error.fix, stuck.error.what
    elif found is not None and (is_of_size or (found.instead and meaning != _AS_INTEGER[0])):
        meaning = f"needs the size as a Python {found.kind} for `{found.call}`"
        way_out = found.instead
    elif found is not None and meaning in (_AS_INTEGER[0], _UNTOLD[0]) and found.is_of_jax:
        meaning, way_out = f"cannot be traced at a symbolic size in `{found.call}`", None
    where = _compat.error_line(stuck.error)
    if where is None and stuck.needs:
        where = _compat.describe_line(stuck.needs[-1].place)
    names = named(symbols)
    got = _arguments(program)
    return InconclusiveShapeError(
        f"the function {meaning}{f': {names}' if names else ''}.",
        symbols=symbols,
        where=where,
        got=got,
        why=None if "<locals>" in text else _first_line(text) or type(stuck.error).__name__,
        fix=_or_exact(way_out, program, symbols),
    )


def _or_exact(way_out: str | None, program: Program, symbols: frozenset[str]) -> str:
    """A way out, and the one that always is: where there is a call, to give up padding."""
    if program.sizes is None:
        exact = f"give the size of {named(program.symbols)} as an int in the place of the symbol"
    else:
        exact = made_exact(symbols)
    return f"{way_out}; or {exact}" if way_out else exact


def given_up(stuck: Stuck, program: Program, spent: str) -> InconclusiveShapeError:
    """What to tell of a function for which too many facts of its sizes would have to be searched.

    Args:
        stuck: What happened first.
        program: The function.
        spent: What is too much.
    """
    symbols = program.symbols
    multiple = max(symbols)
    return InconclusiveShapeError(
        f"the function can be traced with facts of {named(symbols)} only, and there are too many.",
        symbols=symbols,
        where=_compat.error_line(stuck.error),
        got=_arguments(program),
        why=f"{spent}; JAX: {_first_line(str(stuck.error))}",
        fix=f'write what divides into the spec, such as "8*{multiple}" (pad the data to it), or '
        f"pass constraints=...; or {made_exact(symbols)}",
    )


def _arguments(program: Program) -> str:
    """The ragged arguments of a function, and the sizes of the call."""
    ragged = [leaf for leaf in program.leaves if any(not isinstance(d, int) for d in leaf.dims)]
    got = f"arguments {', '.join(map(str, ragged))}"
    if program.sizes:
        got += f" at {', '.join(f'{s}={size}' for s, size in sorted(program.sizes.items()))}"
    return got


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
