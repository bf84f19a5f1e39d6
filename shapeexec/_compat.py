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
import math
import operator
import os
import re
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax import dtypes, tree_util
from jax import numpy as jnp
from jax._src import config as _config
from jax._src import core as _core
from jax._src import dtypes as _dtypes
from jax._src import source_info_util as _source_info
from jax._src.export import shape_poly as _shape_poly
from jax._src.export import shape_poly_decision as _shape_poly_decision
from jax._src.export.shape_poly import _DimExpr
from jax._src.interpreters import ad as _ad
from jax._src.interpreters.partial_eval import (
    DynamicJaxprTrace as _DynamicJaxprTrace,
)
from jax._src.interpreters.partial_eval import (
    DynamicJaxprTracer as _DynamicJaxprTracer,
)
from jax._src.lax import convolution as _convolution
from jax._src.lax import lax as _lax
from jax._src.lax.control_flow import loops as _loops
from jax._src.lib import xla_client as _xla_client  # pyright: ignore[reportPrivateImportUsage]
from jax._src.numpy import fft as _fft
from jax._src.numpy.array_methods import _IndexUpdateHelper
from jax.extend import core as _extend_core
from jax.extend import random as _extend_random
from jax.extend import source_info_util as _extend_source_info
from jax.interpreters import ad as _interpreters_ad

ClosedJaxpr = _extend_core.ClosedJaxpr
Jaxpr = _extend_core.Jaxpr
Literal = _extend_core.Literal
Primitive = _extend_core.Primitive
JaxDim = _DimExpr
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


def aval_of_number(value: Any) -> Any:
    """What a number of Python or NumPy is to JAX: its dtype, and weak if it is Python's.

    `jax.typeof` refuses a Python integer that i32 does not hold.
    """
    python_type = type(value)
    return jax.typeof(python_type() if python_type in (int, float, complex) else value)


_number_types: set[type] = set()


def register_numbers(kinds: Mapping[type, type | None], aval: Callable[[Any], Any]) -> None:
    """Let operations of JAX take instances of some classes as scalars.

    Args:
        kinds: By class the type of Python's whose place its instances take; None: arrays.
        aval: What an instance is to JAX. In a function that is traced `instance.as_array()` is
            the operand.
    """
    for kind, python_type in kinds.items():
        _number_types.add(kind)
        _core.pytype_aval_mappings[kind] = aval
        _dtypes.register_canonicalize_value_handler(kind, None)
        if python_type is not None:
            dtypes_of_python = _dtypes.python_scalar_types_to_dtypes
            _dtypes.register_weak_scalar_type(kind)
            _dtypes.python_scalar_types.add(kind)
            dtypes_of_python[kind] = dtypes_of_python[python_type]


def varying_alike(*arrays: Any) -> tuple[Any, ...]:
    """Inside `jax.shard_map`: arrays that all vary over the mesh axes that any of them does."""
    own = [jax.typeof(array).mat.varying for array in arrays]
    every = frozenset().union(*own)
    return tuple(
        jax.lax.pcast(array, tuple(sorted(every - axes)), to="varying") if every - axes else array
        for array, axes in zip(arrays, own, strict=True)
    )


def spec_of(aval: Any) -> tuple[Any, ...]:
    """Over which mesh axes each axis of an aval is cut, by its type; None: over none."""
    spec = tuple(aval.sharding.spec)
    return spec + (None,) * (len(aval.shape) - len(spec))


def aval_like(
    aval: Any, shape: tuple[Any, ...], dtype: Any, spec: tuple[Any, ...] | None = None
) -> Any:
    """An aval that varies over the mesh axes of `jax.shard_map` that `aval` does.

    Args:
        aval: On the same mesh.
        shape: Of the new one.
        dtype: Likewise.
        spec: Over which axes of the mesh each axis is cut; None: over none.
    """
    spec = tuple(None for _ in shape) if spec is None else spec
    sharding = aval.sharding.update(spec=jax.sharding.PartitionSpec(*spec))
    return ShapedArray(shape, dtype, sharding=sharding, manual_axis_type=aval.mat)


def is_literal(atom: Any) -> bool:
    """Whether an equation's operand is a constant, not a variable."""
    return isinstance(atom, Literal)


def is_extended(dtype: Any) -> bool:
    """Whether elements are opaque, such as typed PRNG keys."""
    return bool(jnp.issubdtype(dtype, dtypes.extended))


def is_traced(x: Any) -> bool:
    """Whether it is an array of a function that JAX traces."""
    return isinstance(x, _core.Tracer)


def is_committed(array: jax.Array) -> bool:
    """Whether `array` was put on its device on purpose."""
    return array.committed


def committed_sharding(x: Any) -> Any:
    """Where an array was put on purpose, or a `jax.ShapeDtypeStruct` says it will be; else None.

    A tracer is nowhere yet.
    """
    if isinstance(x, jax.ShapeDtypeStruct):
        return x.sharding
    is_array = isinstance(x, jax.Array) and not isinstance(x, _core.Tracer)
    return x.sharding if is_array and is_committed(x) else None


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
    return with_equations(closed_jaxpr, lambda jaxpr: [*map(_expanded, jaxpr.eqns)])


def _expanded(eqn: Any) -> Any:
    if eqn.primitive.name != _HI_PRIMITIVE:
        return eqn
    structs = [
        jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype, weak_type=var.aval.weak_type)
        for var in eqn.invars
    ]
    plain = functools.partial(eqn.primitive.to_lojax, **eqn.params)
    called = without_hi_primitives(jax.jit(plain).trace(*structs).jaxpr)
    return eqn.replace(
        primitive=_extend_core.primitives.closed_call_p, params={"call_jaxpr": called}
    )


