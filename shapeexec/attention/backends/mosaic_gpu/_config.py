"""The static part of a call, and the operands that all kernels take.

`_launch` starts kernels with them; what a tile is, and an item of work, is in `_tiles`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax import Array

from shapeexec.attention.backends._base import Ref, Side, Signature
from shapeexec.attention.backends.mosaic_gpu._divided import divided, divided_by_threads
from shapeexec.attention.backends.mosaic_gpu._elements import Elements
from shapeexec.attention.backends.mosaic_gpu._interpreted import InterpretedProducts
from shapeexec.attention.backends.mosaic_gpu._merged import Size
from shapeexec.attention.backends.mosaic_gpu._products import Products
from shapeexec.attention.backends.mosaic_gpu._rules import Rule
from shapeexec.attention.backends.mosaic_gpu._tiles import (
    TILE,
    WARPGROUPS,
    FirstTiles,
    Lengths,
    ListRefs,
    Packing,
    Sections,
    Table,
)
from shapeexec.attention.backends.mosaic_gpu._weights import BiasedWeights, Weights

ANY_LENGTH = 1 << 20
"""Stands for T or S in a signature: whole tiles, and more of them than any choice looks for."""


@dataclasses.dataclass(frozen=True)
class Config:
    """The static part of a call.

    Attributes:
        signature: The call's signature, with head sizes that the kernels take, and no batch; if
            `any_length` with `ANY_LENGTH`.
        rule: The static part of mask and bias.
        programs: The number of programs that run at a time: one for each multiprocessor.
        any_length: Whether the kernels serve every length in whole tiles: see `_any_length`.
        interpret: Parameters of the interpreter; None on the device.
    """

    signature: Signature
    rule: Rule
    programs: int
    any_length: bool = False
    interpret: Any = None

    @property
    def columns(self) -> tuple[int, int]:
        """The numbers of columns of keys and of values in shared memory."""
        sizes = self.signature.head_size, self.signature.value_size
        key, value = (-(-size // 64) * 64 for size in sizes)
        if key + value > 384:
            # Shared memory has room for the output only if it takes that of the queries.
            key = value = max(key, value)
        return key, value

    def read_columns(self, side: Side) -> int:
        """What a head's rows read; see `Sections.of`."""
        widest, group = max(self.columns), self.signature.group
        return widest * group if side == "key" else max(1, widest // group)

    @property
    def is_biased(self) -> bool:
        """Whether something is added to the scores."""
        return self.signature.bias is not None

    @property
    def weights(self) -> Weights | BiasedWeights:
        """The formulas that turn scores into weights."""
        return BiasedWeights() if self.is_biased else Weights(self.signature.scale)

    @property
    def overhangs(self) -> bool:
        """Whether a tile with work may extend past the last valid key."""
        return self.reads_behind("query")

    def reads_behind(self, side: Side) -> bool:
        """Whether what rows of a side read may extend past the last valid position."""
        columns = self.signature.key_size if side == "query" else self.signature.query_size
        return self.signature.is_ragged or columns % TILE > 0

    @property
    def parts(self) -> int:
        """The number of parts in which a tile is copied: a ragged one's rows may all be padding."""
        return WARPGROUPS if self.signature.is_ragged else 1

    @property
    def crosses_ends(self) -> bool:
        """Whether the mask may allow keys behind the valid length in a tile with work."""
        return self.overhangs and not self.is_biased


@dataclasses.dataclass(frozen=True)
class Sparsity:
    """The block sparsity of a call, as kernels read it from device memory.

    Attributes:
        lists: The tiles.
        query_lengths, key_lengths: Valid lengths, i32[B]; None: all positions are valid.
        leaves: The arrays of mask and bias.
        sizes: B, T, S, the most tiles of a row, and the `Sections`, i32[9].
        longest: The most tiles of a row; `MANY` stands for any number from there on.
    """

    lists: ListRefs | FirstTiles
    query_lengths: Array | None
    key_lengths: Array | None
    leaves: list[Array]
    sizes: Array
    longest: int = dataclasses.field(metadata={"static": True})

    def sections(self) -> Sections:
        """The sections of heads, inside a kernel; nobody asks for those of few queries."""
        return Sections(*(self.sizes[4 + i] for i in range(len(Sections._fields))))

    def column_dtypes(self, config: Config, *, side: Side) -> list[Any]:
        """The dtypes of the arrays of mask and bias with one element per column."""
        return [self.leaves[i].dtype for i in config.rule.of_side(int(side == "query"))]

    def elements(
        self,
        config: Config,
        products: Products | InterpretedProducts,
        *,
        side: Side,
        columns: Sequence[Ref],
        packing: Packing | None = None,
    ) -> Elements:
        """The mask and the bias inside a kernel; see `Elements`."""
        look_up = products.look_up
        return Elements(
            config.rule,
            self.leaves,
            side,
            list(columns),
            look_up,
            config.signature.scale if config.is_biased else None,
            config.weights.masked,
            config.crosses_ends,
            packing,
        )

    def table(
        self,
        config: Config,
        *,
        side: Side,
        in_order: bool,
        sections: Sections | None = None,
    ) -> Table:
        """The table of a kernel whose rows are queries, or keys; see `Table`."""
        signature = config.signature
        sizes: list[Size] = [signature.query_size, signature.key_size]
        if config.any_length:
            sizes = [self.sizes[1 + i] if n == ANY_LENGTH else n for i, n in enumerate(sizes)]
        heads, group, columns = signature.query_heads, 1, signature.key_size
        if side == "key":
            heads, group, columns = signature.key_heads, signature.group, signature.query_size
        return Table(
            lists=self.lists,
            sections=sections,
            heads=heads,
            group=group,
            lengths=Lengths((self.query_lengths, self.key_lengths), (sizes[0], sizes[1])),
            side=side,
            longest=self.longest,
            has_one_column=columns <= TILE,
            overhangs=config.reads_behind(side),
            in_order=in_order,
            divide=divided_by_threads if config.interpret is None else divided,
        )


jax.tree_util.register_dataclass(Sparsity)
