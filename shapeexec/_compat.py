"""Every private or version-dependent JAX name the library uses, and nothing else.

An upgrade of JAX is an edit of this file. `tests/test_compat.py` checks that each name exists and
does what is said here on the JAX that is installed. Names serve jax 0.10 to 0.12 unless it says so.
"""

import contextlib
import functools
import os
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from typing import Any

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
from jax.extend import core as _extend_core
from jax.extend import random as _extend_random

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


def expand_hi_primitive(params: dict[str, Any]) -> Callable[..., Any]:
    """The plain JAX function behind a `call_hi_primitive` equation (jax 0.12's `jnp.nonzero`)."""
    return params["_prim"].expand


def sub_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """The jaxprs (closed or open) among an equation's parameters."""
    return iter(_extend_core.jaxprs_in_params(params))


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


def threefry_is_partitionable() -> bool:
    """Which of its two layouts of counters threefry uses: `jax.threefry_partitionable`."""
    return _config.threefry_partitionable.value


# Where a line of code comes from

_JAX_DIR = os.path.dirname(jax.__file__) + os.sep
_OWN_DIR = os.path.dirname(__file__) + os.sep
_NUMPY_DIR = os.path.dirname(np.__file__) + os.sep
_STDLIB_DIR = sysconfig.get_paths()["stdlib"] + os.sep
_SITE_DIRS = tuple(sysconfig.get_paths()[name] + os.sep for name in ("purelib", "platlib"))


def _origin(filename: str) -> str:
    if filename.startswith((_JAX_DIR, _OWN_DIR)):
        return "internal"
    if filename.startswith(_NUMPY_DIR) or filename.startswith("<"):
        return "transparent"
    if filename.startswith(_STDLIB_DIR) and not filename.startswith(_SITE_DIRS):
        return "transparent"
    return "user"


_origin_of: dict[str, str] = {}


def _asked_by_user(depth: int) -> str | None:
    """`file:line` of the nearest frame that speaks for itself, if that is a user's; else None.

    NumPy, the standard library and generated code ask on behalf of the frame below them.
    """
    frame = sys._getframe(depth)
    while frame is not None:
        filename = frame.f_code.co_filename
        origin = _origin_of.get(filename)
        if origin is None:
            origin = _origin_of[filename] = _origin(filename)
        if origin != "transparent":
            return f"{filename}:{frame.f_lineno}" if origin == "user" else None
        frame = frame.f_back
    return None


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


def error_place(error: BaseException) -> str | None:
    """`path/file.py:12` of the last user frame in an exception's traceback."""
    found, step = None, error.__traceback__
    while step is not None:
        filename = step.tb_frame.f_code.co_filename
        if _origin(filename) == "user":
            found = f"{filename}:{step.tb_lineno}"
        step = step.tb_next
    return found


# Comparisons of symbolic dimensions

Decide = Callable[[str, Any, Any, str], Any]
"""`decide(op, left, right, place)`: the answer to a question in user code; None: leave it to JAX.

`op` is `==` or `hash`. An answer is a bool, or NotImplemented: it is for `right` to say. For `hash`
`right` is None and no answer is used, but it may raise TypeError; `jit`, which hashes its static
arguments, then asks again from its own code.
"""

_deciders = threading.local()
_patch_lock = threading.Lock()
_patch_users = 0
_ORIGINAL = {name: getattr(_DimExpr, name) for name in ("__eq__", "__ne__", "__hash__")}


def _decide(op: str, left: Any, right: Any) -> Any:
    decide = getattr(_deciders, "current", None)
    if decide is None:
        return None
    place = _asked_by_user(3)
    return None if place is None else decide(op, left, right, place)


def _eq(self: Any, other: Any) -> Any:
    if _ORIGINAL["__eq__"](self, other):
        return True
    answer = _decide("==", self, other)
    return False if answer is None else answer


def _ne(self: Any, other: Any) -> Any:
    if not _ORIGINAL["__ne__"](self, other):
        return False
    answer = _decide("==", self, other)
    return answer if answer is NotImplemented else not answer


def _bool(self: Any) -> bool:
    is_zero = _decide("==", self, 0)
    return True if is_zero is None else not is_zero


def _hash(self: Any) -> int:
    _decide("hash", self, None)
    return _ORIGINAL["__hash__"](self)


_PATCHED = {"__eq__": _eq, "__ne__": _ne, "__hash__": _hash, "__bool__": _bool}


@contextlib.contextmanager
def decide_dim_comparisons(decide: Decide) -> Iterator[None]:
    """Answer what user code asks of symbolic dims in this thread, where JAX cannot prove it.

    JAX says False to every `==` that it cannot prove, True to `bool(dim)`, and gives a dim a hash
    that no int has: each silently picks one branch for all sizes. Questions that JAX's own code
    asks keep JAX's answers, for its code is written for them.
    """
    global _patch_users  # noqa: PLW0603 - a patch of a class is global, so is its count of users
    with _patch_lock:
        _patch_users += 1
        if _patch_users == 1:
            for name, method in _PATCHED.items():
                setattr(_DimExpr, name, method)
    outer = getattr(_deciders, "current", None)
    _deciders.current = decide
    try:
        yield
    finally:
        _deciders.current = outer
        with _patch_lock:
            _patch_users -= 1
            if _patch_users == 0:
                for name, method in _ORIGINAL.items():
                    setattr(_DimExpr, name, method)
                del _DimExpr.__bool__  # pyright: ignore[reportAttributeAccessIssue]


_INCONCLUSIVE = re.compile(r"comparison '(.+?)' (<=|>=|<|>) '(.+?)' is inconclusive", re.DOTALL)
_UNEVEN = re.compile(r"Cannot divide evenly .* The remainder (.+?) should be 0", re.DOTALL)


def inconclusive_comparison(error: BaseException) -> tuple[str, str, str] | None:
    """`(left, op, right)` of the comparison that JAX's error says is inconclusive, if it is one.

    A division that need not come out even is one as well: of its remainder with 0.
    """
    if not isinstance(error, InconclusiveDimensionOperation):
        return None
    if found := _UNEVEN.search(str(error)):
        return found[1], "==", "0"
    found = _INCONCLUSIVE.search(str(error))
    return None if found is None else (found[1], found[2], found[3])


# The configuration that changes a trace


def config_fingerprint() -> tuple[Any, ...]:
    """What of JAX's configuration changes how a function is traced or compiled.

    Covers x64, matmul precision, numeric promotion, the generator, the mesh and the default
    device: everything JAX itself puts into the key of its caches.
    """
    return _config.trace_context()


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