def with_equations(closed_jaxpr: Any, change: Callable[[Any], list[Any]]) -> Any:
    """A closed jaxpr with other equations, those that `change` makes of an open one.

    So are the jaxprs inside of it.
    """
    opened = closed_jaxpr.jaxpr
    eqns = [
        eqn.replace(params={name: _changed(param, change) for name, param in eqn.params.items()})
        for eqn in change(opened)
    ]
    return closed_jaxpr.replace(jaxpr=opened.replace(eqns=eqns))


def _changed(param: Any, change: Callable[[Any], list[Any]]) -> Any:
    if isinstance(param, ClosedJaxpr):
        return with_equations(param, change)
    if isinstance(param, _extend_core.Jaxpr):
        return with_equations(closed(param), change).jaxpr
    if isinstance(param, tuple):
        items = (_changed(item, change) for item in param)
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


def opened(jaxpr: Any) -> Any:
    """A jaxpr as an open one, which has variables for its constants, and not their values."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def jaxpr_name(jaxpr: Any) -> str | None:
    """The name of the function that a jaxpr was traced from; None of one without a name."""
    name = opened(jaxpr).debug_info.func_name
    return name if name.isidentifier() else None


def new_variable(aval: Any) -> Any:
    """A variable of a jaxpr to be made."""
    return _extend_core.Var(aval)


def jaxpr_of(eqn: Any) -> Any:
    """One equation as a closed jaxpr, whose inputs are its operands."""
    invars = [new_variable(atom.aval) for atom in eqn.invars]
    outvars = [new_variable(var.aval) for var in eqn.outvars]
    like = jax.make_jaxpr(lambda: ())().jaxpr.replace(effects=eqn.effects)
    only = eqn.replace(invars=invars, outvars=outvars)
    return ClosedJaxpr(new_jaxpr(like, (), invars, outvars, [only]), ())


def jaxpr_as_function(closed_jaxpr: Any) -> Callable[..., list[Any]]:
    """The function of flat arrays that a closed jaxpr is."""
    return _extend_core.jaxpr_as_fun(closed_jaxpr)


def new_literal(value: Any, aval: Any) -> Any:
    """A scalar constant as an operand; `value` is a NumPy scalar in the dtype of `aval`."""
    return Literal(value, aval)


def new_jaxpr(
    like: Any,
    constvars: Sequence[Any],
    invars: Sequence[Any],
    outvars: Sequence[Any],
    eqns: Sequence[Any],
) -> Any:
    """An open jaxpr of these equations, with the effects and the names of another.

    From jax 0.12 on it becomes a closed one by its constants; see `ClosedJaxpr`.
    """
    debug_info = like.debug_info.with_unknown_names()
    return Jaxpr([*constvars], [*invars], [*outvars], [*eqns], like.effects, debug_info=debug_info)


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of an open jaxpr, those of the jaxprs inside of them too."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in sub_jaxprs(eqn.params):
            yield from equations(opened(inner))


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
    if filename.endswith(".pyx"):  # compiled code: NumPy's generators tell of themselves so
        return "transparent"
    if filename.startswith("<") and name.startswith("__"):
        return "transparent"  # a dataclass's `__eq__`; but `<stdin>` and `<string>` are user code
    if filename.startswith(_STDLIB_DIR) and not filename.startswith(_SITE_DIRS):
        return "transparent"
    return "user"


def _codes(function: Any) -> Iterator[types.CodeType]:
    """The code of a function, and of the functions in it."""
    pending = [getattr(function, "__code__", None)]
    while pending:
        code = pending.pop()
        if code is not None:
            yield code
            pending += [c for c in code.co_consts if isinstance(c, types.CodeType)]


# How JAX compares and prints the type of an array: whoever calls it asks of the dims.
_OF_AVALS = {
    id(code): code  # the hash of one reads all of it
    for owner, names in (
        (ShapedArray, "__repr__ __str__ str_short"),
        (jax.ShapeDtypeStruct, "__repr__ __eq__ __hash__"),
        (_core, "str_short_aval _get_shape_sharding_str"),
        (_core.Tracer, "__repr__ __str__ __format__ _pretty_print"),
        (_DynamicJaxprTracer, "_short_repr"),
    )
    for name in names.split()
    for code in _codes(getattr(owner, name, None))
}


def _asked_by(depth: int) -> tuple[str, str | None]:
    """Who asks, by the nearest frame that speaks for itself, and the user's `file:line`.

    Only a question of user code, and of JAX's library on its behalf, has a place.
    """
    frame, asker = sys._getframe(depth), None
    while frame is not None:
        code = frame.f_code
        is_of_avals = id(code) in _OF_AVALS
        origin = "transparent" if is_of_avals else _origin(code.co_filename, code.co_name)
        asker = origin if asker is None and origin != "transparent" else asker
        if asker == "internal":
            return "internal", None
        if origin == "user":
            return asker or "user", f"{code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return asker or "internal", None


def is_foreign(code: types.CodeType) -> bool:
    """Whether a function is no user code: of JAX, of NumPy, of Python's library or of our own."""
    return _origin(code.co_filename, code.co_name) != "user"


def is_installed(code: types.CodeType) -> bool:
    """Whether a function is of an installed package, and not of the user's own files."""
    return code.co_filename.startswith(_SITE_DIRS)


def is_asked_by_user(depth: int) -> bool:
    """Whether the frame at a depth from the caller's speaks for user code."""
    return _asked_by(depth + 1)[0] == "user"


def user_place() -> str | None:
    """`path/file.py:12` of the innermost user frame that runs."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if _origin(code.co_filename, code.co_name) == "user":
            return f"{code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def caller_place() -> tuple[str, int] | None:
    """File and line of the innermost running frame outside of JAX and of installed packages.

    Where all user code is installed, the innermost of it.
    """
    found, frame = None, sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if _origin(code.co_filename, code.co_name) == "user":
            if not is_installed(code):
                return code.co_filename, frame.f_lineno
            found = found or (code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return found


def user_line() -> str | None:
    """`code  (file.py:12)` of the innermost frame of the user's own code that is running."""
    return describe_line(user_place())


