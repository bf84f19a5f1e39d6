"""The protocol of back ends: what a pass of attention takes and returns. Kernels are elsewhere."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shapeexec.attention.backends._reach import Reach
from shapeexec.attention.masks._base import Mask

Ref = Any
"""A Pallas reference inside a kernel: each of Pallas' back ends has a type of its own for it."""

Side = Literal["query", "key"]
"""Whether rows are of queries, each with its key tiles, or of keys."""


@dataclasses.dataclass(frozen=True)
class Tiling:
    """The division of a call into tiles by a back end.

    Attributes:
        tile: Queries and keys of a tile of the lists.
        piece: Keys of a tile that the kernel takes at a time; None: as many as it takes by itself.
    """

    tile: tuple[int, int]
    piece: int | None = None


@dataclasses.dataclass(frozen=True)
class Signature:
    """The static part of a call; equal signatures run the same kernels.

    Attributes:
        batch, query_size, key_size: B, T and S of the arrays.
        query_heads, key_heads: N, and K, which divides N.
        head_size, value_size: H of q and k, and V of v.
        dtype: The dtype of q, k and v, by name.
        scale: The factor of the scores, before the bias.
        bias: The shape of the bias, 4 axes, each 1 or full; the type of a score modifier; or None.
        is_ragged: Whether there are valid lengths, behind which operands may hold anything.
        tile: Queries and keys of a tile of the lists.
        is_backward: Whether it is the backward pass, which may run on another back end.
        bias_gradient: Whether the backward pass computes the gradient of the bias.
        logsumexp_gradient: Whether the log-sum-exp has a cotangent.
        deterministic: Whether equal calls must give equal gradients, bit by bit.
        page_size: Positions of a page, where k and v are pages; None: they are not.
        piece: See `Tiling`.
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
    page_size: int | None = None
    piece: int | None = None

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.query_heads // self.key_heads


def made(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of a kernel's result.

    Inside `jax.shard_map` Pallas needs the mesh axes over which it varies. There are none, for the
    primitives are lowered with avals that do not carry them.
    """
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=jax.sharding.ManualAxisType())


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TileLists:
    """The tiles with work: the key tiles of each query tile, or the query tiles of each key tile.

    Full tiles come first, then partial ones, each in ascending order; entries behind `counts` are
    unspecified, but valid tile numbers.

    Attributes:
        tiles: i32[B or 1, N or 1, rows, width].
        full: The number of full tiles of each row, i32[B or 1, N or 1, rows].
        counts: The number of tiles of each row, i32[B or 1, N or 1, rows].
        order: The rows, longest first, i32[B or 1, N or 1, rows].
        reach: If the lists are the first tiles of each row, which `reach` and the valid lengths
            tell: a kernel need not read them then. None: unknown.

    Each array may have axes B and N of its own; see `alike`.
    """

    tiles: Array
    full: Array
    counts: Array
    order: Array
    reach: Reach | None = dataclasses.field(default=None, metadata={"static": True})

    def alike(self) -> "TileLists":
        """The lists with the same axes B and N in all arrays."""
        arrays = (self.tiles, self.full, self.counts, self.order)
        shapes = {x.shape[:2] for x in arrays}
        if len(shapes) == 1:
            return self
        lead = np.broadcast_shapes(*shapes)
        xp: Any = np if all(isinstance(x, np.ndarray) for x in arrays) else jnp
        arrays = (xp.broadcast_to(x, (*lead, *x.shape[2:])) for x in arrays)
        return TileLists(*arrays, reach=self.reach)

    @property
    def kinds(self) -> tuple[bool, bool]:
        """Whether there may be full tiles, and partial ones; both if the lists are traced."""
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
        density: The approximate share of tiles with work, known or expected by the caller; None:
            unknown when traced.
        pages: The page number of each `page_size` keys, i32[B, S / page_size], if k and v are
            pages [P, page_size, K, size]; None: they are [B, S, K, size]. All numbers are in
            range, also those behind the valid lengths.
    """

    mask: Mask
    query_lengths: Array
    key_lengths: Array
    by_query: TileLists
    by_key: TileLists
    density: float | None = None
    pages: Array | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Residuals:
    """The operands and results of the forward pass, which the backward pass starts from.

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
    """A size rounded up to whole tiles."""
    return -(-size // tile) * tile


def is_valid(lengths: Any, size: int) -> Any:
    """Which positions of an axis lie before the valid lengths, bool[B, size]."""
    return np.arange(size, dtype=np.int32) < lengths[:, None]


def refusal_of_sizes(
    signature: Signature, dtypes: tuple[str, ...], *, largest_head: int, memory: str
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
        """The numbers of queries and keys in a tile of the lists for this back end."""
        ...

    def refuses(self, signature: Signature, mask: Mask, *, platform: str) -> str | None:
        """Why it cannot run a call, in words that follow "because"; None if it can.

        It is called before `tile`: the signature's tile is not set yet.
        """
        ...

    def forward(
        self, signature: Signature, work: Work, *, q: Array, k: Array, v: Array, bias: Any
    ) -> tuple[Array, Array]:
        """The output [B, T, N, value size], and the log-sum-exp f32[B, N, T] of scaled scores.

        The bias is an array as `signature.bias` says, a `ScoreModifier`, or None.
        """
        ...

    def backward(
        self,
        signature: Signature,
        work: Work,
        *,
        residuals: Residuals,
        d_out: Array,
        d_logsumexp: Array | None,
        deterministic: bool,
        bias_gradient: bool,
    ) -> tuple[Array, Array, Array, Any]:
        """The gradients of q, k, v and bias, in their shapes and dtypes.

        `d_out` and `d_logsumexp` are the cotangents of the results.

        The gradient of the bias has the bias's structure; None if `bias_gradient` is False.
        """
        ...


@runtime_checkable
class PagedBackend(Backend, Protocol):
    """A family of kernels whose forward pass may read pages of keys and values where they lie."""

    def reads_pages(self, signature: Signature) -> bool:
        """Whether it reads pages in this call; else keys and values are gathered into one array.

        It is called before `tile`: the signature's tile is not set yet.
        """
        ...


@runtime_checkable
class SharingBackend(Backend, Protocol):
    """A family of kernels that indexes each array of a list by axes B and N of its own.

    Attributes:
        shares_lists: True. Other kernels get lists that are `TileLists.alike`.
    """

    shares_lists: bool


@runtime_checkable
class TunableBackend(Backend, Protocol):
    """A family of kernels that can divide a call in several ways, of which one may be faster.

    Attributes:
        name: Its name in the table of back ends.
    """

    name: str

    def tilings(self, signature: Signature, mask: Mask) -> tuple[Tiling, ...]:
        """The tilings that it can run, its default first; they differ only in rounding of sums.

        It is called before `tile`: the signature's tile is not set yet.
        """
        ...


@runtime_checkable
class TangentBackend(Backend, Protocol):
    """A family of kernels that computes derivatives along a direction too."""

    def tangent(
        self,
        signature: Signature,
        work: Work,
        *,
        residuals: Residuals,
        tangents: tuple[Array | None, Array | None, Array | None],
        d_bias: Mapping[int, Array],
    ) -> tuple[Array, Array]:
        """The derivatives of output and log-sum-exp along a direction.

        Args:
            signature: The static part of the call.
            work: The mask and its tiles.
            residuals: Operands and results of the forward pass.
            tangents: The direction of q, k and v; None for one that is constant.
            d_bias: The directions of the bias's leaves, by the leaf's number; others are constant.
        """
        ...
