"""Our errors for functions that cannot be traced symbolically, made from JAX's exceptions.

`_ways_out` finds the fixes; `_trace` decides when to give up.
"""

import re

from shapeexec import _compat
from shapeexec._errors import InconclusiveShapeError, ShapeExecError, made_exact, named
from shapeexec.shape import _ways_out
from shapeexec.shape._attempt import Stuck, TraceRequest

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
_UNKNOWN = ("cannot be traced at a symbolic size", "use JAX functions of the size")
_BY_NEED = {"int": _AS_INT, "float": _AS_FLOAT}
# (pattern of an error's text, the cause in our words, the fix).
_MEANINGS = (
    ("^the (int|index) of `", *_AS_INTEGER),
    (
        "requires a constant|interpreted as an integer|process_primitive|'_DimExpr'.*int"
        "|unhashable: the size|has no attribute|not iterable",
        *_AS_INT,
    ),
    (
        r"for \*: ('(list|tuple|str|bytes)'|.* and '(list|tuple|str|bytes)')",
        "repeats a list or a string as often as a size says",
        "write `jnp.broadcast_to(x, (n, *x.shape))` for `jnp.stack([x] * n)`",
    ),
    ("non-integer powers|negative powers|must be real number|float\\(\\)", *_AS_FLOAT),
    (
        "Cannot divide evenly",
        "divides a size that may not divide evenly",
        'write a spec such as "4*s", so that it divides',
    ),
    (
        "that is not appearing in the shapes",
        "makes an array of this size outside of the trace, as `jax.ensure_compile_time_eval` does",
        "make it inside: an array of a size that changes cannot be kept between calls",
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


def untraceable(
    stuck: Stuck, program: TraceRequest, *, symbols: frozenset[str]
) -> InconclusiveShapeError:
    """The error for a function that cannot be traced at symbolic sizes.

    Args:
        stuck: The failed attempt.
        program: The function.
        symbols: The symbols whose sizes would have to be known; empty: unknown.
    """
    text = stuck.error.what if isinstance(stuck.error, ShapeExecError) else str(stuck.error)
    meaning, way_out = _meaning(stuck, text)
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
        fix=_or_exact(way_out, program, symbols=symbols),
    )


def _meaning(stuck: Stuck, text: str) -> tuple[str, str | None]:
    """The cause of a failure in our words, and the fix; None: no other fix than exact sizes."""
    if isinstance(stuck.error, ShapeExecError):
        return _UNKNOWN[0], stuck.error.fix
    meaning, way_out = _UNKNOWN
    for need in stuck.needs:
        meaning, way_out = _BY_NEED.get(need.what, (meaning, way_out))
    for pattern, means, fix in _MEANINGS:
        if re.search(pattern, text, re.DOTALL):
            meaning, way_out = means, fix
            break
    found = _ways_out.of_call(_compat.failed_call(stuck.error))
    if found is None:
        return meaning, way_out
    is_of_size = meaning in (_AS_INT[0], _AS_FLOAT[0]) or "<locals>" in text
    if is_of_size or (found.instead and meaning != _AS_INTEGER[0]):
        return f"needs the size as a Python {found.kind} for `{found.call}`", found.instead
    if meaning in (_AS_INTEGER[0], _UNKNOWN[0]) and found.is_of_jax:
        return f"cannot be traced at a symbolic size in `{found.call}`", None
    return meaning, way_out


def _or_exact(way_out: str | None, program: TraceRequest, *, symbols: frozenset[str]) -> str:
    """A fix, and the one that always works: exact sizes, without padding."""
    if program.sizes is None:
        exact = f"give the size of {named(program.symbols)} as an int in the place of the symbol"
    else:
        exact = made_exact(symbols)
    return f"{way_out}; or {exact}" if way_out else exact


def search_given_up(stuck: Stuck, program: TraceRequest, *, spent: str) -> InconclusiveShapeError:
    """The error for a function that needs more facts of its sizes than can be searched.

    Args:
        stuck: The first failed attempt.
        program: The function.
        spent: Which limit of the search was reached.
    """
    symbols = program.symbols
    multiple = max(symbols)
    return InconclusiveShapeError(
        f"the function can only be traced with too many facts about {named(symbols)}.",
        symbols=symbols,
        where=_compat.error_line(stuck.error),
        got=_arguments(program),
        why=f"{spent}; JAX: {_first_line(str(stuck.error))}",
        fix=f'write the divisor into the spec, such as "8*{multiple}" (pad the data to it), or '
        f"pass constraints=...; or {made_exact(symbols)}",
    )


def _arguments(program: TraceRequest) -> str:
    """The ragged arguments of a function, and the sizes of the call."""
    ragged = [leaf for leaf in program.leaves if any(not isinstance(d, int) for d in leaf.dims)]
    got = f"arguments {', '.join(map(str, ragged))}"
    if program.sizes:
        got += f" at {', '.join(f'{s}={size}' for s, size in sorted(program.sizes.items()))}"
    return got


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