_CONVERSIONS = {"array": "array", "_convert_element_type": "convert"}


def conversion_asked() -> str:
    """How the caller's caller takes a number: by `array`, by `convert`, or as an `argument`.

    `jnp.asarray(n, dtype)` converts a Python number of any size; as an argument of an operation it
    is an i32 or f32 first.
    """
    code = sys._getframe(2).f_code
    is_of_jax = code.co_filename.startswith(_JAX_DIR)
    return _CONVERSIONS.get(code.co_name, "argument") if is_of_jax else "argument"


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
    """`code  (file.py:12)` of the innermost user frame that made an equation.

    Where that is of an installed package the user's own line stands before it.
    """
    frames = _source_info.user_frames(eqn.source_info.traceback)
    return _own_line((f.file_name, f.function_name, f.start_line) for f in frames)


def _own_line(frames: Iterable[tuple[str, str, int]]) -> str | None:
    """What tells of frames, innermost first: of each file, function and line."""
    of_users = (frame for frame in frames if _origin(*frame[:2]) == "user")
    inner = next(of_users, None)
    if inner is None:
        return None
    told = _source_text(inner[0], inner[2])
    if not inner[0].startswith(_SITE_DIRS):
        return told
    own = next((frame for frame in of_users if not frame[0].startswith(_SITE_DIRS)), None)
    return told if own is None else f"{_source_text(own[0], own[2])}, through {told}"


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


def error_line(error: BaseException) -> str | None:
    """`code  (file.py:12)` of the last user frame in an exception's traceback.

    Where that is of an installed package the user's own line stands before it.
    """
    frames, step = [], error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        frames.append((code.co_filename, code.co_name, step.tb_lineno))
        step = step.tb_next
    return _own_line(reversed(frames))


