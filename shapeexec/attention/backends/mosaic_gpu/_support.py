"""What the kernels for Hopper can run: devices, sizes, and the rules of masks.

It lowers nothing: a mask's rule is traced, and its operations are looked up.
"""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec.attention.backends._base import Signature
from shapeexec.attention.backends.mosaic_gpu._tiles import ROWS, TILE
from shapeexec.attention.masks import Mask

Array = Any

_DTYPES = ("bfloat16", "float16")
_LARGEST_HEAD = 256
_HOPPER = "9.0"
_MULTIPROCESSORS = 132  # of an H100 or H200

# What Mosaic lowers of an accumulator's elements; of booleans it lowers no `not`.
_OPERATIONS = frozenset(
    """add sub mul max min neg abs sign rem div and or xor eq ne lt le gt ge select_n
    broadcast_in_dim convert_element_type squeeze shift_left shift_right_logical
    shift_right_arithmetic clamp jit pjit closed_call iota""".split()
)


def of_device(platform: str) -> str | None:
    """Why it is not for the devices at hand; None if it is."""
    if platform != "cuda":
        return f"it needs a Hopper GPU, and this is {platform}"
    device = _device()
    if device is None:
        return "no GPU is here to ask whether it is a Hopper"
    if device.compute_capability != _HOPPER:
        return f"it needs compute capability {_HOPPER}, and this has {device.compute_capability}"
    return None


def multiprocessors() -> int:
    """How many multiprocessors the device has."""
    return getattr(_device(), "core_count", None) or _MULTIPROCESSORS


@functools.cache
def _device() -> Any:
    try:
        return jax.local_devices(backend="gpu")[0]
    except RuntimeError:
        return None


def of_call(signature: Signature, mask: Mask) -> str | None:
    """Why it cannot run such a call; None if it can."""
    if signature.dtype not in _DTYPES:
        return f"it takes {' and '.join(_DTYPES)}, not {signature.dtype}"
    largest = max(signature.head_size, signature.value_size)
    if largest > _LARGEST_HEAD:
        return f"its heads have at most {_LARGEST_HEAD} elements, not {largest}"
    if signature.bias is not None:
        return "it adds no bias"
    if not signature.scale > 0:
        return f"it finds the largest score before it scales it, and {signature.scale} is not > 0"
    return of_mask(mask)


def of_mask(mask: Mask) -> str | None:
    """Why a mask's rule cannot run inside the kernels; None if it can."""
    try:
        traced, _ = _look_into(mask)
    except _UnsupportedError as error:
        return str(error)
    foreign = {eqn.primitive.name for eqn in _equations(traced.jaxpr)} - _OPERATIONS
    return f"inside a tile it knows no {', '.join(sorted(foreign))}" if foreign else None


def roles(mask: Mask) -> tuple[str, ...]:
    """What the mask asks of each of its arrays: the name of a method of `Positions`, or "".

    Where it asks for several things, the last.
    """
    return _look_into(mask)[1]


def _look_into(mask: Mask) -> tuple[Any, tuple[str, ...]]:
    leaves, structure = jax.tree.flatten(mask)
    probes = [_Probe(leaf.shape, leaf.dtype) for leaf in leaves]
    probed = jax.tree.unflatten(structure, probes)
    traced = jax.make_jaxpr(lambda: probed.allows(_Anywhere()))()
    return traced, tuple(probe.role for probe in probes)


@dataclasses.dataclass
class _Probe:
    """Stands for an array of a mask and remembers what was asked of it."""

    shape: tuple[int, ...]
    dtype: Any
    role: str = ""


def _equations(jaxpr: Any) -> Any:
    inner = (
        _equations(getattr(value, "jaxpr", value))
        for eqn in jaxpr.eqns
        for value in eqn.params.values()
        if hasattr(value, "eqns") or hasattr(value, "jaxpr")
    )
    return itertools.chain(jaxpr.eqns, *inner)


class _UnsupportedError(Exception):
    pass


class _Anywhere:
    """`Positions` of a tile that is nowhere: they show what a mask does with them."""

    batch = head = query_size = key_size = np.int32(0)

    def __init__(self) -> None:
        self.query, self.key = (
            jax.lax.broadcasted_iota(np.int32, (ROWS, ROWS), axis) for axis in (0, 1)
        )

    def of_batch(self, array: _Probe) -> Array:
        """See `Positions`."""
        return self._asked(array, "of_batch", ())

    def of_head(self, array: _Probe) -> Array:
        """See `Positions`."""
        return self._asked(array, "of_head", ())

    def of_queries(self, array: _Probe) -> Array:
        """See `Positions`."""
        return self._asked(array, "of_queries", (ROWS, ROWS))

    def of_keys(self, array: _Probe) -> Array:
        """See `Positions`."""
        return self._asked(array, "of_keys", (ROWS, ROWS))

    def of_pairs(self, array: _Probe) -> Array:
        """See `Positions`."""
        return self._asked(array, "of_pairs", (ROWS, ROWS))

    def of_tile(self, array: _Probe, tile: tuple[int, int]) -> Array:
        """See `Positions`."""
        if any(size % TILE for size in tile):
            raise _UnsupportedError(f"blocks of {tile[0]} x {tile[1]} are no multiples of {TILE}")
        return self._asked(array, "of_tile", ())

    def of_table(self, array: _Probe, index: Array) -> Array:
        """See `Positions`."""
        raise _UnsupportedError("it looks up no tables inside a tile")

    def _asked(self, array: _Probe, role: str, shape: tuple[int, ...]) -> Array:
        if array.dtype.itemsize > 4:
            raise _UnsupportedError(f"a mask holds {array.dtype}, and it takes at most 32 bits")
        array.role = role
        return jnp.zeros(shape, array.dtype)
