"""The gradients of scores in device memory: one kernel stores them, another one makes dq of them.

The kernel for keys computes them anyway. So dq is one product more, and not three, and each of its
rows is summed by one program, in the order of the keys: all gradients take 5 products, and have the
same bits in each run. The array grows with the product of the lengths, so heads are processed in
groups, each of which reuses it (`_in_groups`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax import Array

from shapeexec.attention.backends._base import Ref
from shapeexec.attention.backends.mosaic_gpu._config import Config
from shapeexec.attention.backends.mosaic_gpu._gradients import PIECE
from shapeexec.attention.backends.mosaic_gpu._into_queries import Made, NotIntoQueries
from shapeexec.attention.backends.mosaic_gpu._launch import Block
from shapeexec.attention.backends.mosaic_gpu._merged import Kept
from shapeexec.attention.backends.mosaic_gpu._pallas import pl, plgpu
from shapeexec.attention.backends.mosaic_gpu._scratch import WIDE, Shared
from shapeexec.attention.backends.mosaic_gpu._tiles import ROWS, TILE, WARPGROUPS, Item

TALL = 2 * TILE
"""Queries whose dq one program sums, so that it reads the keys half as often."""

ROWS_PER_KEY = TALL // PIECE
"""The rows that a block has for each key."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """The order of the array: what is read together lies together, and what is written at a time.

    It has a block for each head and `TALL` queries, with the pieces of keys one after the other; a
    piece has the 64 keys as rows for the first 64 queries, then for the next ones.

    Attributes:
        is_packed: Whether a block has no keys behind its last query, as in causal masks.
    """

    is_packed: bool

    def shape(self, heads: int, lengths: tuple[int, int], dtype: Any) -> jax.ShapeDtypeStruct:
        """The array for as many query heads."""
        rows = heads * self._keys(lengths[0], lengths[1]) * ROWS_PER_KEY
        return jax.ShapeDtypeStruct((1, rows, 1, PIECE), dtype)

    def _keys(self, queries: Any, keys: Any) -> Any:
        """The keys of all blocks of a head with as many queries, or of those before a query."""
        blocks = (queries + (TALL - 1)) >> (TALL.bit_length() - 1)
        if self.is_packed:
            return blocks * (blocks + 1) * (TALL // 2)
        return blocks * keys

    def row(self, sizes: dict[str, Kept], head: Array, key: Array, query: Array) -> Array:
        """The first row of the pieces that begin at a key and a query, i32[] each.

        Args:
            sizes: See `Block`.
            head: See `head_of`.
            key: A multiple of 64.
            query: A multiple of 64.
        """
        queries, keys = (sizes[name].read() for name in ("T", "S"))
        rest = query & (TALL - 1)
        place = head * self._keys(queries, keys) + self._keys(query - rest, keys) + key
        return place * ROWS_PER_KEY + rest


def head_of(item: Item, config: Config, block: Block, *, group: int) -> Array:
    """The query head of an item, counted from the first one that the array has.

    Args:
        item: The item, with the query head.
        config: The static part of the call.
        block: The program.
        group: The query heads that one head of the program's items stands for.
    """
    head = item.batch * config.signature.query_heads + item.head
    return head - block.sizes["first"].read() * group


@dataclasses.dataclass(frozen=True)
class IntoScores(NotIntoQueries):
    """Stores the gradients of scores, in place of `IntoQueries`: another kernel makes dq of them.

    Attributes:
        config: The static part of the call.
        layout: Where pieces lie in the array.
        block: The program.
        ref: The array; see `Layout`.
        parts: [warpgroups, keys, queries] in shared memory.
    """

    config: Config
    layout: Layout
    block: Block
    ref: Ref
    parts: Ref

    def take(self, made: Made, keys: Ref, then: Callable[[], None]) -> None:
        """Start the store, with 0 for keys behind the valid length, and the other product."""
        del keys
        d_score = made.cleared() if self.config.overhangs else made.d_score
        products = self.block.products
        part = products.part(self.parts, self.block.warpgroup)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        products.store(part, d_score)
        plgpu.commit_smem()
        item, query = made.summand.item, made.summand.first
        head = head_of(item, self.config, self.block, group=self.config.signature.group)
        key = self.block.first_row(item)
        row = self.layout.row(self.block.sizes, head, key, query)
        plgpu.copy_smem_to_gmem(part, self.ref.at[0, pl.ds(row, ROWS), 0])
        then()

    def leave(self) -> None:
        """Wait until the last piece has left shared memory."""
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)


def scratch(dtype: Any) -> dict[str, Any]:
    """The scratch that `IntoScores` takes."""
    return {"parts": Shared((WARPGROUPS, ROWS, PIECE), dtype, order=WIDE)}