@dataclasses.dataclass(frozen=True)
class FailedCall:
    """The call in user code that an exception came out of.

    Attributes:
        text: The expression, `np.sqrt(x.shape[0])`.
        function: What was called, the function `np.sqrt`; None: it was not found.
    """

    text: str
    function: Any


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
    if not isinstance(call, ast.Call):
        return None
    root, *names = ast.unparse(call.func).split(".")
    frame = found.tb_frame
    spaces = (frame.f_locals, frame.f_globals, vars(builtins))
    function = next((space[root] for space in spaces if root in space), None)
    for name in names:  # of modules alone: an attribute of an object may be code
        function = getattr(function, name, None) if inspect.ismodule(function) else None
    return FailedCall(text.strip(), function)


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
    """Hears what is asked of symbolic dims while a function is traced, and computes with them."""

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
        """JAX's own code compares dims, which it answers itself, or divides or bounds them."""
        ...

    def calculate(self, name: str, left: Any, right: Any) -> Any:
        """What an operator makes of a dim and something else; None leaves it to JAX."""
        ...

    def compare(self, name: str, left: Any, right: Any) -> Any:
        """The answer to a comparison, `__lt__` or another, of a dim with no integer."""
        ...

    def compute(self, function: Callable[..., Any], pattern: str, *operands: Any) -> Any:
        """What a function of Python makes of a dim."""
        ...

    def call_method(self, number: Any, name: str, args: Any, options: Any) -> Any:
        """What a method of int gives for a dim."""
        ...

    def ufunc(self, function: Any, method: str, operands: Any, options: Any) -> Any:
        """What a ufunc of NumPy makes of dims and other numbers."""
        ...

    def reduce(
        self, function: Any, elements: Sequence[Any], args: Any, options: Mapping[str, Any]
    ) -> Any:
        """What `function(elements, *args, **options)` of NumPy makes of a list with dims in it."""
        ...

    def as_array(self, dim: Any, via: str) -> Any:
        """A dim as an array of JAX's; None leaves it to JAX."""
        ...

    def is_of_numpy(self, dim: Any) -> bool:
        """Whether a dim is a number of NumPy's in the plain call."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class _Listening:
    """Somebody listens to the dims of a scope.

    Attributes:
        scope: The scope.
        listener: Who listens.
        calls: The calls of stand-ins.
        memo: What JAX made of dims, by `_key` of the question, with the dims, so that no other
            object takes their ids. Only what does not depend on who asks.
        dims: By its terms one dim of those that are equal.
    """

    scope: Any
    listener: Any
    calls: list[Any]
    memo: dict[Any, tuple[Any, Any, Any]] = dataclasses.field(default_factory=dict)
    dims: dict[Any, Any] = dataclasses.field(default_factory=dict)

    def remember(self, key: Any, left: Any, right: Any, result: Any) -> Any:
        """Put what was made of dims into the memo.

        An operand that comes back may be a number of NumPy's, for which an equal dim is none.
        """
        if type(result) is _DimExpr and result is not left and result is not right:
            result = self.dims.setdefault(_terms_of(result), result)
        self.memo[key] = left, right, result
        return result


# By the scope's id. Any thread may ask.
_listening: dict[int, _Listening] = {}
_patch_lock = threading.Lock()
_COMPARISONS = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}
_BOUNDS = {"max": "max", "rmax": "max", "min": "min", "rmin": "min"}
# By operator how JAX's dims may divide, and what is told of it.
_DIVISIONS = {"floordiv": "//", "mod": "%", "divmod": "//"}
_ARITHMETIC = "add sub mul truediv floordiv mod divmod pow lshift rshift and or xor".split()
_ORIGINAL: dict[str, Any] = {
    name: getattr(_DimExpr, name, None)
    for name in (
        *("__eq__", "__ne__", "__hash__", "__str__", "__repr__", "__int__"),
        *("__jax_array__", "dimension_as_value"),
        *_COMPARISONS,
        *_BOUNDS,
        *(f"__{side}{name}__" for name in _ARITHMETIC for side in ("", "r")),
    )
}


def _listening_to(dim: Any, other: Any = None) -> _Listening | None:
    """Who listens to the scope of `dim`, if `other` is not of another one.

    JAX keeps dims of earlier scopes in its caches, and dims are simplified in scopes of their own.
    """
    scope = _scope_of(dim)
    found = _listening.get(id(scope))
    if found is None or found.scope is not scope or found.listener is None:
        return None
    return None if type(other) is _DimExpr and _scope_of(other) is not scope else found


_scope_of = vars(_DimExpr)["_scope"].__get__  # faster than through `__getattribute__`
_terms_of = vars(_DimExpr)["_sorted_terms"].__get__
_hash_of = vars(_DimExpr)["_hash"].__get__


def _listener(dim: Any, other: Any = None) -> DimListener | None:
    found = _listening_to(dim, other)
    return None if found is None else found.listener


def _key(question: str, left: Any, right: Any) -> Any:
    """Under what a memo has what JAX makes of a dim and another one or an int; else None.

    By identity: dims that are equal have a hash and an `==` that ask.
    """
    if type(right) is int:
        return question, id(left), right
    return (question, id(left), id(right), None) if type(right) is _DimExpr else None


def _remembered(
    listening: _Listening | None, question: str, left: Any, right: Any, function: Any
) -> Any:
    """What `function(left, right)` gave when it was asked first."""
    key = _key(question, left, right)
    if listening is None or key is None:
        return function(left, right)
    if key in listening.memo:
        return listening.memo[key][2]
    return listening.remember(key, left, right, function(left, right))


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


def _is_equal(left: Any, right: Any) -> bool:
    """What JAX says to `==`."""
    if left is right:
        return True
    return _remembered(_listening_to(left, right), "==", left, right, _ORIGINAL["__eq__"])


def _eq(self: Any, other: Any) -> Any:
    if _is_equal(self, other):
        return True
    answer = _asked_equal(self, other)
    return False if answer is None else answer


def _ne(self: Any, other: Any) -> Any:
    if _is_equal(self, other):
        return False
    answer = _asked_equal(self, other)
    return answer if answer is NotImplemented else not answer


def _bool(self: Any) -> bool:
    is_zero = _asked_equal(self, 0)
    return True if is_zero is None else not is_zero


def _ordered(name: str) -> Callable[[Any, Any], Any]:
    def compare(self: Any, other: Any) -> Any:
        if not isinstance(other, int | np.integer | _DimExpr):
            listener = _listener(self)
            return NotImplemented if listener is None else listener.compare(name, self, other)
        try:
            listening = _listening_to(self, other)
            return _remembered(listening, name, self, other, _ORIGINAL[name])
        except InconclusiveDimensionOperation:
            listener = _listener(self, other)
            if listener is None:
                raise
            origin, place = _asked_by(2)
            if origin == "internal":  # JAX's core may have an answer to the exception
                listener.hear(self, _COMPARISONS[name], other)
                raise
            answer = listener.decide(self, _COMPARISONS[name], other, place)
            if answer is None:
                raise
            return answer

    return compare


def _bounded(name: str) -> Callable[[Any, Any], Any]:
    def bound(self: Any, other: Any) -> Any:
        listening = _listening_to(self, other)
        if listening is not None:
            listening.listener.hear(self, _BOUNDS[name], other)
        return _remembered(listening, name, self, other, _ORIGINAL[name])

    return bound


def _arithmetic(name: str, side: str) -> Callable[..., Any]:
    original = _ORIGINAL[f"__{side}{name}__"]
    question = f"__{side}{name}__"

    def operate(self: Any, other: Any) -> Any:
        listening = _listening_to(self, other)
        if listening is None:
            return NotImplemented if original is None else original(self, other)
        key = _key(question, self, other)
        if key in listening.memo:
            return listening.memo[key][2]
        left, right = (other, self) if side else (self, other)
        if name in _DIVISIONS:
            _heard_division(listening.listener, left, _DIVISIONS[name], right)
        result = listening.listener.calculate(name, left, right)
        if result is not None or original is None:
            return NotImplemented if result is None else result
        if key is None and isinstance(other, np.integer):
            other = int(other)  # JAX makes the same of it
            key = _key(question, self, other)
            if key in listening.memo:
                return listening.memo[key][2]
        if name == "floordiv" and not side and isinstance(other, int) and other != 0:
            result = _quotient(-self, -other) if other < 0 else _quotient(self, other)
        else:
            result = original(self, other)
        # Whether a divisor is 0 is for user code to ask each time.
        if key is None or (name in _DIVISIONS and type(right) is _DimExpr):
            return result
        return listening.remember(key, self, other, result)

    return operate


def _heard_division(listener: DimListener, left: Any, op: str, right: Any) -> None:
    if isinstance(left, _DimExpr):
        listener.hear(left, op, right)
    if isinstance(right, _DimExpr):
        origin, place = _asked_by(3)
        if origin != "internal" and listener.decide(right, "==", 0, place):
            raise ZeroDivisionError("integer division or modulo by zero")


def _method_of_int(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **options: Any) -> Any:
        listener = _listener(self)
        if listener is None:
            raise AttributeError(f"'_DimExpr' object has no attribute {name!r}")
        return listener.call_method(self, name, args, options)

    return method


def _astype(self: Any) -> Any:
    """In JAX's own code `np.max` of a shape is a number of NumPy's, which an int is not."""
    listener = _listener(self)
    if listener is None or _asked_by(3)[0] == "user":  # beneath `_getattribute`
        raise AttributeError("'_DimExpr' object has no attribute 'astype'")

    def astype(dtype: Any) -> Any:
        kind = np.dtype(dtype)
        return listener.compute(kind.type, f"np.{kind}({{}})", self)

    return astype


def _round(self: Any, digits: int | None = None) -> Any:
    listener = _listener(self)
    if listener is None or digits is None or digits >= 0:
        return self
    return listener.compute(round, "round({}, {})", self, digits)


def _jax_array(self: Any) -> Any:
    listener = _listener(self)
    value = None if listener is None else listener.as_array(self, conversion_asked())
    return _ORIGINAL["__jax_array__"](self) if value is None else value


def _dimension_as_value(self: Any) -> Any:
    listener = _listener(self)
    value = None if listener is None else listener.as_array(self, "argument")
    return _ORIGINAL["dimension_as_value"](self) if value is None else value


def _array_ufunc(self: Any, function: Any, method: str, *operands: Any, **options: Any) -> Any:
    listener = _listener(self)
    if listener is None or _asked_by(2)[0] == "internal":
        boxed = [_boxed(x) if isinstance(x, _DimExpr) else x for x in operands]
        return getattr(function, method)(*boxed, **options)
    return listener.ufunc(function, method, operands, options)


def _boxed(dim: Any) -> np.ndarray:
    box = np.empty((), object)
    box[()] = dim
    return box


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
    listener = _listener(dim) if type(dim) is _DimExpr else None
    return listener is not None and listener.is_of_numpy(dim)


_canonicalize_shape = _core.canonicalize_shape


def _as_operand(self: Any, x: Any, source_info: Any) -> Any:
    if type(x) in _number_types:
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
        listener = _listener(dims[0]) if dims else None
        if listener is None or _asked_by(2)[0] != "user":
            return function(a, *args, **options)
        return listener.reduce(function, a, args, options)

    return computed


def _of_numbers(name: str) -> Callable[..., Any]:
    """A function of `math` that takes sizes, and what is computed from them, for numbers."""
    function = getattr(math, name)

    @functools.wraps(function)
    def computed(*operands: Any) -> Any:
        computer = next(filter(None, map(_computer, operands)), None)
        is_known = all(isinstance(x, int | float | np.generic) or _computer(x) for x in operands)
        if computer is None or not is_known or _asked_by(2)[0] == "internal":
            return function(*operands)
        pattern = f"math.{name}({', '.join('{}' for _ in operands)})"
        return computer.compute(function, pattern, *operands)

    return computed


def _computer(number: Any) -> Any:
    """Who computes with a dim or a number of the host; None: nobody has to."""
    if type(number) in _number_types:
        return number.computer
    return _listener(number) if isinstance(number, _DimExpr) else None


# How the types of arrays are compared: JAX makes one object of equal ones.


def _dims_of(aval: Any) -> list[Any]:
    return [dim for dim in aval.shape if isinstance(dim, _DimExpr)]


def _avals_equal(self: Any, other: Any) -> Any:
    if self is other or not isinstance(other, ShapedArray):
        return True if self is other else NotImplemented
    dims = [*_dims_of(self), *_dims_of(other)]
    if not dims or _listener(dims[0]) is None or _asked_by(2)[0] != "user":
        return NotImplemented
    fixed = [(x.dtype, x.weak_type, x.sharding, len(x.shape)) for x in (self, other)]
    return fixed[0] == fixed[1] and all(
        _dims_equal(a, b) for a, b in zip(self.shape, other.shape, strict=True)
    )


def _dims_equal(left: Any, right: Any) -> bool:
    if not isinstance(left, _DimExpr):
        left, right = right, left
    if not isinstance(left, _DimExpr) or _ORIGINAL["__eq__"](left, right):
        return bool(left == right)
    listener = _listener(left, right)
    answer = None if listener is None else listener.decide(left, "==", right, user_place())
    return bool(answer)


def _aval_hash(self: Any) -> int:
    dims = _dims_of(self)
    if dims and _asked_by(2)[0] == "user":
        for dim in dims:
            listener = _listener(dim)
            if listener is not None:
                listener.need(dim, "hash", user_place())
    return object.__hash__(self)


def _quotient(dim: Any, divisor: int) -> Any:
    """`dim // divisor` in one form, however it is written, so that JAX sees what is equal.

    `-(-s // 2)`, `(s - 1) // 2 + 1` and `(s + 1) // 2` are all the last one, and a quotient of a
    quotient is one, so that strided layers do not nest.
    """
    if not isinstance(dim, _DimExpr):
        return dim // divisor
    if divisor == 1:
        return dim
    (term, count), *others = _terms_of(dim)
    if count < 0:
        return -_quotient(divisor - 1 - dim, divisor)
    constant = next((n for other, n in others if other.is_constant), 0)
    factor = term.to_factor()
    if count == 1 and factor is not None and factor.operation == _FLOORDIV:
        inner, by = factor.operands
        by = _DimExpr._to_constant(by)
        if len(others) == (constant != 0) and by is not None and by > 0:
            return _quotient(inner + constant * by, divisor * by)
    whole = constant // divisor
    return _ORIGINAL["__floordiv__"](dim - whole * divisor, divisor) + whole


def _needed(dim: Any, what: str) -> Any:
    listener = _listener(dim)
    if listener is None:
        return None
    origin, place = _asked_by(3)
    return listener.need(dim, what, place) if origin == "user" else None


def _hash(self: Any) -> int:
    listener = _listener(self)
    if listener is not None:
        origin, place = _asked_by(2)
        if origin == "user":
            listener.need(self, "hash", place)
        frame = sys._getframe(1)
        if frame.f_code.co_code[frame.f_lasti] == _SET_ADD:
            for other in _dims_beside(frame):
                listener.hear(self, "==", other)
    return _hash_of(self) or _ORIGINAL["__hash__"](self)


_SET_ADD = dis.opmap["SET_ADD"]


def _dims_beside(frame: Any) -> list[Any]:
    """The dims of the arrays in a frame that puts shapes in a set: so JAX compares them, too."""
    known = [*frame.f_locals.values()]
    if frame.f_code.co_name == "<setcomp>":
        known += frame.f_back.f_locals.values()
    arrays = [x for value in known if isinstance(value, list | tuple) for x in value]
    return [dim for x in (*known, *arrays) for dim in getattr(x, "shape", ())]


def _str(self: Any) -> str:
    text = _needed(self, "str")
    return _text(self) if text is None else text


def _text(dim: Any) -> str:
    """How JAX prints a dim."""
    return _remembered(_listening_to(dim), "str", dim, 0, lambda dim, _: _ORIGINAL["__str__"](dim))


def _format(self: Any, spec: str) -> str:
    text = _needed(self, "str")
    if text is None:
        return format(_text(self), spec)
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
    is_number = isinstance(index, _DimExpr) or type(index) in _number_types
    return jnp.asarray(index) if is_number else index


def _getattribute(self: Any, name: str) -> Any:
    if name == "__class__" and _asked_by(2)[0] == "user":
        return int  # `isinstance(size, int)` is True in the plain call
    return object.__getattribute__(self, name)


# What an int can do and JAX's dims cannot.


def _abs(self: Any) -> Any:
    return self if self >= 0 else -self


_FLOORDIV = _shape_poly._DimFactor.FLOORDIV
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
    **{f"__{s}{name}__": _arithmetic(name, s) for name in _ARITHMETIC for s in ("", "r")},
    "__abs__": _abs,
    "__pos__": lambda self: self,
    "__invert__": lambda self: -self - 1,
    "__round__": _round,
    **{f"__{name}__": lambda self: self for name in ("ceil", "floor", "trunc")},
    "__array_ufunc__": _array_ufunc,
    "__jax_array__": _jax_array,
    "dimension_as_value": _dimension_as_value,
    **{name: _ordered(name) for name in _COMPARISONS},
    **{name: _bounded(name) for name in _BOUNDS},
    "real": property(lambda self: self),
    "imag": property(lambda self: 0),
    "numerator": property(lambda self: self),
    "denominator": property(lambda self: 1),
    "conjugate": lambda self: self,
    "astype": property(_astype),
    **{
        name: _method_of_int(name)
        for name in "as_integer_ratio bit_count bit_length is_integer to_bytes".split()
        if hasattr(int, name)
    },
}
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
    """What `operator.index` makes of a padding or of the length of a Fourier transform.

    `vmap` of a convolution passes its paddings through the public function, which wants ints.
    """
    return value if isinstance(value, _DimExpr) else operator.index(value)


def _copied(function: Any, names: dict[str, Any]) -> Callable[..., Any]:
    copied = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _int_or_dim(value: Any) -> Any:
    """What `int` makes of the `length` of a scan, which may be a dim as well."""
    return value if _is_listened_to(value) else int(value)


def _concrete_or_number(kind: Any, value: Any, context: str = "") -> Any:
    """What `core.concrete_or_error` makes of `rcond`, which is `len(x)` times a constant."""
    return value if type(value) in _number_types else _core.concrete_or_error(kind, value, context)


_infer_scan_length: Any = _loops._infer_scan_length
_INDEXED = (_core.Tracer, _IndexUpdateHelper)
# By class and name what stands there while anybody listens, and what at other times, if anything.
_PATCHES: dict[tuple[Any, str], tuple[Any, Any]] = {
    **{(_DimExpr, name): (new, _ORIGINAL.get(name)) for name, new in _DIM_METHODS.items()},
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
        _copied(_infer_scan_length, {**_infer_scan_length.__globals__, "int": _int_or_dim}),
        _infer_scan_length,
    ),
}


# What stands in for functions of JAX that want sizes as ints

_LIBRARY: dict[str, tuple[tuple[str, str], ...]] = {
    "associative_scan": (("jax._src.lax.control_flow.loops", "associative_scan"),),
    "choice": (("jax._src.random.core", "choice"),),
    "const": (("jax._src.lax.lax", "_const"),),
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


def _call_of_stand_in(*args: Any, **kwargs: Any) -> Any:
    # It runs with the globals of a module of JAX's, and finds nothing of ours there.
    from shapeexec._compat import run_stand_in  # noqa: PLC0415

    return run_stand_in("place", *args, **kwargs)


@dataclasses.dataclass(frozen=True)
class StandInCall:
    """A call, while a function was traced, of a function of JAX's that has a stand-in.

    Attributes:
        place: The function, `name@module.function`.
        frames: The user's code that led there, innermost first: code and offset of each frame.
        dims: Per leaf of the arguments its dims, or the int or dim that it is.
        answers: What `is_symbolic` told the stand-in, in order; None: JAX's own function ran.
    """

    place: str
    frames: tuple[tuple[types.CodeType, int], ...]
    dims: tuple[tuple[Any, ...], ...]
    answers: list[bool] | None


class _Replay:
    """The calls to run stand-ins for where all sizes are ints; its identity keys JAX's caches."""

    def __init__(self, calls: Iterable[StandInCall], evaluate: Callable[[Any], int]) -> None:
        self._answers: dict[Any, list[list[bool] | None]] = {}
        for call in calls:
            dims = tuple(tuple(map(evaluate, leaf)) for leaf in call.dims)
            of_key = self._answers.setdefault((call.place, call.frames, dims), [])
            of_key.append(call.answers)

    def answers(self, *call: Any) -> list[bool] | None:
        """Those of the call that this one repeats; None: JAX's own function ran, or it is new.

        JAX traces the body of a loop once or more. Where one place has several calls that are
        alike at these sizes, they follow in order, and the last one stands for further ones.
        """
        found = self._answers.get(call)
        if found is None:
            return None
        return found.pop(0) if len(found) > 1 else found[0]


