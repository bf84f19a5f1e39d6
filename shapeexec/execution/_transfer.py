"""Padding arguments and cutting results, without compiling anything where that is possible.

An eager `jnp.pad` or `x[:n]` compiles a small program per size. Here host memory is padded with
NumPy, and on the CPU a result is cut by a view of its buffer. On an accelerator an array is padded
and cut by a compiled program per shape, kept and counted apart.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from shapeexec import _compat
from shapeexec._errors import ConfigError
from shapeexec.execution._modes import Mode, Positions, number_of, repeated
from shapeexec.execution._placement import Placement, Shape, at_capacity, stacked_sharding
from shapeexec.masking._fill import conform, fill
from shapeexec.shape import _trees

_WIDE = 8  # bytes; narrower dtypes are the same with and without x64


def pad(x: Any, capacity: Shape, *, mode: Mode = "zeros", is_donated: bool = False) -> Any:
    """`x` at `capacity`; a JAX array is returned as it is if it has that shape.

    Padding is as `mode` says, and zero if there is no element to repeat; typed PRNG keys have no
    zero and repeat the last key in any mode.

    If `is_donated`, the padded copy of a JAX array is a JAX array too: its `is_deleted()` says
    whether a graph reused its memory. The result is committed if `x` is, to the sharding that
    `at_capacity` gives. NumPy data is always copied: JAX may read it after the call has returned,
    when the caller may write to it again.
    """
    if type(x) is np.ndarray:  # the most frequent case, so it is tested first
        return _pad_host(x, capacity, mode=mode)
    if not isinstance(x, jax.Array):
        return _pad_host(_on_host(x), capacity, mode=mode)
    if x.shape == capacity:
        return x
    if not _is_on_host(x):
        return _pad_on_devices(x, capacity, mode=mode)
    padded = _pad_host(np.asarray(x), capacity, mode=mode)
    if not (_compat.is_committed(x) or x.weak_type or is_donated):
        return padded
    return _compat.array_from_host(
        padded, dtype=x.dtype, weak_type=x.weak_type, like=x, committed=_compat.is_committed(x)
    )


def pad_of_zeros(capacity: Shape, *, otherwise: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A `pad` to one capacity, with few steps where NumPy data is smaller than that.

    After XLA has run, CPU caches are cold, so each bytecode costs about 10x a hot loop.

    Args:
        capacity: The shape to pad to, with zeros.
        otherwise: Pads all other arguments.
    """
    zeros = np.zeros

    def pad(x: Any) -> Any:
        if type(x) is not np.ndarray or x.itemsize >= _WIDE or x.shape == capacity:
            return otherwise(x)
        padded = zeros(capacity, x.dtype)
        padded[tuple([slice(size) for size in x.shape])] = x
        return padded

    return pad


def check_given_once(
    args: Sequence[Any], kwargs: Mapping[str, Any], *, donated: Sequence[int]
) -> None:
    """Check that no donated array is given at a second place.

    A padded array is a copy at each place, so donating it twice is no error.

    Args:
        args: The positional arguments at capacity.
        kwargs: The others.
        donated: Positions.

    Raises:
        ConfigError: A donated array is given twice, which XLA would refuse.
    """
    own = {
        id(x) for i in donated for x in _trees.leaves(args[i : i + 1]) if isinstance(x, jax.Array)
    }
    every = [x for x in _trees.leaves((list(args), dict(kwargs))) if id(x) in own]
    if len(every) > len(own):
        raise ConfigError(
            "a donated array is given twice.",
            option="donate_argnums",
            got=f"donate_argnums={tuple(donated)}, {every[0].aval}",
            why="a result reuses its memory, which would overwrite the other argument",
            fix="pass a copy (`x.copy()`), or donate neither",
        )


def delete_donated(own: Any, padded: Any) -> None:
    """Delete the donated arrays whose padded copies gave their memory to a graph, as `jax.jit`."""
    for x, copy in zip(_trees.leaves(own), _trees.leaves(padded), strict=True):
        is_copy = isinstance(x, jax.Array) and isinstance(copy, jax.Array) and copy is not x
        if is_copy and copy.is_deleted():
            x.delete()


def cut(x: Any, shape: Shape, *, is_copied: bool = False) -> Any:
    """The front corner of `x` of this shape; `x` itself if that is all of it.

    On the CPU it is a view, unless it `is_copied`: a view must not outlive a donation of `x`.
    """
    if x.shape == shape:
        return x
    if not isinstance(x, jax.Array):  # JAX keeps float0, gradients of integers, on the host
        return x[tuple(map(slice, shape))]
    if not _is_on_host(x):
        return _device_cut(x.shape, shape)(x)
    view = np.asarray(x)[tuple(map(slice, shape))]
    view = view.copy() if is_copied else view
    return _compat.array_from_host(
        view, dtype=x.dtype, weak_type=x.weak_type, like=x, committed=_compat.is_committed(x)
    )


