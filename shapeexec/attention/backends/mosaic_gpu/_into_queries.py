"""The gradient of the queries, accumulated by the backward kernel for keys.

The two warpgroups share the gradients of their scores in shared memory. A step later, when both
have written them, they are multiplied with the keys: each warpgroup makes its half of dq's columns,
or, where columns are too few to be halved, the warpgroups make all of them in turns. `_totals` adds
up the products. All gradients take 5 products instead of the 7 of two kernels.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array

from shapeexec.attention.backends._base import Ref
from shapeexec.attention.backends.mosaic_gpu import _totals
from shapeexec.attention.backends.mosaic_gpu._branches import branch, when
from shapeexec.attention.backends.mosaic_gpu._config import Config
from shapeexec.attention.backends.mosaic_gpu._copies import (
    clear_copied,
    copy_in_parts,
    copy_in_valid,
)
from shapeexec.attention.backends.mosaic_gpu._gradients import PIECE
from shapeexec.attention.backends.mosaic_gpu._interpreted import InterpretedProducts
from shapeexec.attention.backends.mosaic_gpu._launch import Block
from shapeexec.attention.backends.mosaic_gpu._pallas import pl, plgpu
from shapeexec.attention.backends.mosaic_gpu._products import Products, clear_rows
from shapeexec.attention.backends.mosaic_gpu._scratch import WIDE, Barriers, Shared
from shapeexec.attention.backends.mosaic_gpu._tiles import ROWS, TILE, WARPGROUPS, Item, place_of
from shapeexec.attention.backends.mosaic_gpu._totals import Summand, Total

_SLOTS = 3
"""Slots of gradients of scores: while a warpgroup writes one, the other may read any of the two
before it."""

_MOST_ARRAYS = 8
"""The most arrays of a mask with a number per query that the rings have room for."""


def is_possible(config: Config) -> bool:
    """Whether shared memory and registers suffice."""
    arrays = len(config.rule.of_side(0))
    return max(config.columns) <= 128 and not config.is_biased and arrays <= _MOST_ARRAYS


class Made(NamedTuple):
    """The gradients of the scores of a piece, as a warpgroup has made them.

    Attributes:
        d_score: [keys, queries].
        valid: The number of valid keys; gradients for the other keys may be NaN.
        summand: The summand that they are part of.
        before: The one before.
    """

    d_score: Array
    valid: Array
    summand: Summand
    before: Summand

    def cleared(self) -> Array:
        """`d_score`, with 0 for keys behind the valid length. No product may be under way."""
        clear = functools.partial(clear_rows, self.valid)
        return branch(self.valid < ROWS, clear, lambda x: x, self.d_score)


class NotIntoQueries:
    """Replaces `IntoQueries` if another kernel computes dq: its methods only copy the keys."""

    def copy_keys(
        self, ref: Ref, at: tuple[Any, ...], shared: Ref, ready: Ref, valid: Array | None
    ) -> None:
        """See `IntoQueries`."""
        copy_in_parts(ref, at, shared, ready, valid, parts=1)

    def settle_keys(self, shared: Ref, ready: Ref, valid: Array | None) -> None:
        """See `IntoQueries`."""

    def open(self, item: Item) -> None:
        """See `IntoQueries`."""

    def take(self, made: Made, keys: Ref, then: Callable[[], None]) -> None:
        """See `IntoQueries`."""
        del made, keys
        then()

    def close(self, summand: Summand, keys: Ref) -> None:
        """See `IntoQueries`."""

    def leave(self) -> None:
        """See `IntoQueries`."""


@dataclasses.dataclass(frozen=True)
class IntoQueries:
    """The accumulation of the gradient of the queries from gradients of scores.

    The warpgroups synchronise before they read what both have written: each arrives at a barrier
    when it has written its part, and waits a step later.

    Attributes:
        total: The sum.
        d_scores: [slots, keys, queries] in shared memory, taken in turn.
        met: A barrier at which both warpgroups meet.
        landed: A barrier of the warpgroup that moves memory.
        products: The products.
        warpgroup: The number of this warpgroup.
        crosses_ends: Whether a tile may hold keys behind the valid length.
    """

    total: Total
    d_scores: Ref
    met: Ref
    landed: Ref
    products: Products | InterpretedProducts
    warpgroup: Array
    crosses_ends: bool

    def copy_keys(
        self, ref: Ref, at: tuple[Any, ...], shared: Ref, ready: Ref, valid: Array | None
    ) -> None:
        """Start the copy of an item's keys from the first row of `at` on, if any is valid.

        For the arguments see `copy_in_parts`.
        """
        if valid is None:
            copy_in_parts(ref, at, shared, ready, None, parts=1)
            return
        batch, first, head = at
        place = batch, pl.ds(first, TILE), head
        branch(
            valid > 0,
            lambda: copy_in_valid(ref, place, shared, ready, self.landed, valid),
            lambda: plgpu.barrier_arrive(ready),
        )

    def settle_keys(self, shared: Ref, ready: Ref, valid: Array | None) -> None:
        """Clear the rows that `copy_keys` copied from behind the valid ones: dq sums over all."""
        if valid is None:
            return

        @when(valid > 0)
        def _() -> None:
            clear_copied(self.products, shared, ready, self.landed, valid)

    def open(self, item: Item) -> None:
        """Prepare for the first piece of a head's queries."""
        self.total.open(item)
        plgpu.barrier_arrive(self.met)

    def take(self, made: Made, keys: Ref, then: Callable[[], None]) -> None:
        """Take the gradients of the scores of a piece, and add up those of the piece before.

        Args:
            made: This warpgroup's.
            keys: [keys, columns] in shared memory.
            then: Starts one more product, which may run meanwhile.
        """
        self._share(made)
        self._add(made.before, keys, then)

    def _share(self, made: Made) -> None:
        """Write the gradients of this warpgroup's scores beside those of the other warpgroup.

        Before that it waits until the other one has written those of the piece before.
        """
        place = place_of(made.summand.position, _SLOTS)
        d_score = made.cleared() if self.crosses_ends else made.d_score
        plgpu.barrier_wait(self.met)
        mine = pl.ds(self.warpgroup * ROWS, ROWS)
        self.products.store(self.products.part(self.d_scores, place, mine), d_score)
        plgpu.commit_smem()
        plgpu.barrier_arrive(self.met)

    def _add(self, summand: Summand, keys: Ref, then: Callable[[], None] | None = None) -> None:
        """Make this warpgroup's half of a summand's columns, and start its addition, if it exists.

        Args:
            summand: The summand, of the piece before the one that was shared last.
            keys: [keys, columns] in shared memory.
            then: Starts one more product, which may run while the summand is added.
        """
        self.total.add(self._product(summand, keys, then), summand)

    def close(self, summand: Summand, keys: Ref) -> None:
        """Finish dq after the last piece of a head's queries, whose summand this is."""
        plgpu.barrier_wait(self.met)
        self._add(summand, keys)
        self.total.close(summand.item, self._is_turn)

    def _is_turn(self, piece: int) -> Array:
        """Whether this warpgroup writes a piece, in its columns."""
        del piece
        return self.warpgroup >= 0

    def leave(self) -> None:
        """Wait after the last addition, until the other warpgroup and the TMA unit have read."""
        plgpu.barrier_arrive(self.met)
        plgpu.barrier_wait(self.met)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)

    def _product(
        self, summand: Summand, keys: Ref, then: Callable[[], None] | None = None
    ) -> Array:
        """The gradients of scores times this warpgroup's columns of the keys."""
        d_scores = self.products.part(self.d_scores, _in_turn(summand, _SLOTS))

        def multiplied(part: Ref) -> Array:
            columns = keys.at[:, self.total.columns]
            self.products.add(part, d_scores.transpose((1, 0)), columns)
            if then is None:
                return self.products.read(part)
            then()
            return self.products.read(part, pending=1)

        return self.products.hold(multiplied, self.total.shape)