_replay = jax.make_user_context(None)
_running = threading.local()
"""Of each thread: `answer`, for the stand-in that runs; `calls`, where it traces symbolically."""


def run_stand_in(place: str, *args: Any, **kwargs: Any) -> Any:
    """What a function of JAX's at `name@module.function` does while anybody listens."""
    original = _JAX_OWN[place]
    replay, calls = _replay.value, getattr(_running, "calls", None)
    dims = tuple(map(_sizes_in, tree_util.tree_leaves((args, kwargs))))
    heard = next((dim for leaf in dims for dim in leaf if _is_listened_to(dim)), None)
    if heard is None and replay is None and calls is None:
        return original(*args, **kwargs)
    frames = _user_frames()
    if heard is not None:
        answers: list[bool] | None = []
        _listening[id(heard.scope)].calls.append(StandInCall(place, frames, dims, answers))
        answer = functools.partial(_recorded, answers)
    elif replay is not None:
        answers = replay.answers(place, frames, dims)
        answer = functools.partial(next, iter(answers or ()))
    else:
        answers, answer = None, None
        if calls is not None:
            calls.append(StandInCall(place, frames, dims, None))
    if answers is None:
        return original(*args, **kwargs)
    before = getattr(_running, "answer", None)
    _running.answer = answer
    try:
        return _STAND_INS[place.partition("@")[0]](original, *args, **kwargs)
    finally:
        _running.answer = before


