"""Replacements for calls that need a size as a Python number, by the function that was called.

Each replacement gives the same result at every size and keeps the size symbolic. Errors are made in
`_meanings`.
"""

import ast
import dataclasses
import inspect
import operator
import string

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec import _compat
from shapeexec._code import parsed

# The positions in a window, from -1 to 1; the only element of a window of one is at 0.
_U = "`u = (2 * jnp.arange({M}) + 1 - {M}) / max({M} - 1, 1)`"

# Replacements by library and name of the function. Braces hold names of its parameters; those of
# Python's functions are called a, b and c.
_OF_PYTHON = {
    "len": "write `{a}.shape[0]`, which keeps the size symbolic",
    "int": "write `{a}` without int(): it counts and indexes as an int does",
    "float": "write `1.0 * {a}`, which keeps the size symbolic",
    "pow": "write `{a} ** {b} % {c}`",
    "modf": "write `(math.fmod({a}, 1), {a} - math.fmod({a}, 1))`",
}
_OF_JAX = {
    "hanning": f"write `0.5 + 0.5 * jnp.cos(jnp.pi * u)` with {_U}",
    "hamming": f"write `0.54 + 0.46 * jnp.cos(jnp.pi * u)` with {_U}",
    "blackman": "write `0.42 + 0.5 * jnp.cos(jnp.pi * u) + 0.08 * jnp.cos(2 * jnp.pi * u)` with "
    + _U,
    "bartlett": f"write `1 - abs(u)` with {_U}",
    "kaiser": f"write `jnp.i0({{beta}} * jnp.sqrt(1 - u**2)) / jnp.i0({{beta}})` with {_U}",
    "logspace": "write `10.0 ** jnp.linspace({start}, {stop}, {num})`",
    "geomspace": "write `{start} * ({stop} / {start}) ** jnp.linspace(0, 1, {num})`",
    "diag_indices": "write `(jnp.arange({n}), jnp.arange({n}))`",
    "vander": "write `{x}[:, None] ** jnp.arange({N})[::-1]`",
    "orthogonal": "write `q * jnp.sign(jnp.diagonal(r))` with `q, r = "
    "jnp.linalg.qr(jax.random.normal({key}, ({n}, {n})))`",
}
# These apply with further arguments (`_MAY_HAVE`), which their strings do not name.
_BESIDE = {
    "approx_max_k": "leave aggregate_to_topk= out, for the {k} greatest themselves",
    "approx_min_k": "leave aggregate_to_topk= out, for the {k} least themselves",
    "detrend": "detrend the parts between break points, and join them: "
    "`jnp.concatenate([detrend({data}[:k]), detrend({data}[k:])])` for bp=[k]",
}
_MAY_HAVE = {
    "approx_max_k": {"operand", "reduction_dimension", "recall_target", "aggregate_to_topk"},
    "approx_min_k": {"operand", "reduction_dimension", "recall_target", "aggregate_to_topk"},
    "detrend": {"bp"},
}


@dataclasses.dataclass(frozen=True)
class WayOut:
    """The replacement for a call that failed.

    Attributes:
        call: The source of the call, `np.zeros(x.shape[0])`.
        instead: The replacement; None: none is known that keeps the size symbolic.
        kind: The kind of number that the call needs, `int` or `float`.
        is_of_jax: Whether a JAX function was called.
    """

    call: str
    instead: str | None
    kind: str = "int"
    is_of_jax: bool = False


def of_call(call: _compat.FailedCall | None) -> WayOut | None:
    """The replacement for a call that failed; None: the function is not known here."""
    if call is None:
        return None
    function = call.function
    if function is None:
        random = _of_random(call)
        return WayOut(call.text, random) if random else None
    name = getattr(function, "__name__", "")
    library, _, rooms = (getattr(function, "__module__", None) or "").partition(".")
    if library in ("builtins", "math"):
        advice = _filled(_OF_PYTHON[name], call) if name in _OF_PYTHON else _by_its_name(name, call)
        kind = "float" if library == "math" or name == "float" else "int"
        is_unknown = library == "builtins" and advice is None
        return None if is_unknown else WayOut(call.text, advice, kind)
    if library == "numpy":
        path = f"{rooms}.{name}" if rooms else name
        if not _is_of_jax(path):
            return WayOut(call.text, _of_random(call))
        instead = f"write `jnp.{path}`: NumPy wants a number, and JAX takes the size"
        return WayOut(call.text, _filled(_OF_JAX[name], call) if name in _OF_JAX else instead)
    if library in ("jax", "jaxlib"):
        advice = _OF_JAX.get(name) or _BESIDE.get(name)
        return WayOut(call.text, advice and _filled(advice, call), is_of_jax=True)
    return None


def _of_random(call: _compat.FailedCall) -> str | None:
    """The replacement for NumPy's random functions and for methods of its generators."""
    name = call.text.partition("(")[0].rpartition(".")[2]
    tree = parsed(call.text)
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Attribute):
        name = tree.func.attr
    if not hasattr(np.random.Generator, name) or not hasattr(jax.random, name):
        return None
    return f"write `jax.random.{name}` with a key, which takes the size; its numbers are others"


def _by_its_name(name: str, call: _compat.FailedCall) -> str | None:
    """The replacement for `from math import sqrt`; None: `math.name` needs a number, too."""
    if name not in _compat.FUNCTIONS_OF_NUMBERS or not call.text.startswith(name):
        return None
    return f"write `math.{call.text}`: by that name it takes a size"


def _filled(advice: str, call: _compat.FailedCall) -> str | None:
    """A replacement with the call's arguments filled in; None: it does not fit the arguments."""
    tree = parsed(call.text)
    assert isinstance(tree, ast.Call)
    name = call.function.__name__
    of_python = name in _OF_PYTHON
    parameters = "abc" if of_python else inspect.signature(call.function).parameters
    given = dict(zip(parameters, tree.args, strict=False))
    given |= {keyword.arg or "**": keyword.value for keyword in tree.keywords}
    wanted = {field for _, field, _, _ in string.Formatter().parse(advice) if field}
    if not wanted <= given.keys() <= wanted | _MAY_HAVE.get(name, set()):
        return None
    return advice.format_map({field: _as_operand(given[field]) for field in wanted})


def _is_of_jax(path: str) -> bool:
    try:
        operator.attrgetter(path)(jnp)
    except AttributeError:
        return False
    return True


def _as_operand(argument: ast.expr) -> str:
    """The source of an argument, in parentheses where an operator beside it needs them."""
    text = ast.unparse(argument)
    alone = ast.Name | ast.Attribute | ast.Subscript | ast.Call | ast.Constant
    return text if isinstance(argument, alone) else f"({text})"
