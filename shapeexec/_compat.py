"""Every private or version-dependent JAX name the library uses, and nothing else.

An upgrade of JAX is an edit of this file. `tests/test_compat.py` checks that each name exists and
does what is said here on the JAX that is installed. Names serve jax 0.10 to 0.12 unless it says so.
"""

import ast
import builtins
import contextlib
import dataclasses
import dis
import functools
import importlib
import inspect
import itertools
import os
import re
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import jax
import numpy as np
from jax import dtypes, tree_util
from jax import numpy as jnp
from jax._src import config as _config
from jax._src import core as _core
from jax._src import source_info_util as _source_info
from jax._src.export.shape_poly import _DimExpr
from jax._src.lax import lax as _lax
from jax._src.lib import xla_client as _xla_client  # pyright: ignore[reportPrivateImportUsage]
from jax._src.numpy.array_methods import _IndexUpdateHelper
from jax.extend import core as _extend_core
from jax.extend import random as _extend_random
from jax.extend import source_info_util as _extend_source_info

ClosedJaxpr = _extend_core.ClosedJaxpr
Literal = _extend_core.Literal
Primitive = _extend_core.Primitive
ShapedArray = _core.ShapedArray

InconclusiveDimensionOperation = jax.errors.InconclusiveDimensionOperation
threefry2x32_p = _extend_random.threefry2x32_p

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
"""The monitoring event that JAX records, with seconds, for each XLA compilation."""

trace_state_clean: Callable[[], bool] = _core.trace_state_clean
"""False inside anybody's `jit`, `grad`, `vmap` or `scan` body, also where no argument is traced."""


def array_from_host(
    view: np.ndarray, *, dtype: Any, weak_type: bool, like: jax.Array, committed: bool
) -> jax.Array:
    """A `jax.Array` of a host array, on the one device of `like`.

    `jax.device_put` takes ten times as long and cannot give a weak type.
    """
    sharding = like.sharding
    aval = _aval(view.shape, dtype, weak_type)
    return _xla_client.batched_device_put(
        aval, sharding, [view], list(sharding.device_set), committed
    )


@functools.lru_cache(maxsize=4096)
def _aval(shape: tuple[int, ...], dtype: Any, weak_type: bool) -> Any:
    return ShapedArray(shape, dtype, weak_type=weak_type)


def with_weak_type(array: Any, aval: Any) -> Any:
    """`array` with the weak type of `aval`, in whose dtype it is already."""
    if is_extended(aval.dtype) or aval.dtype == dtypes.float0:
        return array
    if getattr(array, "weak_type", False) == aval.weak_type and hasattr(array, "dtype"):
        return array
    return _lax._convert_element_type(array, aval.dtype, weak_type=aval.weak_type)


def describe_aval(aval: Any) -> str:
    """An aval as jaxprs print it: `f32[b,s]`."""
    return aval.str_short(short_dtypes=True)


def varying_alike(*arrays: Any) -> tuple[Any, ...]:
    """Inside `jax.shard_map`: arrays that all vary over the mesh axes that any of them does."""
    own = [jax.typeof(array).mat.varying for array in arrays]
    every = frozenset().union(*own)
    return tuple(
        jax.lax.pcast(array, tuple(sorted(every - axes)), to="varying") if every - axes else array
        for array, axes in zip(arrays, own, strict=True)
    )


def aval_like(aval: Any, shape: tuple[Any, ...], dtype: Any) -> Any:
    """An aval that varies over the mesh axes of `jax.shard_map` that `aval` does."""
    whole = aval.sharding.update(spec=jax.sharding.PartitionSpec(*(None for _ in shape)))
    return ShapedArray(shape, dtype, sharding=whole, manual_axis_type=aval.mat)


def is_literal(atom: Any) -> bool:
    """Whether an equation's operand is a constant, not a variable."""
    return isinstance(atom, Literal)


def is_extended(dtype: Any) -> bool:
    """Whether elements are opaque, such as typed PRNG keys."""
    return bool(jnp.issubdtype(dtype, dtypes.extended))


def is_committed(array: jax.Array) -> bool:
    """Whether `array` was put on its device on purpose."""
    return array.committed