class IntoQueriesInTurns(IntoQueries):
    """`IntoQueries` for columns that cannot be halved: each summand is made by one warpgroup.

    The other one goes on meanwhile; both meet in each step, as the slots of `d_scores` need it.
    """

    def _add(self, summand: Summand, keys: Ref, then: Callable[[], None] | None = None) -> None:
        """Make a summand after the other product, and add it, if it is this warpgroup's turn."""
        if then is not None:
            then()
            self.products.wait()  # for products must not be under way in a branch

        @when(summand.exists & (_in_turn(summand, WARPGROUPS) == self.warpgroup))
        def _() -> None:
            self.total.add(self._product(summand, keys), summand)

    def _is_turn(self, piece: int) -> Array:
        return self.warpgroup == piece % WARPGROUPS


def _in_turn(summand: Summand, count: int) -> Array:
    """The slot or the warpgroup, of `count`, whose turn a summand is."""
    # Before the first piece of all, the position is -1.
    return place_of(summand.position + count, count)


def into_queries(
    config: Config, block: Block, *, total: Ref, scratch: dict[str, Any]
) -> IntoQueries:
    """The accumulation in a running program, with scratch from `scratch`."""
    warpgroup, scratch = block.warpgroup, dict(scratch)
    own = {name: scratch.pop(name) for name in ("parts", "sums") if name in scratch}
    idle = scratch["d_scores"].at[0, pl.ds(warpgroup * ROWS, ROWS)]
    kind = IntoQueriesInTurns if _totals.in_turns(config) else IntoQueries
    return kind(
        total=_totals.total(config, block, total, met=scratch["met"], idle=idle, **own),
        products=block.products,
        warpgroup=warpgroup,
        crosses_ends=config.overhangs,
        **scratch,
    )


def scratch(config: Config, dtype: Any) -> dict[str, Any]:
    """The scratch that `into_queries` takes."""
    return {
        **_totals.scratch(config, dtype),
        "d_scores": Shared((_SLOTS, TILE, PIECE), dtype, order=WIDE),
        "met": Barriers(arrivals=WARPGROUPS),
        "landed": Barriers(),
    }
