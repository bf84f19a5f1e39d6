"""`HardwareAware`: buckets that fill the tiles of a device's matrix units.

Strategies in general are in `bucketing`.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from shapeexec._errors import ConfigError
from shapeexec.bucketing._bounded import Bounded
from shapeexec.bucketing._checks import as_int
from shapeexec.bucketing._derived import Aligned
from shapeexec.bucketing._fixed import Geometric, Pow2

_TILE_BYTES = {"cpu": 64, "gpu": 128, "tpu": 512}
"""By platform the bytes of the innermost axis that are computed at once: a vector of AVX-512; what
tensor cores of an A100 are most efficient at multiples of; 128 lanes of 32 bits. Not measured here.

Source:
    NVIDIA, "Matrix Multiplication Background User's Guide", for the GPU.
"""
_PLATFORMS = {"cuda": "gpu", "rocm": "gpu"}
_LANES = 128


@dataclasses.dataclass(frozen=True, repr=False)
class HardwareAware(Bounded):
    """Buckets that are multiples of a device's tile, each at most 1.25 times the one before.

    Up to one tile they are powers of two. Past it padding is less than a fourth of the size and one
    tile.

    Attributes:
        dtype: The dtype of what is computed, which a tile has more or fewer elements of.
        device: `"cpu"`, `"gpu"` or `"tpu"`. None: JAX's default back end, when a size is asked for.
        minimum: The smallest bucket. None: 1.
        maximum: The last bucket. None: no end.
        beyond: The strategy of sizes past `maximum`; see `Ladder`. None: they are an error.

    Example:
        >>> HardwareAware("bfloat16", device="gpu").buckets_up_to(500)
        (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 320, 384, 512)
    """

    dtype: str = "float32"
    device: str | None = dataclasses.field(default=None, kw_only=True)

    def _checked(self, name: str, value: object) -> object:
        if name == "dtype":
            return _dtype(value)
        if name != "device":
            return as_int(value, name)
        if value not in _TILE_BYTES:
            raise ConfigError(
                f"device={value!r} is not known.",
                option="device",
                fix=f"one of {', '.join(map(repr, _TILE_BYTES))}, or None for JAX's own",
            )
        return value

    @property
    def tile(self) -> int:
        """How many elements of the dtype a tile has."""
        platform = jax.default_backend() if self.device is None else self.device
        return _tile(_PLATFORMS.get(platform, platform), self.dtype)

    def _raw_bucket(self, size: int) -> int:
        tile = self.tile
        return Pow2().bucket(size) if size <= tile else _aligned(tile).bucket(size)


def _dtype(value: Any) -> str:
    try:
        return jnp.dtype(value).name
    except TypeError:
        raise ConfigError(
            f"dtype={value!r} is not a dtype.", option="dtype", fix='"float32", or jnp.bfloat16'
        ) from None


@functools.cache
def _tile(platform: str, dtype: str) -> int:
    held = _TILE_BYTES.get(platform, _TILE_BYTES["cpu"]) // jnp.dtype(dtype).itemsize
    return min(held, _LANES)


@functools.cache
def _aligned(tile: int) -> Aligned:
    return Aligned(tile, Geometric(1.25))