def rebucket(
    x: jax.Array, shape: Shape, *, capacity: Shape, mode: Mode = "zeros", is_donated: bool
) -> Any:
    """The front corner of `x` of this shape, padded anew to `capacity`; see `pad`.

    On an accelerator one program per pair of capacities does it for all shapes.
    """
    if _is_on_host(x):
        own = cut(x, shape, is_copied=True)
        return pad(own, capacity, mode=mode, is_donated=is_donated)
    x, sharding = _placed(x, capacity)
    return _device_rebucket(capacity, mode, sharding=sharding)(x, np.asarray(shape, np.int32))


def _on_host(x: Any) -> np.ndarray:
    if isinstance(x, jax.ShapeDtypeStruct):
        raise ConfigError(
            "a call takes arrays, and was given a jax.ShapeDtypeStruct.",
            got=f"{x}",
            fix="pass an array; `plan`, `explain` and `warmup` take shapes alone",
        )
    return np.asarray(x)


def stack(rows: Sequence[Any], capacity: Shape, *, count: int) -> Any:
    """Arrays, each padded to `capacity`, along a new first axis of `count` entries.

    Missing rows at the end are copies of the first one.
    """
    if all(not isinstance(row, jax.Array) or _is_on_host(row) for row in rows):
        hosts = [_on_host(row) for row in rows]
        stacked = np.zeros((count, *capacity), _canonical(hosts[0].dtype))
        for row, host in enumerate(hosts):
            stacked[(row, *map(slice, host.shape))] = host
        stacked[len(hosts) :] = stacked[0]
        committed = [
            row for row in rows if isinstance(row, jax.Array) and _compat.is_committed(row)
        ]
        if not committed:
            return stacked
        return _compat.array_from_host(
            stacked, dtype=stacked.dtype, weak_type=False, like=committed[0], committed=True
        )
    padded = [row if np.shape(row) == capacity else pad(row, capacity) for row in rows]
    sharding = _compat.committed_sharding(padded[0])
    stacked = None if sharding is None else stacked_sharding(sharding)
    return _device_stack(stacked)(*padded, *[padded[0]] * (count - len(rows)))


def cut_row(x: Any, row: int, *, shape: Shape) -> Any:
    """The front corner of this shape of one row of `x`."""
    if not isinstance(x, jax.Array):
        return x[(row, *map(slice, shape), ...)]
    if not _is_on_host(x):
        return _device_cut_row(x.shape, shape)(x, row)
    view = np.asarray(x)[(row, *map(slice, shape))]
    return _compat.array_from_host(
        view, dtype=x.dtype, weak_type=x.weak_type, like=x, committed=_compat.is_committed(x)
    )


def resident(operand: np.ndarray, placement: Placement) -> Any:
    """A small operand that all runs of a call share, on the device of these runs.

    On an accelerator each run would otherwise transfer it from the host again. It stays on the host
    if arguments are on another device than JAX's default device, because JAX would copy it from
    device to device at each run.

    Args:
        operand: An array of any shape.
        placement: The shardings of the arguments.
    """
    home = {_compat.default_device()}
    if any(at is not None and _compat.devices_of(at) != home for at in placement):
        return operand
    return _compat.device_put(operand)  # uncommitted, like an array of the host


def struct_like(x: Any, shape: Shape) -> jax.ShapeDtypeStruct:
    """The shape, dtype and sharding of `pad(x, shape)`; `x` may be a struct."""
    sharding = _compat.committed_sharding(x)
    if sharding is not None:
        sharding = at_capacity(sharding, shape)
    return jax.ShapeDtypeStruct(
        shape,
        _canonical(x.dtype),
        weak_type=bool(getattr(x, "weak_type", False)),
        sharding=sharding,
    )


def stacked_struct(struct: jax.ShapeDtypeStruct, count: int) -> jax.ShapeDtypeStruct:
    """The shape and dtype of a `stack` of arrays that are at capacity."""
    sharding = None if struct.sharding is None else stacked_sharding(struct.sharding)
    return jax.ShapeDtypeStruct((count, *struct.shape), struct.dtype, sharding=sharding)


def _pad_host(x: np.ndarray, capacity: Shape, *, mode: Mode) -> np.ndarray:
    given = x.dtype
    dtype = given if given.itemsize < _WIDE else _canonical(given)
    if x.shape == capacity and dtype == given:
        return x.copy()
    where = repeated(mode)
    if where is not None and x.size:
        for axis in _missing_axes(x.shape, capacity):
            x = np.take(x, where(np.arange(capacity[axis]), x.shape[axis]), axis=axis)
        return x.astype(dtype)
    number = number_of("zeros" if where is not None else mode, dtype)
    padded = np.full(capacity, number) if number else np.zeros(capacity, dtype)
    padded[tuple(map(slice, x.shape))] = x
    return padded


def _missing_axes(shape: Shape, capacity: Shape) -> list[int]:
    return [a for a, (have, want) in enumerate(zip(shape, capacity, strict=True)) if have < want]


