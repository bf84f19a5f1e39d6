"""Divides a call into groups of examples and heads, and a group into tiles.

The arithmetic of a tile is in `_passes`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec.attention._positions import block
from shapeexec.attention.backends._base import (
    Signature,
    TileLists,
    Work,
    is_valid,
    whole_tiles,
)
from shapeexec.attention.backends._softmax import finite
from shapeexec.attention.backends.xla._bias import pad_to
from shapeexec.attention.masks._value import wide

BY_KEY = ("k", "v", "d_k", "d_v")
"""The arrays whose rows are keys."""

_TOGETHER = 64
"""The most examples times heads in one group, so that their tiles stay in the CPU's cache."""

_SLICED = 16
"""The most pages of a tile that are sliced one by one, the fastest way on a CPU: 1.0 to 1.3 times
the time of one array, where a gather took 1.0 to 1.9 times. More would make a long program."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """A call, and the grouping of its examples and heads.

    In the loops, arrays by query are [B, heads, rows, ...] of whole tiles, with zeros for padding.
    Arrays by key stay as they are, whole tiles of [B, S, heads, size] or pages: a copy of a long
    cache would take longer than a query's attention to it. Their tiles are cleaned of padding when
    they are read.
    """

    signature: Signature
    work: Work
    bias: Any

    @property
    def scale(self) -> np.ndarray:
        """The factor of the scores."""
        return np.asarray(self.signature.scale, wide(self.signature.dtype))

    @property
    def rows(self) -> int:
        """T, in whole tiles."""
        return whole_tiles(self.signature.query_size, self.signature.tile[0])

    @property
    def columns(self) -> int:
        """S, in whole tiles."""
        return whole_tiles(self.signature.key_size, self.signature.tile[1])

    def clean(self, **arrays: Array) -> dict[str, Array]:
        """Arrays [B, T, heads, size] as [B, heads, rows, size]; arrays by key in whole tiles.

        Rows behind the valid lengths become 0, for they may hold NaN.
        """
        cleaned = {}
        for name, x in arrays.items():
            if name in BY_KEY and self.work.pages is not None:
                cleaned[name] = x
            elif name in BY_KEY:
                cleaned[name] = pad_to(x, (x.shape[0], self.columns, *x.shape[2:]))
            else:
                valid = _valid(
                    x.astype(wide(self.signature.dtype)), self.work.query_lengths, axis=1
                )
                whole = pad_to(valid, (x.shape[0], self.rows, *x.shape[2:]))
                cleaned[name] = whole.transpose(0, 2, 1, 3)
        return cleaned

    def by_row(self, x: Array) -> Array:
        """[B, N, T] as [B, N, rows], with 0 behind the valid lengths."""
        x = _valid(x.astype(wide(self.signature.dtype)), self.work.query_lengths, axis=2)
        return pad_to(x, (*x.shape[:2], self.rows))

    def finite(self, logsumexp: Array) -> Array:
        """`by_row` of a log-sum-exp, with 0 for -inf: such a query's weights are all 0 anyway."""
        return self.by_row(finite(logsumexp))

    def from_rows(self, x: Array, dtype: Any) -> Array:
        """[B, N, rows, size] as [B, T, N, size], with 0 behind the valid lengths."""
        x = x.transpose(0, 2, 1, 3)[:, : self.signature.query_size].astype(dtype)
        return _valid(x, self.work.query_lengths, axis=1)  # a weight of 0 makes NaN of a valid NaN

    def from_columns(self, x: Array, dtype: Any) -> Array:
        """[B, K or N, columns, size] as [B, S, K, size]; summed over the heads of a group."""
        signature = self.signature
        if x.shape[1] != signature.key_heads:
            x = x.reshape(x.shape[0], signature.key_heads, -1, *x.shape[2:]).sum(2)
        x = x.transpose(0, 2, 1, 3)[:, : signature.key_size].astype(dtype)
        return _valid(x, self.work.key_lengths, axis=1)

    def logsumexp(self, x: Array) -> Array:
        """[B, N, rows] as [B, N, T]."""
        return x[:, :, : self.signature.query_size].astype(wide(self.signature.dtype))

    def each_group(
        self, run: Callable[..., Any], arrays: dict[str, Array], *, carry: Any
    ) -> tuple[dict[str, Array], Any]:
        """The results of all groups of examples and heads that share their lists.

        Args:
            run: `run(group, arrays, carry=...) -> (results, carry)`.
            arrays: Each [B, heads, ...].
            carry: The carry of the loop over groups.
        """
        signature, lists = self.signature, self.work.by_query
        by_batch, by_head = (n > 1 for n in lists.counts.shape[:2])
        heads = 1 if by_head else signature.query_heads
        by_batch = by_batch or signature.batch * heads > _TOGETHER
        batch = 1 if by_batch else signature.batch
        counts = (signature.batch // batch, signature.query_heads // heads)
        if counts == (1, 1):
            group = Group(
                self, lists, np.arange(batch, dtype=np.int32), np.arange(heads, dtype=np.int32)
            )
            return run(group, arrays, carry=carry)

        def one(carry: Any, number: Array) -> tuple[Any, dict[str, Array]]:
            b, n = number // counts[1], number % counts[1]
            group = Group(
                self,
                _lists_of(lists, b=b, n=n),
                b if by_batch else np.arange(batch, dtype=np.int32),
                n if by_head else np.arange(heads, dtype=np.int32),
            )
            part = functools.partial(self._part, b=b, n=n, by_batch=by_batch, by_head=by_head)
            own = {name: x if name in BY_KEY else part(x) for name, x in arrays.items()}
            results, carry = run(group, own, carry=carry)
            return carry, results

        numbers: Any = np.arange(math.prod(counts), dtype=np.int32)
        carry, stacked = lax.scan(one, carry, numbers)

        def whole(x: Array) -> Array:
            x = x.reshape(*counts, *x.shape[1:]).swapaxes(1, 2)
            return x.reshape(signature.batch, -1, *x.shape[4:])

        return jax.tree.map(whole, stacked), carry

    def _part(self, x: Array, *, b: Array, n: Array, by_batch: bool, by_head: bool) -> Array:
        if by_batch:
            x = lax.dynamic_slice_in_dim(x, b, 1, 0)
        return lax.dynamic_slice_in_dim(x, n, 1, 1) if by_head else x


def _lists_of(lists: TileLists, *, b: Array, n: Array) -> TileLists:
    def own(x: Array) -> Array:
        return _pick(_pick(jnp.asarray(x), 0, number=b), 1, number=n)

    return jax.tree.map(own, lists)


def _pick(x: Array, axis: int, *, number: Array) -> Array:
    return x if x.shape[axis] == 1 else lax.dynamic_slice_in_dim(x, number, 1, axis)


def _as_bits(read: Callable[..., Array], x: Array, first: Any, shape: tuple[int, ...]) -> Array:  # noqa: PLR0917 - as `lax.dynamic_slice`
    """`read(x, first, shape)`, without a copy of `x`.

    XLA's CPU compiler of jax 0.10 slices no bf16: it would convert all keys to f32 in front of the
    loop over tiles. It slices their bits, which the barrier keeps it from copying there.
    """
    if x.dtype.itemsize != 2:
        return read(x, first, shape)
    x, *first = lax.optimization_barrier((x, *first))
    bits = read(lax.bitcast_convert_type(x, np.uint16), first, shape)
    return lax.bitcast_convert_type(bits, x.dtype)


def _valid(x: Array, lengths: Array, *, axis: int) -> Array:
    """`x` with 0 behind the valid lengths of an axis; its first one is the batch."""
    size = x.shape[axis]
    if isinstance(lengths, np.ndarray) and (lengths >= size).all():
        return x
    others = [i for i in range(1, x.ndim) if i != axis]
    return jnp.where(jnp.expand_dims(is_valid(lengths, size), others), x, 0)


@dataclasses.dataclass(frozen=True)
class Group:
    """Examples and heads that go through the loops together.

    Attributes:
        setting: The call.
        lists: The lists of tiles, with leading axes of size 1.
        batch: All examples i32[B], or one i32[].
        head: All query heads i32[N], or one i32[].
    """

    setting: Setting
    lists: TileLists
    batch: Array | np.ndarray
    head: Array | np.ndarray

    def at(self, row: Array, column: Array) -> Any:
        """The positions of a tile."""
        tile = self.setting.signature.tile
        work = self.setting.work
        return block(
            (row * tile[0], column * tile[1]),
            tile,
            lengths=(work.query_lengths, work.key_lengths),
            batch=self.batch,
            head=self.head,
        )

    def each_row(self, body: Callable[..., Any], carry: Any) -> Any:
        """`body(row, carry)` for each query tile."""
        count = self.lists.counts.shape[-1]
        if count == 1:
            return body(np.int32(0), carry)

        def step(row: Array, carry: Any) -> Any:
            return body(jnp.asarray(row, np.int32), carry)  # the loop's numbers are i64 under x64

        return lax.fori_loop(0, count, step, carry)

    @property
    def is_one_full_tile(self) -> bool:
        """Whether all queries and keys are in one tile that is known to need no mask."""
        lists = self.lists
        if not isinstance(lists.full, np.ndarray):
            return False
        return lists.tiles.shape[2:] == (1, 1) and bool(lists.full.all())

    def each_tile(self, row: Array, body: Callable[..., Any], *, carry: Any) -> Any:
        """`body(at, carry, is_partial=...)` for each tile of a row: full ones first."""
        lists = self.lists
        tiles, full, counts = (
            jnp.asarray(x)[0, 0] for x in (lists.tiles, lists.full, lists.counts)
        )

        def step(j: Array, carry: Any, *, is_partial: bool) -> Any:
            return body(self.at(row, tiles[row, j]), carry, is_partial=is_partial)

        known = isinstance(lists.full, np.ndarray) and isinstance(lists.counts, np.ndarray)
        if not known or np.any(lists.full):
            step_full = functools.partial(step, is_partial=False)
            carry = lax.fori_loop(0, full[row], step_full, carry)
        if not known or np.any(lists.counts > lists.full):
            step_partial = functools.partial(step, is_partial=True)
            carry = lax.fori_loop(full[row], counts[row], step_partial, carry)
        return carry

    def take_row(self, x: Array, row: Array) -> Array:
        """The rows of a query tile."""
        tile = self.setting.signature.tile[0]
        return lax.dynamic_slice_in_dim(x, row * tile, tile, 2)

    def take_column(self, x: Array, at: Any, *, is_partial: bool) -> Array:
        """The rows of a key tile of [B, S, K, size]: [B, K, tile, size], 0 behind the length."""
        signature, (batch, key_heads) = self.setting.signature, self._keys_of()
        zero = np.int32(0)
        first = (
            zero if np.ndim(self.batch) else self.batch,
            at.first[1],
            zero if np.ndim(self.head) else self.head // np.int32(signature.group),
            zero,
        )
        shape = (batch, signature.tile[1], key_heads, x.shape[3])
        read = lax.dynamic_slice if self.setting.work.pages is None else self._read_pages
        tile = _as_bits(read, x, first, shape).astype(wide(signature.dtype))
        if is_partial and signature.is_ragged:
            is_valid = (at.key < at.key_length).reshape(-1, signature.tile[1], 1, 1)
            tile = jnp.where(is_valid, tile, 0)
        return tile.transpose(0, 2, 1, 3)

    def _read_pages(self, x: Array, first: Any, shape: tuple[int, ...]) -> Array:  # noqa: PLR0917 - as `lax.dynamic_slice`
        """The result of `lax.dynamic_slice` on all keys, read from the pages that hold them."""
        (batch, key, head, zero), (examples, count, *_) = first, shape
        pages, size = self.setting.work.pages, x.shape[1]
        assert pages is not None
        rows = min(size, count)
        # A tile that overhangs repeats the last page at its end, where the mask allows nothing.
        places = key // size + np.arange(count // rows, dtype=np.int32)
        places = jnp.minimum(places, pages.shape[1] - 1)
        numbers = lax.dynamic_slice_in_dim(pages, batch, examples, 0)[:, places].reshape(-1)

        def one(number: Array) -> Array:
            return lax.dynamic_slice(x, (number, key % size, head, zero), (1, rows, *shape[2:]))

        if numbers.size > _SLICED:
            return jax.vmap(one)(numbers).reshape(shape)
        return jnp.concatenate([one(numbers[i]) for i in range(numbers.size)]).reshape(shape)

    def zeros_by_key(self, x: Array) -> Array:
        """Zeros for the gradient by an array [B, S, K, size]: [B, K, columns, size]."""
        dtype = wide(self.setting.signature.dtype)
        batch, key_heads = self._keys_of()
        return jnp.zeros((batch, key_heads, x.shape[1], x.shape[3]), dtype)

    def _keys_of(self) -> tuple[int, int]:
        signature = self.setting.signature
        batch = signature.batch if np.ndim(self.batch) else 1
        return batch, signature.key_heads if np.ndim(self.head) else 1

    def put_row(self, x: Array, part: Array, *, row: Array) -> Array:
        """`x` with one query tile replaced."""
        return lax.dynamic_update_slice_in_dim(x, part, row * part.shape[2], 2)

    def add_column(self, x: Array, part: Array, *, at: Any) -> Array:
        """`x` with a key tile added to."""
        first, tile = at.first[1], part.shape[2]
        part = lax.dynamic_slice_in_dim(x, first, tile, 2) + part
        return lax.dynamic_update_slice_in_dim(x, part, first, 2)

    def masked(self, at: Any, scores: Array, *, is_partial: bool) -> Array:
        """Scores with -inf for pairs that are not allowed."""
        if not is_partial:
            return scores
        return jnp.where(self.setting.work.mask.allows(at), scores, -np.inf)
