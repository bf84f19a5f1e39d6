"""Functions of JAX, NumPy and `math` that accept dims as numbers while a listener is active.

Those that need another algorithm are in `stand_ins`.
"""

# The functions that this takes of JAX are private, and have no types.
# pyright: reportPrivateUsage=false
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import functools
import math
import operator
import types
from collections.abc import Callable
from typing import Any

import numpy as np
from jax import numpy as jnp
from jax._src import core as _core
from jax._src.export.shape_poly import _DimExpr
from jax._src.interpreters.partial_eval import (
    DynamicJaxprTrace as _DynamicJaxprTrace,
)
from jax._src.lax import convolution as _convolution
from jax._src.lax.control_flow import loops as _loops
from jax._src.numpy import fft as _fft
from jax._src.numpy.array_methods import _IndexUpdateHelper

from shapeexec._compat.avals import ShapedArray, number_types
from shapeexec._compat.dims.listening import Patches, is_listened_to, listener_of
from shapeexec._compat.dims.methods import ORIGINAL
from shapeexec._compat.places import asked_by, user_place


def copy_of_dim(dim: Any) -> Any:
    """Another dim of JAX's that is the same size."""
    return _DimExpr(dim._sorted_terms, dim.scope)


def _canonical_shape(shape: Any, context: str = "") -> Any:
    """Shapes hold sizes and no numbers of NumPy: `operator.index` makes an int of these."""
    types_of = {*map(type, shape)} if type(shape) is tuple else None
    is_canonical = types_of is not None and types_of <= _DIM_TYPES  # JAX would raise and catch
    canonical = shape if is_canonical else _canonicalize_shape(shape, context)
    for dim in canonical:
        if type(dim) is _DimExpr and _is_of_numpy(dim):
            return tuple(copy_of_dim(x) if _is_of_numpy(x) else x for x in canonical)
    return canonical


_DIM_TYPES = {int, _DimExpr}


def _is_of_numpy(dim: Any) -> bool:
    listener = listener_of(dim) if type(dim) is _DimExpr else None
    return listener is not None and listener.is_of_numpy(dim)


_canonicalize_shape = _core.canonicalize_shape


def _as_operand(self: Any, x: Any, source_info: Any) -> Any:
    if type(x) in number_types:
        with _core.set_current_trace(self):
            x = x.as_array()
    return _to_jaxpr_tracer(self, x, source_info)


_to_jaxpr_tracer = _DynamicJaxprTrace.to_jaxpr_tracer