def _is_on_host(x: Any) -> bool:
    """Whether NumPy can read the buffer of an array without a copy."""
    devices = x.sharding.device_set
    if len(devices) != 1 or not isinstance(x.dtype, np.dtype):
        return False  # typed PRNG keys have a dtype of JAX's own
    (device,) = devices
    return device.platform == "cpu"


def _canonical(dtype: Any) -> Any:
    """The dtype that JAX gives to NumPy data: 32 bits for 64, unless x64 is on."""
    return jax.dtypes.canonicalize_dtype(dtype) if _is_wide(dtype) else dtype


def _is_wide(dtype: object) -> bool:
    return isinstance(dtype, np.dtype) and dtype.itemsize >= _WIDE


def _pad_on_devices(x: jax.Array, capacity: Shape, *, mode: Mode) -> jax.Array:
    x, sharding = _placed(x, capacity)
    return device_pad(x.shape, capacity, mode=mode, sharding=sharding)(x)


def _placed(x: jax.Array, capacity: Shape) -> tuple[jax.Array, Any]:
    """`x` where it can be padded, and the sharding of the padded array; None: XLA chooses."""
    sharding = _compat.committed_sharding(x)
    target = None if sharding is None else at_capacity(sharding, capacity)
    if target not in (None, sharding):
        x = _compat.device_put(x, target)  # an axis that the mesh does not divide is not sharded
    return x, target


@functools.lru_cache(maxsize=4096)
def device_pad(
    shape: Shape, capacity: Shape, *, mode: Mode = "zeros", sharding: Any = None
) -> Callable[[jax.Array], jax.Array]:
    """A compiled function that pads arrays of one shape; `sharding` is the result's."""
    missing = [(0, more - have) for have, more in zip(shape, capacity, strict=True)]

    def pad_on_device(x: jax.Array) -> jax.Array:
        if _compat.is_extended(x.dtype):
            return _compat.numpy_pad(x, missing, mode="edge")
        where, padded = repeated(mode), x
        if where is None or not x.size:
            number = number_of(mode if where is None else "zeros", x.dtype)
            padded = lax.pad(x, number, [(lo, hi, 0) for lo, hi in missing])
        else:
            for axis in _missing_axes(shape, capacity):
                at = where(np.arange(capacity[axis]), shape[axis])
                padded = jax.numpy.take(padded, at, axis=axis)
        return _compat.with_weak_type(padded, jax.typeof(x))

    return _compat.jit(pad_on_device, out_shardings=sharding)


@functools.lru_cache(maxsize=4096)
def _device_rebucket(
    capacity: Shape, mode: Mode, *, sharding: Any
) -> Callable[[jax.Array, Any], jax.Array]:
    axes, where = range(len(capacity)), repeated(mode)

    def taken(x: jax.Array, lengths: jax.Array, *, where: Positions) -> jax.Array:
        for axis in axes:
            at, size = lax.iota(np.int32, capacity[axis]), jax.numpy.maximum(lengths[axis], 1)
            x = jax.numpy.take(x, where(at, size), axis=axis)
        return jax.numpy.where(lengths.min() > 0, x, lax.full_like(x, 0))

    def rebucket_on_device(x: jax.Array, lengths: jax.Array) -> jax.Array:
        moved = conform(x, capacity)
        if not _compat.is_extended(x.dtype) and where is not None and axes:
            moved = taken(moved, lengths, where=where)
        elif not _compat.is_extended(x.dtype):
            number = number_of("zeros" if where is not None else mode, x.dtype)
            moved = fill(moved, [lengths[axis] for axis in axes], value=number, axes=axes)
        return _compat.with_weak_type(moved, jax.typeof(x))

    return _compat.jit(rebucket_on_device, out_shardings=sharding)


@functools.lru_cache(maxsize=4096)
def _device_cut(shape: Shape, valid: Shape) -> Callable[[jax.Array], jax.Array]:
    def cut_on_device(x: jax.Array) -> jax.Array:
        return lax.slice(x, [0] * len(shape), list(valid))

    return _compat.jit(cut_on_device)


@functools.lru_cache(maxsize=256)
def _device_stack(sharding: Any) -> Callable[..., jax.Array]:
    def stack_on_device(*rows: jax.Array) -> jax.Array:
        stacked = jax.numpy.stack(rows)
        is_weak = getattr(stacked, "weak_type", False)  # on the host a stack is not weak either
        return lax.convert_element_type(stacked, stacked.dtype) if is_weak else stacked

    return _compat.jit(stack_on_device, out_shardings=sharding)


@functools.lru_cache(maxsize=4096)
def _device_cut_row(shape: Shape, valid: Shape) -> Callable[[jax.Array, int], jax.Array]:
    def cut_on_device(x: jax.Array, row: int) -> jax.Array:
        one = _compat.dynamic_index_in_dim(x, row, keepdims=False)
        return lax.slice(one, [0] * len(valid), list(valid))

    return _compat.jit(cut_on_device)