def is_symbolic(dim: Any) -> bool:
    """Whether a size is no int; for stand-ins, also while they are replayed, where it is one."""
    return _running.answer(isinstance(dim, _DimExpr))


def _recorded(answers: list[bool], answer: bool) -> bool:
    answers.append(answer)
    return answer


@contextlib.contextmanager
def replay_stand_ins(
    calls: Collection[StandInCall], evaluate: Callable[[Any], int]
) -> Iterator[None]:
    """In this thread let stand-ins run at known sizes, where they ran at symbolic ones.

    A call is known by the user's code that led to it and by its dims, not by its number: JAX traces
    bodies of loops more than once, and finds others in its caches. An unknown call runs JAX's own
    function. JAX's caches give nothing to what runs here, and take nothing from it to elsewhere.

    Args:
        calls: As `listen_to_dims` gave them.
        evaluate: The size of a dim of theirs.
    """
    if all(call.answers is None for call in calls):
        yield
        return
    replay = _Replay(calls, evaluate)
    with _patched(id(replay), _Listening(None, None, [])), _replay(replay):
        yield


def _is_listened_to(dim: Any) -> bool:
    return isinstance(dim, _DimExpr) and _listener(dim) is not None


def _sizes_in(leaf: Any) -> tuple[Any, ...]:
    if isinstance(leaf, _DimExpr | int):
        return (leaf,)
    dims = getattr(leaf, "shape", ())
    return dims if isinstance(dims, tuple) else ()


