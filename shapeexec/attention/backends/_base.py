"""What a back end of attention is handed, and what it gives back."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from shapeexec.attention.masks._base import Mask

Array = Any


@dataclasses.dataclass(frozen=True)
class Signature:
    """What is static about a call; equal signatures run the same kernels.

    Attributes:
        batch, query_size, key_size: Of the arrays: [B, T, ...] and [B, S, ...].
        query_heads, key_heads: N, and K, which divides N.
        head_size, value_size: H of q and k, and of v.
        dtype: Of q, k and v, by name.
        scale: What scores are multiplied by, before the bias.
        bias: The shape of the bias, 4 axes, each 1 or full; the type of a score modifier; or None.
        is_ragged: Whether there are valid lengths, behind which operands may hold anything.
        tile: Queries and keys of a tile of the lists.
        is_backward: Whether the gradients are asked for, and not the output: each may be made by
            another back end.
        bias_gradient: Whether that of the bias is among them.
        logsumexp_gradient: Whether there is a gradient of the log-sum-exp to go back from.
        deterministic: Whether equal calls must give equal gradients, bit by bit.
    """

    batch: int
    query_size: int
    key_size: int
    query_heads: int
    key_heads: int
    head_size: int
    value_size: int
    dtype: str
    scale: float
    bias: tuple[int, int, int, int] | type | None
    is_ragged: bool
    tile: tuple[int, int]
    is_backward: bool = False
    bias_gradient: bool = False
    logsumexp_gradient: bool = False
    deterministic: bool = True


def made(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    """What a kernel makes.

    Inside of `jax.shard_map` Pallas asks over which axes that varies; over none, for operands come
    without such knowledge there.
    """
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=jax.sharding.ManualAxisType())


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TileLists:
    """Which tiles hold work: for each query tile its key tiles (or for each key tile its queries).

    The full ones come first, then the partial ones, each in ascending order; what lies behind
    `counts` is unspecified but a valid tile number.

    Attributes:
        tiles: i32[B or 1, N or 1, rows, width].
        full: How many of each row are full, i32[B or 1, N or 1, rows].
        counts: How many there are in all, of the same shape.
        order: The rows, longest first: i32[B or 1, N or 1, rows].
    """

    tiles: Array
    full: Array
    counts: Array
    order: Array

    @property
    def kinds(self) -> tuple[bool, bool]:
        """Whether there may be full tiles, and partial ones: what is not known may be there."""
        if not isinstance(self.full, np.ndarray) or not isinstance(self.counts, np.ndarray):
            return True, True
        return bool(self.full.any()), bool((self.counts > self.full).any())


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Work:
    """The mask of a call, and the tiles that it leaves.

    Attributes:
        mask: For the elements of partial tiles; valid lengths are part of it.
        query_lengths, key_lengths: Valid lengths, i32[B]. Behind them operands may hold anything,
            NaN too, and results are 0 up to the end of the array.
        by_query: For each query tile its key tiles.
        by_key: For each key tile its query tiles.
        density: About the share of tiles that hold work; None: it is not known when traced.
    """

    mask: Mask
    query_lengths: Array
    key_lengths: Array
    by_query: TileLists
    by_key: TileLists
    density: float | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Residuals:
    """What the forward pass was given and what it made: what the backward pass starts from.

    Attributes:
        q, k, v, bias: See `Backend.forward`.
        out, logsumexp: Its results.
    """

    q: Array
    k: Array
    v: Array
    bias: Any
    out: Array
    logsumexp: Array


def whole_tiles(size: int, tile: int) -> int:
    """A size made up to whole tiles."""
    return -(-size // tile) * tile


def is_valid(lengths: Array, size: int) -> Array:
    """Which positions of an axis lie before the valid lengths: bool[B, size]."""
    return np.arange(size, dtype=np.int32) < lengths[:, None]


def refusal_of_sizes(
    signature: Signature, dtypes: tuple[str, ...], largest_head: int, memory: str
) -> str | None:
    """Why a family of kernels cannot take operands of this dtype or with heads of this size."""
    if signature.dtype not in dtypes:
        return f"it computes in {', '.join(dtypes)}, and not in {signature.dtype}"
    largest = max(signature.head_size, signature.value_size)
    if largest > largest_head:
        return f"tiles of head size {largest} do not fit into {memory}, {largest_head} do"
    return None


class Backend(Protocol):
    """A family of kernels.

    A row with nothing to attend to gives 0, a log-sum-exp of -inf, and gradients of 0.
    """

    def tile(self, signature: Signature, mask: Mask) -> tuple[int, int]:
        """The queries and keys of a tile that suit it best; what the lists will be made of."""
        ...

    def refuses(self, signature: Signature, mask: Mask, platform: str) -> str | None:
        """Why it cannot run such a call, in words that follow "because"; None if it can.

        It is asked before `tile`: the signature's tile says nothing yet.
        """
        ...

    def forward(
        self, signature: Signature, work: Work, q: Array, k: Array, v: Array, bias: Any
    ) -> tuple[Array, Array]:
        """The output [B, T, N, value size], and the log-sum-exp f32[B, N, T] of scaled scores.

        The bias is an array as `signature.bias` says, a `ScoreModifier`, or None.
        """
        ...

    def backward(
        self,
        signature: Signature,
        work: Work,
        residuals: Residuals,
        d_out: Array,
        d_logsumexp: Array | None,
        *,
        deterministic: bool,
        bias_gradient: bool,
    ) -> tuple[Array, Array, Array, Any]:
        """The gradients of q, k, v and bias, in their shapes and dtypes.

        `d_out` and `d_logsumexp` are those of the results.

        That of the bias is of the bias's structure; None if `bias_gradient` is False.
        """
        ...


@runtime_checkable
class TangentBackend(Backend, Protocol):
    """A family of kernels that makes derivatives along a direction too."""

    def tangent(
        self,
        signature: Signature,
        work: Work,
        residuals: Residuals,
        tangents: tuple[Array, Array, Array],
        d_bias: Mapping[int, Array],
    ) -> tuple[Array, Array]:
        """The derivatives of output and log-sum-exp along a direction.

        Args:
            signature: What is static.
            work: The mask and its tiles.
            residuals: What the forward pass was given and made.
            tangents: The direction of q, k and v.
            d_bias: The direction of those leaves of the bias that have one, by number.
        """
        ...
