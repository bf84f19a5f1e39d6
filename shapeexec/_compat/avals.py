"""Arrays and their types: an aval is what JAX knows of an array while it traces.

The equations of a jaxpr are in `jaxprs`.
"""

# The functions that this takes of JAX are private, and have no types.
# pyright: reportPrivateUsage=false
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import numpy as np
from jax import dtypes
from jax import numpy as jnp
from jax._src import core as _core
from jax._src import dtypes as _dtypes
from jax._src.lax import lax as _lax
from jax._src.lib import xla_client as _xla_client  # pyright: ignore[reportPrivateImportUsage] - no module exports it

ShapedArray = _core.ShapedArray


def array_from_host(
    view: np.ndarray, *, dtype: Any, weak_type: bool, like: jax.Array, committed: bool
) -> jax.Array:
    """A `jax.Array` of a host array, on the one device of `like`.

    `jax.device_put` takes ten times as long and cannot give a weak type.
    """
    sharding = like.sharding
    aval = _aval(view.shape, dtype, weak_type=weak_type)
    return _xla_client.batched_device_put(
        aval, sharding, [view], list(sharding.device_set), committed
    )


@functools.lru_cache(maxsize=4096)
def _aval(shape: tuple[int, ...], dtype: Any, *, weak_type: bool) -> Any:
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
    """The dtype of a Python or NumPy number in JAX, and whether it is weak, as Python's are.

    `jax.typeof` refuses a Python integer that i32 does not hold.
    """
    python_type = type(value)
    return jax.typeof(python_type() if python_type in (int, float, complex) else value)


number_types: set[type] = set()


def register_numbers(kinds: Mapping[type, type | None], aval: Callable[[Any], Any]) -> None:
    """Let operations of JAX take instances of some classes as scalars.

    Args:
        kinds: By class the type of Python's whose place its instances take; None: arrays.
        aval: What an instance is to JAX. In a function that is traced `instance.as_array()` is
            the operand.
    """
    for kind, python_type in kinds.items():
        number_types.add(kind)
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
    aval: Any, shape: tuple[Any, ...], *, dtype: Any, spec: tuple[Any, ...] | None = None
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


DtypeKind = Literal["bool", "int", "float", "complex", "opaque"]

_KINDS: tuple[tuple[Any, DtypeKind], ...] = (
    (np.bool_, "bool"),
    (np.integer, "int"),
    (np.complexfloating, "complex"),
    (np.floating, "float"),
    (np.generic, "opaque"),
)
"""By NumPy's and JAX's families of dtypes; what all others lack is in the last."""


@functools.cache
def kind_of_dtype(dtype: Any) -> DtypeKind:
    """The kind of elements: a kind of numbers, or opaque, such as typed PRNG keys and float0."""
    return next(kind for family, kind in _KINDS if jnp.issubdtype(dtype, family))


@functools.cache
def is_extended(dtype: Any) -> bool:
    """Whether elements are opaque, such as typed PRNG keys."""
    if isinstance(dtype, np.dtype):  # NumPy has none: most are told at once
        return False
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
    if not isinstance(x, jax.Array):  # what stands for one may say it
        return x.sharding if getattr(x, "committed", False) else None
    return None if isinstance(x, _core.Tracer) or not is_committed(x) else x.sharding