_TRACERS = (
    os.path.join(_OWN_DIR, "shape", "_attempt.py"),
    os.path.join(_OWN_DIR, "checking", "_check.py"),
)


def _user_frames() -> tuple[tuple[types.CodeType, int], ...]:
    """The frames of user code that run, innermost first, as far as they are of one trace."""
    found = []
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename not in _TRACERS:
        code = frame.f_code
        if _origin(code.co_filename, code.co_name) == "user":
            found.append((code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


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


def _set_of_sizes(items: Iterable[Any] = ()) -> Any:
    """The different ones of some sizes: dims are told apart by `==`, for they have no hash."""
    items = [*items]
    if not any(map(_is_listened_to, items)):
        return set(items)
    found: list[Any] = []
    for item in items:
        if not any(item == other for other in found):
            found.append(item)
    return found


_ANYWHERE |= {
    ("flax.core.lift", "set"): _set_of_sizes,  # `nn.scan`, `nn.RNN` and `nn.vmap`
    ("jax._src.numpy.hijax", "len"): _length,
    ("jax._src.numpy.lax_numpy", "len"): _length,
    ("jax._src.numpy.polynomial", "len"): _length,
    ("jax._src.numpy.polynomial", "core"): ModuleWith(_core, concrete_or_error=_concrete_or_number),
    ("jax._src.numpy.polynomial", "lax"): ModuleWith(jax.lax, asarray=jnp.asarray),
}


def _patch(*, listening: bool) -> None:
    if listening:
        _prepare_stand_ins()
    for (owner, name), (new, original) in _PATCHES.items():
        if listening or original is not None:
            setattr(owner, name, new if listening else original)
        else:
            delattr(owner, name)
    for table, primitive, new, original in _TRANSPOSES:
        table[primitive] = new if listening else original


@contextlib.contextmanager
def listen_to_dims(listener: DimListener, scope: Any) -> Iterator[list[StandInCall]]:
    """Let `listener` hear what is asked of the dims of `scope`, in any thread, and answer it.

    JAX says False to every `==` that it cannot prove, True to `bool(dim)`, gives a dim a hash that
    no int has, and its symbol as text: each silently picks one branch for all sizes. What JAX's
    core asks with `==` keeps JAX's answer, for it is written for that.

    Gives the calls of functions that have stand-ins, a list that grows.
    """
    calls: list[StandInCall] = []
    before = getattr(_running, "calls", None)
    _running.calls = calls
    try:
        with _patched(id(scope), _Listening(scope, listener, calls)):
            yield calls
    finally:
        _running.calls = before


@contextlib.contextmanager
def _patched(key: int, entry: _Listening) -> Iterator[None]:
    """Exchange what is exchanged in JAX, as long as anybody needs it."""
    with _patch_lock:
        if not _listening:
            _patch(listening=True)
        _listening[key] = entry
    try:
        yield
    finally:
        with _patch_lock:
            del _listening[key]
            if not _listening:
                _patch(listening=False)


# Transposes of linear primitives

TransposeRule = Callable[..., list[Any] | None]
"""`rule(cotangent, *operands, **params)`: a cotangent or None per operand, as JAX's rules give.

Operands that the equation is linear in are `ad.UndefinedPrimal`. None: JAX's own rule is right.
"""

# JAX's table, the primitive, the rule that stands there while anybody listens, and JAX's own.
_TRANSPOSES: list[tuple[dict[Any, Any], Any, Any, Any]] = []


def take_over_transposes(rules: Mapping[Any, TransposeRule]) -> None:
    """Ask these rules how primitives are transposed, where dims that are listened to occur.

    JAX keeps rules in two tables: in one they return cotangents, in the other they add them to
    accumulators.
    """
    for primitive, rule in rules.items():
        for table, wrap in (
            (_ad.primitive_transposes, _returning),
            (_ad.fancy_transposes, _accumulating),
        ):
            if primitive in table:
                original = table[primitive]
                _TRANSPOSES.append((table, primitive, wrap(rule, original), original))


def _returning(rule: TransposeRule, original: Any) -> Any:
    @functools.wraps(original)
    def transpose(cotangent: Any, *operands: Any, **params: Any) -> Any:
        results = None
        if type(cotangent) is not _interpreters_ad.Zero and _meets_listener(cotangent, operands):
            results = rule(cotangent, *operands, **params)
        return original(cotangent, *operands, **params) if results is None else results

    return transpose


def _accumulating(rule: TransposeRule, original: Any) -> Any:
    @functools.wraps(original)
    def transpose(cotangent: Any, *operands: Any, **params: Any) -> None:
        if (
            type(cotangent) is _interpreters_ad.Zero
            or any(isinstance(x, _ad.NullAccum) for x in operands)
            or not _meets_listener(cotangent, operands)
        ):
            return original(cotangent, *operands, **params)
        given = [
            _ad.UndefinedPrimal(x.aval) if isinstance(x, _ad.GradAccum) else x for x in operands
        ]
        results = rule(cotangent, *given, **params)
        if results is None:
            return original(cotangent, *operands, **params)
        for operand, result in zip(operands, results, strict=True):
            if result is not None:
                operand.accum(result)
        return None

    return transpose


def _meets_listener(cotangent: Any, operands: Sequence[Any]) -> bool:
    """Whether a dim that is listened to in this thread is one of any operand's."""
    avals = [getattr(x, "aval", x) for x in (cotangent, *operands)]
    return any(
        isinstance(dim, _DimExpr) and _listener(dim) is not None
        for aval in avals
        for dim in getattr(aval, "shape", ())
    )


# Bounds of dims

_MOST_STEPS = 1024
"""How many terms JAX may eliminate to find the bounds of one dim."""

_search = threading.local()

SignRule = Callable[..., tuple[float, float] | None]
"""See `shape._decide.sign_bounds`."""

_DECISION = _shape_poly_decision._DecisionByElimination
_JAX_BOUNDS = _shape_poly._bounds_decision
_ELIMINATE = _DECISION._bounds_for_sorted_terms


def take_over_bounds(rule: SignRule) -> None:
    """Ask this rule first what sign a dim has that is listened to, and JAX only within a bound."""

    def bounds(dim: Any, precision: Any) -> tuple[float, float]:
        if not isinstance(dim, _DimExpr) or _listener(dim) is None:
            return _JAX_BOUNDS(dim, precision)
        found, scope = None, dim.scope
        if precision is not _shape_poly.BoundsPrecision.BEST:
            is_strict = precision is _shape_poly.BoundsPrecision.FOR_GEQ0_OR_LT0
            found = rule(_text(dim), _constraints(scope), is_strict=is_strict)
        if found is None:
            _search.steps = 0
            found = _JAX_BOUNDS(dim, precision)
            _search.steps = None
        return found

    def eliminate(self: Any, *args: Any) -> tuple[float, float]:
        steps = getattr(_search, "steps", None)
        if steps is not None:
            if steps >= _MOST_STEPS:
                return -math.inf, math.inf
            _search.steps = steps + 1
        return _ELIMINATE(self, *args)

    _PATCHES[_shape_poly, "_bounds_decision"] = bounds, _JAX_BOUNDS
    _PATCHES[_DECISION, "_bounds_for_sorted_terms"] = eliminate, _ELIMINATE


def _constraints(scope: Any) -> tuple[tuple[str, str], ...]:
    """What holds in a scope: dims, and how they compare with 0."""
    signs = {_shape_poly.Comparator.GEQ: ">=", _shape_poly.Comparator.EQ: "=="}
    return tuple(
        (_ORIGINAL["__str__"](each.diff), signs[each.cmp])
        for each in scope._explicit_constraints
        if isinstance(each.diff, _DimExpr)
    )


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


def named_settings(fingerprint: tuple[Any, ...]) -> dict[str, Any]:
    """The settings that a `config_fingerprint` holds, by the names that JAX gives them.

    One that was registered after it was taken is not there: JAX appends to its context.
    """
    context, are_checked = fingerprint
    named: dict[str, Any] = {}
    for i, (name, value) in enumerate(zip(_names_of_context(), context, strict=False)):
        named[f"{name} (setting {i})" if name in named else name] = value  # users' may share one
    return named | {"jax_debug_nans or jax_debug_infs": are_checked}


def _names_of_context() -> tuple[str, ...]:
    try:
        return _config.trace_context_names()
    except NotImplementedError:  # jaxlib before 0.10.2
        return _names_by_trial()


def _names_by_trial() -> tuple[str, ...]:
    """For each setting of JAX's context the one of a name that changes it, if any does."""
    names = [f"setting {i} of JAX" for i in range(len(_config.trace_context()))]
    mark = object()
    for name, state in (vars(_config) | _config.config_states).items():
        if isinstance(state, _config.config_ext.Config):
            before = state.swap_local(mark)
            try:
                changed = [i for i, value in enumerate(_config.trace_context()) if value is mark]
            finally:
                state.set_local(before)
            for i in changed:
                names[i] = name
    return tuple(names)


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