def committed_sharding(x: Any) -> Any:
    """Where an array was put on purpose, or a `jax.ShapeDtypeStruct` says it will be; else None."""
    if isinstance(x, jax.ShapeDtypeStruct):
        return x.sharding
    return x.sharding if isinstance(x, jax.Array) and is_committed(x) else None


def scan_counts(params: dict[str, Any], operands: int) -> tuple[int, int]:
    """The numbers of constants and of carries among the operands of a `scan` equation.

    jax 0.12 replaced `num_consts` and `num_carry` by a tree of the operands, `ft_in`.
    """
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].update(range(operands)).unpack()
    return len(tree_util.tree_leaves(list(consts))), len(tree_util.tree_leaves(list(carry)))


_HI_PRIMITIVE = "call_hi_primitive"


def without_hi_primitives(closed_jaxpr: Any) -> Any:
    """A closed jaxpr with the plain functions behind its `call_hi_primitive` equations as calls.

    jax 0.12's `jnp.nonzero` is such a primitive. Its function is traced at the dims of the
    equation, and may ask something of them.
    """
    if not any(eqn.primitive.name == _HI_PRIMITIVE for eqn in equations(closed_jaxpr.jaxpr)):
        return closed_jaxpr
    opened = closed_jaxpr.jaxpr
    return closed_jaxpr.replace(jaxpr=opened.replace(eqns=[*map(_expanded, opened.eqns)]))


def _expanded(eqn: Any) -> Any:
    if eqn.primitive.name != _HI_PRIMITIVE:
        return eqn.replace(params={name: _expanded_param(p) for name, p in eqn.params.items()})
    structs = [
        jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype, weak_type=var.aval.weak_type)
        for var in eqn.invars
    ]
    plain = functools.partial(eqn.primitive.to_lojax, **eqn.params)
    called = without_hi_primitives(jax.jit(plain).trace(*structs).jaxpr)
    return eqn.replace(
        primitive=_extend_core.primitives.closed_call_p, params={"call_jaxpr": called}
    )


def _expanded_param(param: Any) -> Any:
    if isinstance(param, ClosedJaxpr):
        return without_hi_primitives(param)
    if isinstance(param, _extend_core.Jaxpr):
        return without_hi_primitives(closed(param)).jaxpr
    if isinstance(param, tuple):
        items = map(_expanded_param, param)
        return type(param)(*items) if hasattr(param, "_fields") else tuple(items)
    return param


def sub_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """The jaxprs (closed or open) among an equation's parameters."""
    return iter(_extend_core.jaxprs_in_params(params))


def bind_equation(
    eqn: Any, operands: Iterable[Any], params: dict[str, Any] | None = None
) -> list[Any]:
    """The results of an equation's primitive; `params` stand for the equation's own."""
    own = eqn.params if params is None else params
    results = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(own))
    return [*results] if eqn.primitive.multiple_results else [results]


def closed(jaxpr: Any) -> Any:
    """A jaxpr as a closed one: some primitives keep theirs open, without constants."""
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of an open jaxpr, those of the jaxprs inside of them too."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in sub_jaxprs(eqn.params):
            yield from equations(getattr(inner, "jaxpr", inner))


def gamma_one() -> Callable[..., jax.Array]:
    """JAX's sampler of one gamma variate, `(key, alpha, log_space) -> sample`."""
    from jax._src import random  # noqa: PLC0415 - its place differs between versions

    return getattr(random, "core", random)._gamma_one  # pyright: ignore[reportAttributeAccessIssue]


def cudnn_attention_is_known() -> bool:
    """Whether JAX has the primitives of cuDNN's attention by the names that are used here."""
    return _cudnn() is not None


def cudnn_attention(
    q: Any, k: Any, v: Any, *, scale: float, is_causal: bool, window: int | None
) -> tuple[Any, Any]:
    """The output [B, T, N, H] of cuDNN, and the log-sum-exp f32[B, N, T] of scaled scores.

    `jax.nn` rounds the latter to the dtype of the operands. `window`: how many keys up to its own
    position a query sees.
    """
    bind, params = _cudnn_call("fwd", scale, is_causal, window)
    out, logsumexp = bind(q, k, v, *_unused_of_cudnn(q.dtype), **params, is_training=True)
    return out, logsumexp


