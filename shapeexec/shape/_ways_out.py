"""What to write in place of a call that wants a size as a number: by the function that was called.

Each way out gives what the call gives, at every size, and keeps the size symbolic. Nothing is
raised here.
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

# The positions of a window, from -1 to 1; a window of one element is its middle.
_U = "`u = (2 * jnp.arange({M}) + 1 - {M}) / max({M} - 1, 1)`"

# What to write, by the function's library and name. Braces name its parameters; those of functions
# of Python are a, b and c.
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
# These are as good with arguments that their texts do not name.
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
    """What a call that failed means.

    Attributes:
        call: Its text, `np.zeros(x.shape[0])`.
        instead: What to write; None: nothing is known that keeps the size symbolic.
        kind: The kind of number that it wants, `int` or `float`.
        is_of_jax: Whether a function of JAX's was called.
    """

    call: str
    instead: str | None
    kind: str = "int"
    is_of_jax: bool = False


def of_call(call: _compat.FailedCall | None) -> WayOut | None:
    """The way out of a call that failed; None: nothing is known of the function."""
    if call is None:
        return None
    function = call.function
    if function is None:
        random = _of_random(call)
        return WayOut(call.text, random) if random else None
    name = getattr(function, "__name__", "")
    library, _, rooms = (getattr(function, "__module__", None) or "").partition(".")
    if library in ("builtins", "math"):
        told = _filled(_OF_PYTHON[name], call) if name in _OF_PYTHON else _by_its_name(name, call)
        kind = "float" if library == "math" or name == "float" else "int"
        return None if library == "builtins" and told is None else WayOut(call.text, told, kind)
    if library == "numpy":
        path = f"{rooms}.{name}" if rooms else name
        if not _is_of_jax(path):
            return WayOut(call.text, _of_random(call))
        instead = f"write `jnp.{path}`: NumPy wants a number, and JAX takes the size"
        return WayOut(call.text, _filled(_OF_JAX[name], call) if name in _OF_JAX else instead)
    if library in ("jax", "jaxlib"):
        told = _OF_JAX.get(name) or _BESIDE.get(name)
        return WayOut(call.text, told and _filled(told, call), is_of_jax=True)
    return None


def _of_random(call: _compat.FailedCall) -> str | None:
    """The way out of NumPy's random numbers: of a generator's methods, too, by what they hold."""
    name = call.text.partition("(")[0].rpartition(".")[2]
    parsed = ast.parse(call.text, mode="eval").body
    if isinstance(parsed, ast.Call) and isinstance(parsed.func, ast.Attribute):
        name = parsed.func.attr
    if not hasattr(np.random.Generator, name) or not hasattr(jax.random, name):
        return None
    return f"write `jax.random.{name}` with a key, which takes the size; its numbers are others"


def _by_its_name(name: str, call: _compat.FailedCall) -> str | None:
    """The way out of `from math import sqrt`; None: by its name it wants a number, too."""
    if name not in _compat.FUNCTIONS_OF_NUMBERS or not call.text.startswith(name):
        return None
    return f"write `math.{call.text}`: by that name it takes a size"


def _filled(told: str, call: _compat.FailedCall) -> str | None:
    """A way out with the call's arguments in it; None: the call has others, or too few."""
    parsed = ast.parse(call.text, mode="eval").body
    assert isinstance(parsed, ast.Call)
    name = call.function.__name__
    of_python = name in _OF_PYTHON
    parameters = "abc" if of_python else inspect.signature(call.function).parameters
    given = dict(zip(parameters, parsed.args, strict=False))
    given |= {keyword.arg or "**": keyword.value for keyword in parsed.keywords}
    wanted = {field for _, field, _, _ in string.Formatter().parse(told) if field}
    if not wanted <= given.keys() <= wanted | _MAY_HAVE.get(name, set()):
        return None
    return told.format_map({field: _as_operand(given[field]) for field in wanted})


def _is_of_jax(path: str) -> bool:
    try:
        operator.attrgetter(path)(jnp)
    except AttributeError:
        return False
    return True


def _as_operand(argument: ast.expr) -> str:
    """The text of an argument, where an operator or an index may stand beside it."""
    text = ast.unparse(argument)
    alone = ast.Name | ast.Attribute | ast.Subscript | ast.Call | ast.Constant
    return text if isinstance(argument, alone) else f"({text})"