def _of_sizes(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of NumPy that computes with a tuple of sizes as it does with one of ints."""

    @functools.wraps(function)
    def computed(a: Any, *args: Any, **options: Any) -> Any:
        is_list = isinstance(a, tuple | list)
        dims = [x for x in a if isinstance(x, _DimExpr)] if is_list else []
        listener = listener_of(dims[0]) if dims else None
        if listener is None or asked_by(2)[0] != "user":
            return function(a, *args, **options)
        return listener.reduce(function, a, args, options)

    return computed


def _of_numbers(name: str) -> Callable[..., Any]:
    """A function of `math` that takes sizes, and values computed from them, as numbers."""
    function = getattr(math, name)

    @functools.wraps(function)
    def computed(*operands: Any) -> Any:
        computer = next(filter(None, map(_computer, operands)), None)
        is_known = all(isinstance(x, int | float | np.generic) or _computer(x) for x in operands)
        if computer is None or not is_known or asked_by(2)[0] == "internal":
            return function(*operands)
        pattern = f"math.{name}({', '.join('{}' for _ in operands)})"
        return computer.compute(function, pattern, *operands)

    return computed


def _computer(number: Any) -> Any:
    """The listener that computes with a dim or a host number; None: JAX computes."""
    if type(number) in number_types:
        return number.computer
    return listener_of(number) if isinstance(number, _DimExpr) else None


# How the types of arrays are compared: JAX makes one object of equal ones.


def _dims_of(aval: Any) -> list[Any]:
    return [dim for dim in aval.shape if isinstance(dim, _DimExpr)]


def _avals_equal(self: Any, other: Any) -> Any:
    if self is other or not isinstance(other, ShapedArray):
        return True if self is other else NotImplemented
    dims = [*_dims_of(self), *_dims_of(other)]
    if not dims or listener_of(dims[0]) is None or asked_by(2)[0] != "user":
        return NotImplemented
    fixed = [(x.dtype, x.weak_type, x.sharding, len(x.shape)) for x in (self, other)]
    return fixed[0] == fixed[1] and all(
        _dims_equal(a, b) for a, b in zip(self.shape, other.shape, strict=True)
    )


def _dims_equal(left: Any, right: Any) -> bool:
    if not isinstance(left, _DimExpr):
        left, right = right, left
    if not isinstance(left, _DimExpr) or ORIGINAL["__eq__"](left, right):
        return bool(left == right)
    listener = listener_of(left, right)
    answer = None if listener is None else listener.decide(left, "==", right, user_place())
    return bool(answer)


def _aval_hash(self: Any) -> int:
    dims = _dims_of(self)
    if dims and asked_by(2)[0] == "user":
        for dim in dims:
            listener = listener_of(dim)
            if listener is not None:
                listener.need(dim, "hash", user_place())
    return object.__hash__(self)


def _indexed(owner: Any) -> Callable[[Any, Any], Any]:
    original = owner.__getitem__

    def getitem(self: Any, index: Any) -> Any:
        parts = tuple(map(_as_index, index)) if isinstance(index, tuple) else _as_index(index)
        return original(self, parts)

    return getitem


def _as_index(index: Any) -> Any:
    """JAX takes a size for an index only as an array, which means what the int does."""
    is_number = isinstance(index, _DimExpr) or type(index) in number_types
    return jnp.asarray(index) if is_number else index


# What NumPy makes of a tuple of sizes.
_OF_SIZES = "prod sum max min amax amin mean median average std var cumsum cumprod".split()
# What Python's `math` makes of numbers.
FUNCTIONS_OF_NUMBERS = """acos acosh asin asinh atan atan2 atanh cbrt comb copysign cos cosh degrees
    erf erfc exp exp2 expm1 fabs factorial fmod gamma gcd hypot isqrt lcm ldexp lgamma log log10
    log1p log2 perm pow radians remainder sin sinh sqrt tan tanh""".split()


class ModuleWith(types.ModuleType):
    """A module in which some names mean something else."""

    def __init__(self, module: types.ModuleType, **names: Any) -> None:
        super().__init__(module.__name__)
        self._module = module
        vars(self).update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _index_or_dim(value: Any) -> Any:
    """`operator.index` of a padding or of the length of a Fourier transform.

    `vmap` of a convolution passes its paddings through the public function, which wants ints.
    """
    return value if isinstance(value, _DimExpr) else operator.index(value)


def copied(function: Any, names: dict[str, Any]) -> Callable[..., Any]:
    copied = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _int_or_dim(value: Any) -> Any:
    """`int` of the `length` of a scan, which may be a dim."""
    return value if is_listened_to(value) else int(value)


_infer_scan_length: Any = _loops._infer_scan_length
_INDEXED = (_core.Tracer, _IndexUpdateHelper)
PATCHES: Patches = {
    **{(owner, "__getitem__"): (_indexed(owner), owner.__getitem__) for owner in _INDEXED},
    **{(np, name): (_of_sizes(getattr(np, name)), getattr(np, name)) for name in _OF_SIZES},
    **{(math, name): (_of_numbers(name), getattr(math, name)) for name in FUNCTIONS_OF_NUMBERS},
    (ShapedArray, "__eq__"): (_avals_equal, vars(ShapedArray).get("__eq__")),
    (ShapedArray, "__hash__"): (_aval_hash, vars(ShapedArray).get("__hash__")),
    (_core, "canonicalize_shape"): (_canonical_shape, _canonicalize_shape),
    (_DynamicJaxprTrace, "to_jaxpr_tracer"): (_as_operand, _to_jaxpr_tracer),
    **{
        (module, "operator"): (ModuleWith(operator, index=_index_or_dim), operator)
        for module in (_convolution, _fft)
    },
    (_loops, "_infer_scan_length"): (
        copied(_infer_scan_length, {**_infer_scan_length.__globals__, "int": _int_or_dim}),
        _infer_scan_length,
    ),
}
