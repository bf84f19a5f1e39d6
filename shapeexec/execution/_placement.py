"""The devices and shardings of the arrays of a call, a part of a graph's key.

A committed array (JAX's word for one that was put on a device on purpose) stays where its sharding
says. An uncommitted array has None: JAX moves it to the devices of the call. `_transfer` moves
arrays.
"""

import functools
from collections.abc import Iterable
from typing import Any

import jax

from shapeexec import _compat
from shapeexec.execution._narrow import is_tuple

Shape = tuple[int, ...]
Placement = tuple[jax.sharding.Sharding | None, ...]
"""Per leaf of the arguments its sharding, None if uncommitted; empty if no leaf is committed."""


def placement_of(leaves: Iterable[Any]) -> Placement:
    """The placement of leaves: arrays, or `jax.ShapeDtypeStruct`s with shardings."""
    placement = tuple(map(_compat.committed_sharding, leaves))
    return placement if any(placement) else ()


@functools.cache
def may_stand_elsewhere() -> bool:
    """Whether there are several devices: JAX compiles one lowered program for each of them."""
    return _compat.local_device_count() > 1


def at_capacity(sharding: Any, capacity: Shape) -> Any:
    """The sharding of an array once it is padded.

    Args:
        sharding: The sharding of the array, on one device or several.
        capacity: The shape of the padded array.

    Returns:
        The same sharding if it divides the capacity. A `NamedSharding` replicates each axis that
        its mesh does not divide. None: XLA chooses.
    """
    if len(sharding.device_set) == 1:
        return sharding
    if isinstance(sharding, jax.sharding.NamedSharding):
        spec = [
            axes if size % _ways(sharding.mesh, axes) == 0 else None
            for size, axes in zip(capacity, sharding.spec, strict=False)
        ]
        is_same = spec == [*sharding.spec]
        return sharding if is_same else _compat.with_spec(sharding, *spec)
    try:
        sharding.shard_shape(capacity)
    except ValueError:  # how JAX says that it does not divide
        return None
    return sharding


def stacked_sharding(sharding: Any) -> Any:
    """The sharding of arrays that are stacked along a new first axis; None: XLA chooses."""
    if len(sharding.device_set) == 1:
        return sharding
    if isinstance(sharding, jax.sharding.NamedSharding):
        return _compat.with_spec(sharding, None, *sharding.spec)
    return None


def _ways(mesh: Any, axes: Any) -> int:
    """The number of parts that a dim is sharded into."""
    ways = 1
    for axis in axes if is_tuple(axes) else (axes,):
        ways *= 1 if axis is None or not isinstance(axis, str) else mesh.shape[axis]
    return ways


def sharding_text(sharding: Any) -> str:
    """A sharding as a person reads it: `cpu:0`, or `P('data',) on data=2 (cpu:0,1)`."""
    devices = sorted(sharding.device_set, key=lambda device: device.id)
    numbers = f"{devices[0].platform}:{','.join(str(device.id) for device in devices)}"
    if isinstance(sharding, jax.sharding.NamedSharding):
        mesh = ", ".join(f"{axis}={size}" for axis, size in sharding.mesh.shape.items())
        return f"{sharding.spec} on {mesh} ({numbers})".replace("PartitionSpec", "P")
    return numbers if len(devices) == 1 else f"{type(sharding).__name__} on {numbers}"