def cudnn_attention_gradient(
    operands: tuple[Any, Any, Any],
    results: tuple[Any, Any],
    d_out: Any,
    *,
    scale: float,
    is_causal: bool,
    window: int | None,
) -> tuple[Any, Any, Any]:
    """The gradients of the operands, from the results of a forward pass, whoever made them."""
    bind, params = _cudnn_call("bwd", scale, is_causal, window)
    out, logsumexp = results
    unused = _unused_of_cudnn(d_out.dtype)
    d_q, d_k, d_v = bind(*operands, *unused, logsumexp, out, d_out, **params)
    return d_q, d_k, d_v


def _unused_of_cudnn(dtype: Any) -> list[Any]:
    """What stands for no bias, and for lengths, offsets and pages of queries and keys."""
    return [jnp.zeros(0, dtype)] * 7


@functools.cache
def _cudnn() -> Any:
    try:
        module = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
    except ImportError:
        return None
    used = ("AttentionLayout", "MaskType", *(_CUDNN_NAME.format(way) for way in ("fwd", "bwd")))
    return module if all(hasattr(module, name) for name in used) else None


_CUDNN_NAME = "_dot_product_attention_{}_p"


def _cudnn_call(
    way: str, scale: float, is_causal: bool, window: int | None
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The primitive itself: the one that JAX wraps around it asks for devices to lower."""
    module = _cudnn()
    params = {
        "scale": scale,
        "seed": 42,
        "dropout_rate": 0.0,
        "variadic_args": (False, False),
        "mask_type": module.MaskType.CAUSAL if is_causal else module.MaskType.NO_MASK,
        "layout": module.AttentionLayout.BTNH.value,
        "sliding_window_length": window,
    }
    if jax.__version_info__ >= (0, 12):
        params |= {"score_mod_name": None, "score_mod_jaxpr": None}
    return getattr(module, _CUDNN_NAME.format(way)).bind, params


def threefry_is_partitionable() -> bool:
    """Which of its two layouts of counters threefry uses: `jax.threefry_partitionable`."""
    return _config.threefry_partitionable.value


def told_as(fn: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """`wrapper`, which errors of JAX's tell by the name, the file and the line of `fn`."""
    own = inspect.signature(wrapper)
    inner = inspect.unwrap(getattr(fn, "func", fn))  # a functools.partial has its function's
    if hasattr(inner, "__code__"):
        functools.update_wrapper(wrapper, inner, ("__name__", "__qualname__"), ())
        wrapper.__signature__ = own  # pyright: ignore[reportFunctionMemberAccess]
    return wrapper


# Where a line of code comes from

_JAX_DIR = os.path.dirname(jax.__file__) + os.sep
_OWN_DIR = os.path.dirname(__file__) + os.sep
_STAND_INS_DIR = os.path.join(_OWN_DIR, "shape", "_library") + os.sep
_NUMPY_DIR = os.path.dirname(np.__file__) + os.sep
_STDLIB_DIR = sysconfig.get_paths()["stdlib"] + os.sep
_SITE_DIRS = tuple(sysconfig.get_paths()[name] + os.sep for name in ("purelib", "platlib"))
# What JAX builds of its own primitives. Unlike the code beneath, it is written for known sizes.
_JAX_LIBRARY = (
    *(
        _JAX_DIR + place
        for room in ("", "_src" + os.sep)
        for name in "experimental image nn numpy ops random scipy third_party".split()
        for place in (f"{room}{name}{os.sep}", f"{room}{name}.py")
    ),
    os.path.join(_JAX_DIR, "_src", "lax", "fft.py"),  # the gradient of rfft asks for parity
    _STAND_INS_DIR,
)


@functools.cache  # of names, for code objects are equal whose files differ
def _origin(filename: str, name: str) -> str:
    """Who speaks in a function: internal, library, user; or transparent, if nobody does."""
    if filename.startswith(_JAX_LIBRARY):
        return "library"
    if filename.startswith((_JAX_DIR, _OWN_DIR)):
        return "internal"
    if filename.startswith((_NUMPY_DIR, "<frozen ", "<__array_function__")):
        return "transparent"
    if filename.startswith("<") and name.startswith("__"):
        return "transparent"  # a dataclass's `__eq__`; but `<stdin>` and `<string>` are user code
    if filename.startswith(_STDLIB_DIR) and not filename.startswith(_SITE_DIRS):
        return "transparent"
    return "user"


def _asked_by(depth: int) -> tuple[str, str | None]:
    """Who asks, by the nearest frame that speaks for itself, and the user's `file:line`.

    Only a question of user code, and of JAX's library on its behalf, has a place.
    """
    frame, asker = sys._getframe(depth), None
    while frame is not None:
        code = frame.f_code
        origin = _origin(code.co_filename, code.co_name)
        asker = origin if asker is None and origin != "transparent" else asker
        if asker == "internal":
            return "internal", None
        if origin == "user":
            return asker or "user", f"{code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return asker or "internal", None


def _source_text(filename: str, line: int) -> str:
    import linecache  # noqa: PLC0415 - only errors and reports need it

    text = linecache.getline(filename, line).strip()
    place = f"{os.path.basename(filename)}:{line}"
    return f"{text}  ({place})" if text else place


def describe_line(place: str | None) -> str | None:
    """`code  (file.py:12)` of a `path/file.py:12`."""
    if place is None:
        return None
    filename, _, line = place.rpartition(":")
    return _source_text(filename, int(line))


def eqn_line(eqn: Any) -> str | None:
    """`code  (file.py:12)` of the innermost user frame that made an equation."""
    frame = _source_info.user_frame(eqn.source_info.traceback)
    return None if frame is None else _source_text(frame.file_name, frame.start_line)


def hide_from_places(directory: str) -> None:
    """Have JAX take code in a directory for its own where it tells of a user's line."""
    _extend_source_info.register_exclusion(directory)


hide_from_places(_STAND_INS_DIR)
hide_from_places(__file__)


def error_place(error: BaseException) -> str | None:
    """`path/file.py:12` of the last user frame in an exception's traceback."""
    found, step = None, error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if _origin(code.co_filename, code.co_name) == "user":
            found = f"{code.co_filename}:{step.tb_lineno}"
        step = step.tb_next
    return found


@dataclasses.dataclass(frozen=True)
class FailedCall:
    """The call in user code that an exception came out of.

    Attributes:
        text: The expression, `np.sqrt(x.shape[0])`.
        function: What was called, or the object on which it was looked up: `len`, `numpy`.
        name: Its name, without that of the module: `len`, `sqrt`.
        argument: The first argument, `x.shape[0]`.
    """

    text: str
    function: Any
    name: str
    argument: str


def failed_call(error: BaseException) -> FailedCall | None:
    """The call in the last user frame in an exception's traceback, if a call failed there."""
    found, step = None, error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if _origin(code.co_filename, code.co_name) == "user":
            found = step
        step = step.tb_next
    text = None if found is None else _failed_expression(found)
    if found is None or text is None:
        return None
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return None
    if not (isinstance(call, ast.Call) and call.args):
        return None
    root, *names = ast.unparse(call.func).split(".")
    frame = found.tb_frame
    spaces = (frame.f_locals, frame.f_globals, vars(builtins))
    owner = next((space[root] for space in spaces if root in space), None)
    return FailedCall(text.strip(), owner, ".".join(names) or root, ast.unparse(call.args[0]))


def _failed_expression(step: types.TracebackType) -> str | None:
    import linecache  # noqa: PLC0415 - only errors need it

    code = step.tb_frame.f_code
    place = next(itertools.islice(code.co_positions(), step.tb_lasti // 2, None), None)
    if place is None or None in place or place[0] != place[1]:
        return None  # no columns, or of several lines
    line, _, start, end = place
    return linecache.getline(code.co_filename, line or 0).encode()[start:end].decode() or None


# What is asked of symbolic dimensions


class DimListener(Protocol):
    """Hears what is asked of symbolic dims while a function is traced."""

    def decide(self, left: Any, op: str, right: Any, place: str | None) -> Any:
        """The answer to a comparison that JAX leaves open: a bool, or NotImplemented.

        None leaves it to JAX, who says False to `==` and raises for the others.
        """
        ...

    def need(self, dim: Any, what: str, place: str | None) -> Any:
        """User code wants the value: its `str`, its `int` or `float`, or its `hash`.

        The text, for a `str`. None, or an exception, leaves it to JAX.
        """
        ...

    def hear(self, left: Any, op: str, right: Any) -> None:
        """JAX's own code asks whether dims are equal, or divides or bounds one by another."""
        ...


_listeners = threading.local()
_patch_lock = threading.Lock()
_patch_users = 0
_COMPARISONS = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}
_OPERATIONS = {
    "__floordiv__": "//",
    "__mod__": "%",
    "__divmod__": "//",
    "max": "max",
    "rmax": "max",
    "min": "min",
    "rmin": "min",
}
_ORIGINAL: dict[str, Any] = {
    name: getattr(_DimExpr, name)
    for name in (
        *("__eq__", "__ne__", "__hash__", "__str__", "__repr__", "__int__"),
        *_COMPARISONS,
        *_OPERATIONS,
    )
}


def _listener(dim: Any, other: Any = None) -> DimListener | None:
    """Who listens to the scope of `dim`, if `other` is not of another one.

    JAX keeps dims of earlier scopes in its caches, and dims are simplified in scopes of their own.
    """
    listener, scope = getattr(_listeners, "current", (None, None))
    if dim.scope is not scope or (isinstance(other, _DimExpr) and other.scope is not scope):
        return None
    return listener


def _is_calling(frame: Any) -> bool:
    """Whether a frame is at a call, and at no comparison.

    JAX's caches compare shapes and static arguments, now and then with a key of another hash, in
    C++ code: then the frame is that of the call of a cached function. Nothing is asked there.
    """
    code = frame.f_code.co_code
    return dis.opname[code[frame.f_lasti]].startswith(("CALL", "PRECALL"))


def _asked_equal(left: Any, right: Any) -> Any:
    listener = _listener(left, right)
    if listener is None:
        return None
    origin, place = _asked_by(3)
    if origin != "user" and _is_calling(sys._getframe(2)):
        return None
    if origin == "internal":
        listener.hear(left, "==", right)
        return None
    return listener.decide(left, "==", right, place)


def _eq(self: Any, other: Any) -> Any:
    if _ORIGINAL["__eq__"](self, other):
        return True
    answer = _asked_equal(self, other)
    return False if answer is None else answer


def _ne(self: Any, other: Any) -> Any:
    if not _ORIGINAL["__ne__"](self, other):
        return False
    answer = _asked_equal(self, other)
    return answer if answer is NotImplemented else not answer


def _bool(self: Any) -> bool:
    is_zero = _asked_equal(self, 0)
    return True if is_zero is None else not is_zero


def _ordered(name: str) -> Callable[[Any, Any], Any]:
    def compare(self: Any, other: Any) -> Any:
        try:
            return _ORIGINAL[name](self, other)
        except InconclusiveDimensionOperation:
            listener = _listener(self, other)
            if listener is None:
                raise
            origin, place = _asked_by(2)
            if origin == "internal":  # JAX's core may have an answer to the exception
                raise
            answer = listener.decide(self, _COMPARISONS[name], other, place)
            if answer is None:
                raise
            return answer

    return compare


def _operation(name: str) -> Callable[[Any, Any], Any]:
    def operate(self: Any, other: Any) -> Any:
        listener = _listener(self, other)
        if listener is not None:
            listener.hear(self, _OPERATIONS[name], other)
        return _ORIGINAL[name](self, other)

    return operate


def _needed(dim: Any, what: str) -> Any:
    listener = _listener(dim)
    if listener is None:
        return None
    origin, place = _asked_by(3)
    return listener.need(dim, what, place) if origin == "user" else None


def _hash(self: Any) -> int:
    _needed(self, "hash")
    return _ORIGINAL["__hash__"](self)


def _str(self: Any) -> str:
    text = _needed(self, "str")
    return _ORIGINAL["__str__"](self) if text is None else text


def _format(self: Any, spec: str) -> str:
    text = _needed(self, "str")
    if text is None:
        return format(_ORIGINAL["__str__"](self), spec)
    return format(int(text), spec)


def _int(self: Any) -> int:
    _needed(self, "int")
    return _ORIGINAL["__int__"](self)


def _index(self: Any) -> int:
    _needed(self, "int")
    raise TypeError("'_DimExpr' object cannot be interpreted as an integer")


def _float(self: Any) -> float:
    _needed(self, "float")
    raise TypeError("float() argument must be a real number, not '_DimExpr'")


def _indexed(owner: Any) -> Callable[[Any, Any], Any]:
    original = owner.__getitem__

    def getitem(self: Any, index: Any) -> Any:
        parts = tuple(map(_as_index, index)) if isinstance(index, tuple) else _as_index(index)
        return original(self, parts)

    return getitem


def _as_index(index: Any) -> Any:
    """JAX takes a size for an index only as an array, which means what the int does."""
    return jnp.asarray(index) if isinstance(index, _DimExpr) else index


def _getattribute(self: Any, name: str) -> Any:
    if name == "__class__" and _asked_by(2)[0] == "user":
        return int  # `isinstance(size, int)` is True in the plain call
    return object.__getattribute__(self, name)


# What an int can do and JAX's dims cannot.


def _abs(self: Any) -> Any:
    return self if self >= 0 else -self


def _shifted_left(self: Any, bits: Any) -> Any:
    return self * 2**bits if isinstance(bits, int) and bits >= 0 else NotImplemented


def _shifted_right(self: Any, bits: Any) -> Any:
    return self // 2**bits if isinstance(bits, int) and bits >= 0 else NotImplemented


def _low_bits(self: Any, mask: Any) -> Any:
    """`s & 7` is `s % 8`; other masks have no dim."""
    is_low = type(mask) is int and mask >= 0 and mask & (mask + 1) == 0
    return self % (mask + 1) if is_low else NotImplemented


_DIM_METHODS: dict[str, Any] = {
    "__eq__": _eq,
    "__ne__": _ne,
    "__hash__": _hash,
    "__bool__": _bool,
    "__str__": _str,
    "__repr__": _str,
    "__format__": _format,
    "__int__": _int,
    "__index__": _index,
    "__float__": _float,
    "__getattribute__": _getattribute,
    "__abs__": _abs,
    "__pos__": lambda self: self,
    "__invert__": lambda self: -self - 1,
    "__lshift__": _shifted_left,
    "__rshift__": _shifted_right,
    "__and__": _low_bits,
    "__rand__": _low_bits,
    **{name: _ordered(name) for name in _COMPARISONS},
    **{name: _operation(name) for name in _OPERATIONS},
}
_INDEXED = (_core.Tracer, _IndexUpdateHelper)
# By class and name what stands there while anybody listens, and what at other times, if anything.
_PATCHES: dict[tuple[Any, str], tuple[Any, Any]] = {
    **{(_DimExpr, name): (new, _ORIGINAL.get(name)) for name, new in _DIM_METHODS.items()},
    **{(owner, "__getitem__"): (_indexed(owner), owner.__getitem__) for owner in _INDEXED},
}


# What stands in for functions of JAX that want sizes as ints

_LIBRARY: dict[str, tuple[tuple[str, str], ...]] = {
    "associative_scan": (("jax._src.lax.control_flow.loops", "associative_scan"),),
    "choice": (("jax._src.random.core", "choice"),),
    "conv_general_dilated": (("jax._src.lax.convolution", "conv_general_dilated"),),
    "int_dtype_for_dim": (("jax._src.lax.utils", "int_dtype_for_dim"),),
    "int_dtype_for_shape": (("jax._src.lax.utils", "int_dtype_for_shape"),),
    "permutation": (("jax._src.random.core", "permutation"),),
    "reduce_jvp": (("jax._src.lax.lax", "_reduce_jvp"),),
    "searchsorted": (
        ("jax._src.numpy.hijax", "searchsorted"),
        ("jax._src.numpy.hijax", "searchsorted_via_expand"),
    ),
    "searchsorted_scan": (("jax._src.numpy.hijax", "_searchsorted_scan_impl"),),
    "shuffle": (("jax._src.random.core", "_shuffle"),),
    "spectral_helper": (("jax._src.scipy.signal", "_spectral_helper"),),
    "squeeze": (("jax._src.numpy.lax_numpy", "_squeeze"),),
}
"""Functions of JAX's that ask a symbolic size for an int, by the name that a stand-in has here.

Where there are several places, not every version of JAX has each.
"""
_ANYWHERE: dict[tuple[str, str], Any] = {}
"""What a name of a module of JAX's means while anybody listens, beside functions."""
_STAND_INS: dict[str, Callable[..., Any]] = {}
_JAX_OWN: dict[str, Callable[..., Any]] = {}
_prepared: set[tuple[str, str]] = set()


def stands_in(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make the decorated function run in the place of one of JAX's, where a size is symbolic.

    It is called as `function(original, *args, **kwargs)`: with JAX's own function, and only while
    somebody listens to the scope of a dim that is among the arguments or their shapes.

    Args:
        name: One of the names in `_LIBRARY`.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        assert name in _LIBRARY
        assert name not in _STAND_INS
        _STAND_INS[name] = function
        return function

    return decorate


def jax_function(module: str, name: str) -> Callable[..., Any]:
    """A function of a private module, by name."""
    return getattr(importlib.import_module(f"jax._src.{module}"), name)


def run_with_names(function: Callable[..., Any], **names: Any) -> Callable[..., Any]:
    """A copy of one of JAX's functions in which some global names mean something else."""
    return _copied(function, {**function.__globals__, **names})


def _copied(function: Any, names: dict[str, Any]) -> Callable[..., Any]:
    copied = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _call_of_stand_in(*args: Any, **kwargs: Any) -> Any:
    # It runs with the globals of a module of JAX's, and finds nothing of ours there.
    from shapeexec._compat import run_stand_in  # noqa: PLC0415

    return run_stand_in("place", *args, **kwargs)


def run_stand_in(place: str, *args: Any, **kwargs: Any) -> Any:
    """What a function of JAX's at `name@module.function` does while anybody listens."""
    original = _JAX_OWN[place]
    leaves = tree_util.tree_leaves((args, kwargs))
    if not any(map(_is_listened_to, leaves)):
        return original(*args, **kwargs)
    return _STAND_INS[place.partition("@")[0]](original, *args, **kwargs)


def _is_listened_to(leaf: Any) -> bool:
    dims = (leaf,) if isinstance(leaf, _DimExpr) else getattr(leaf, "shape", ())
    return any(isinstance(d, _DimExpr) and _listener(d) is not None for d in _as_tuple(dims))


def _as_tuple(dims: Any) -> tuple[Any, ...]:
    return dims if isinstance(dims, tuple) else ()


def _prepare_stand_ins() -> None:
    """Add patches for the modules of JAX that are loaded by now: some are only on demand.

    A function keeps its identity, and gets the code of another: so it is found by whatever name it
    was imported, and beneath `jax.jit`.
    """
    for name, places in _LIBRARY.items():
        for module, function in places:
            if name not in _STAND_INS or (module, function) in _prepared:
                continue
            found = getattr(sys.modules.get(module), function, None)
            if found is None:
                continue
            _prepared.add((module, function))
            inner, place = inspect.unwrap(found), f"{name}@{module}.{function}"
            _JAX_OWN[place] = _copied(inner, inner.__globals__)
            own = _call_of_stand_in.__code__
            consts = tuple(place if const == "place" else const for const in own.co_consts)
            _PATCHES[inner, "__code__"] = (own.replace(co_consts=consts), inner.__code__)
    for (module, name), meaning in _ANYWHERE.items():
        if (module, name) not in _prepared and module in sys.modules:
            _prepared.add((module, name))
            owner = sys.modules[module]
            _PATCHES[owner, name] = (meaning, vars(owner).get(name))


def _length(x: Any) -> Any:
    """`len` of an array whose first axis has a symbolic size is that size."""
    dims = getattr(x, "shape", ())
    return dims[0] if dims and isinstance(dims[0], _DimExpr) else len(x)


_ANYWHERE |= {
    ("jax._src.numpy.hijax", "len"): _length,
    ("jax._src.numpy.lax_numpy", "len"): _length,
    ("jax._src.numpy.polynomial", "len"): _length,
}


def _patch(*, listening: bool) -> None:
    if listening:
        _prepare_stand_ins()
    for (owner, name), (new, original) in _PATCHES.items():
        if listening or original is not None:
            setattr(owner, name, new if listening else original)
        else:
            delattr(owner, name)


@contextlib.contextmanager
def listen_to_dims(listener: DimListener, scope: Any) -> Iterator[None]:
    """Let `listener` hear what is asked of the dims of `scope` in this thread, and answer it.

    JAX says False to every `==` that it cannot prove, True to `bool(dim)`, gives a dim a hash that
    no int has, and its symbol as text: each silently picks one branch for all sizes. What JAX's
    core asks with `==` keeps JAX's answer, for it is written for that.
    """
    global _patch_users  # noqa: PLW0603 - a patch of a class is global, so is its count of users
    with _patch_lock:
        _patch_users += 1
        if _patch_users == 1:
            _patch(listening=True)
    outer = getattr(_listeners, "current", (None, None))
    _listeners.current = listener, scope
    try:
        yield
    finally:
        _listeners.current = outer
        with _patch_lock:
            _patch_users -= 1
            if _patch_users == 0:
                _patch(listening=False)


_INCONCLUSIVE = re.compile(r"comparison '(.+?)' (<=|>=|<|>) '(.+?)' is inconclusive", re.DOTALL)
_UNEVEN = re.compile(r"Cannot divide evenly .* The remainder (.+?) should be 0", re.DOTALL)


def inconclusive_comparison(error: BaseException) -> tuple[str, str, str] | None:
    """`(left, op, right)` of the comparison that JAX's error says is inconclusive, if it is one.

    A division that need not come out even is one as well: of its remainder with 0.
    """
    if not isinstance(error, InconclusiveDimensionOperation):
        return None
    if found := _UNEVEN.search(str(error)):
        # The remainder by -4 is 0 where that by 4 is.
        return re.sub(r", - (\d+)\)", r", \1)", found[1]), "==", "0"
    found = _INCONCLUSIVE.search(str(error))
    return None if found is None else (found[1], found[2], found[3])


# The configuration that changes a trace


def config_fingerprint() -> tuple[Any, ...]:
    """What of JAX's configuration changes how a function is traced or compiled.

    Covers x64, matmul precision, numeric promotion, the generator, the mesh and the default
    device: everything JAX itself puts into the key of its caches, and `checks_results`.
    """
    return (_config.trace_context(), checks_results())


def checks_results() -> bool:
    """Whether JAX looks for NaN or infinity in all results: `jax_debug_nans`, `jax_debug_infs`."""
    return _config.debug_nans.value or _config.debug_infs.value


def registered_primitives() -> dict[str, Primitive]:
    """Every primitive that the loaded JAX modules define, by name."""
    return dict(_primitives_in(lambda module: True))


_KERNEL_MODULES = ("jax._src.pallas.", "jax.experimental.pallas", "jax.experimental.mosaic.")


def kernel_primitives() -> frozenset[str]:
    """The names of those that only Pallas defines: they occur in the body of a kernel."""
    in_kernels = _primitives_in(lambda module: module.startswith(_KERNEL_MODULES))
    elsewhere = _primitives_in(lambda module: not module.startswith(_KERNEL_MODULES))
    return frozenset(name for name, _ in in_kernels) - {name for name, _ in elsewhere}


def _primitives_in(accepts: Callable[[str], bool]) -> Iterator[tuple[str, Primitive]]:
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "jax" and module is not None and accepts(name):
            for value in list(vars(module).values()):
                if isinstance(value, Primitive):
                    yield value.name, value
