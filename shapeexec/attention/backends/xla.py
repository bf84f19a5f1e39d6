"""Attention by loops of XLA over the lists of active tiles, on any device.

The algorithm is FlashAttention's (Dao, https://arxiv.org/abs/2307.08691, algorithms 1 and 2): for
each query tile a running softmax over its key tiles, and for the gradient one more pass that makes
the weights again. Memory is linear in T and S. Examples and heads that share their lists go
through the loops together. It is made for CPUs, and where no kernel serves; it computes in f32,
or in f64 if the operands are that. Equal calls give equal bits.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shapeexec.attention._positions import block
from shapeexec.attention.backends._base import Residuals, Signature, TileLists, Work, whole_tiles
from shapeexec.attention.backends._softmax import LARGE
from shapeexec.attention.masks import Mask
from shapeexec.attention.masks._value import wide
from shapeexec.attention.masks.scores import Added

Array = Any

_DTYPES = ("float16", "bfloat16", "float32", "float64")
_TILE = 128
_TOGETHER = 64
"""Most examples times heads that go through the loops together: their tiles stay in a cache."""


class _Xla:
    """See the module."""

    name = "xla"

    def tile(self, signature: Signature, mask: Mask) -> tuple[int, int]:
        """No wider than the arrays: nothing asks for a tile of a certain size."""
        return min(_TILE, signature.query_size), min(_TILE, signature.key_size)

    def refuses(self, signature: Signature, mask: Mask, platform: str) -> str | None:
        """It takes any mask on any platform."""
        if signature.dtype in _DTYPES:
            return None
        return f"it computes in {', '.join(_DTYPES)}, and not in {signature.dtype}"

    def forward(
        self, signature: Signature, work: Work, q: Array, k: Array, v: Array, bias: Any
    ) -> tuple[Array, Array]:
        """See `Backend`."""
        setting = _Setting(signature, work, _as_modifier(bias, signature, work))
        arrays = setting.clean(q=q, k=k, v=v)
        results, _ = setting.each_group(_forward_group, arrays, ())
        out = setting.from_rows(results["out"], q.dtype)
        return out, setting.logsumexp(results["logsumexp"])

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
        """See `Backend`. It is deterministic always."""
        q, k, v, bias = residuals.q, residuals.k, residuals.v, residuals.bias
        setting = _Setting(signature, work, _as_modifier(bias, signature, work))
        arrays = setting.clean(q=q, k=k, v=v, out=residuals.out, d_out=d_out)
        out = arrays.pop("out")
        # What a score's gradient loses because weights sum to 1; d logsumexp / d score is a weight.
        delta = (out * arrays["d_out"]).sum(-1)
        if d_logsumexp is not None:
            delta = delta - setting.by_row(d_logsumexp)
        arrays |= {"delta": delta, "logsumexp": setting.finite(residuals.logsumexp)}
        gradient = setting.bias.zero() if bias is not None and bias_gradient else None
        results, gradient = setting.each_group(_backward_group, arrays, gradient)
        return (
            setting.from_rows(results["d_q"], q.dtype),
            setting.from_columns(results["d_k"], k.dtype),
            setting.from_columns(results["d_v"], v.dtype),
            None if gradient is None else setting.bias.result(gradient),
        )


backend = _Xla()


def tangent(
    signature: Signature,
    work: Work,
    arrays: tuple[Array, Array, Array],
    bias: Any,
    out: Array,
    logsumexp: Array,
    tangents: tuple[Array, Array, Array],
    d_bias: Mapping[int, Array],
) -> tuple[Array, Array]:
    """The derivatives of output and log-sum-exp along a direction.

    Args:
        signature: What is static.
        work: The mask and its tiles.
        arrays: q, k and v.
        bias: An array, a score modifier, or None.
        out: The output there.
        logsumexp: The log-sum-exp there.
        tangents: The direction of q, k and v.
        d_bias: The direction of those leaves of the bias that have one, by number.
    """
    setting = _Setting(signature, work, _as_modifier(bias, signature, work))
    named = dict(zip(("q", "k", "v"), arrays, strict=True))
    named |= dict(zip(("d_q", "d_k", "d_v"), tangents, strict=True))
    cleaned = setting.clean(**named, out=out)
    cleaned["logsumexp"] = setting.finite(logsumexp)
    group = functools.partial(_tangent_group, d_bias=setting.bias.directions(d_bias))
    results, _ = setting.each_group(group, cleaned, ())
    d_out = setting.from_rows(results["d_out"], out.dtype)
    return d_out, setting.logsumexp(results["d_logsumexp"])


# A bias, as the loops use it


@dataclasses.dataclass(frozen=True)
class _NoBias:
    """Scores as they are."""

    def apply(self, at: Any, scores: Array) -> Array:
        return scores

    def tangent(self, at: Any, scores: Array, d_scores: Array, d_bias: Any) -> Array:
        return d_scores

    def backward(self, at: Any, scores: Array, d_scores: Array, gradient: Any) -> tuple[Array, Any]:
        return d_scores, gradient

    def directions(self, given: Mapping[int, Array]) -> Any:
        return None


@dataclasses.dataclass(frozen=True)
class _ArrayBias:
    """An array that is added.

    Attributes:
        array: [B or 1, N or 1, T or 1, S or 1], whole tiles of it.
        shape: Its true shape.
        dtype: What the gradient is made in.
    """

    array: Array
    shape: tuple[int, ...]
    dtype: Any

    def apply(self, at: Any, scores: Array) -> Array:
        return scores + at.of_pairs(self.array).astype(scores.dtype)

    def tangent(self, at: Any, scores: Array, d_scores: Array, d_bias: Any) -> Array:
        return d_scores if d_bias is None else d_scores + at.of_pairs(d_bias).astype(scores.dtype)

    def backward(self, at: Any, scores: Array, d_scores: Array, gradient: Any) -> tuple[Array, Any]:
        if gradient is None:
            return d_scores, None
        summed = [axis for axis, length in enumerate(gradient.shape) if length == 1]
        part = d_scores.sum(summed, keepdims=True)
        first = (at.batch.reshape(-1)[0], at.head.reshape(-1)[0], *at.first)
        start = [np.int32(0) if axis in summed else first[axis] for axis in range(4)]
        old = lax.dynamic_slice(gradient, start, part.shape)
        return d_scores, lax.dynamic_update_slice(gradient, old + part, start)

    def directions(self, given: Mapping[int, Array]) -> Any:
        return None if 0 not in given else _pad_to(given[0], self.array.shape)

    @property
    def leaves(self) -> int:
        return 1

    def zero(self) -> Array:
        return jnp.zeros(self.array.shape, self.dtype)

    def result(self, gradient: Array) -> Array:
        return gradient[tuple(map(slice, self.shape))].astype(self.array.dtype)


@dataclasses.dataclass(frozen=True)
class _Modified:
    """What a score modifier makes of scores.

    Attributes:
        modifier: The `ScoreModifier`.
        dtype: What the gradient is made in.
    """

    modifier: Any
    dtype: Any

    def apply(self, at: Any, scores: Array) -> Array:
        return self.modifier.modify(at, scores)

    def tangent(self, at: Any, scores: Array, d_scores: Array, d_bias: Any) -> Array:
        leaves, modify = self._of_floats(at)
        return jax.jvp(modify, (leaves, scores), (d_bias, d_scores))[1]

    def backward(self, at: Any, scores: Array, d_scores: Array, gradient: Any) -> tuple[Array, Any]:
        leaves, modify = self._of_floats(at)
        _, transpose = jax.vjp(modify, leaves, scores)
        d_leaves, d_scores = transpose(d_scores)
        if gradient is not None:
            gradient = jax.tree.map(jnp.add, gradient, d_leaves)
        return d_scores, gradient

    def directions(self, given: Mapping[int, Array]) -> Any:
        leaves = jax.tree.leaves(self.modifier)
        return [
            given.get(i, jnp.zeros_like(leaf)).astype(self.dtype)
            for i, leaf in enumerate(leaves)
            if _is_float(leaf)
        ]

    @property
    def leaves(self) -> int:
        return len(jax.tree.leaves(self.modifier))

    def zero(self) -> list[Array]:
        leaves = jax.tree.leaves(self.modifier)
        return [jnp.zeros(leaf.shape, self.dtype) for leaf in leaves if _is_float(leaf)]

    def result(self, gradient: list[Array]) -> list[Array]:
        of_floats = iter(gradient)
        return [
            next(of_floats).astype(leaf.dtype) if _is_float(leaf) else jnp.zeros_like(leaf)
            for leaf in jax.tree.leaves(self.modifier)
        ]

    def _of_floats(self, at: Any) -> tuple[list[Array], Callable[..., Array]]:
        leaves, structure = jax.tree.flatten(self.modifier)

        def modify(floats: list[Array], scores: Array) -> Array:
            given = iter(floats)
            whole = [next(given) if _is_float(leaf) else leaf for leaf in leaves]
            return jax.tree.unflatten(structure, whole).modify(at, scores)

        return [leaf.astype(self.dtype) for leaf in leaves if _is_float(leaf)], modify


@dataclasses.dataclass(frozen=True)
class _Both:
    """One upon the other; see `Added`.

    Attributes:
        one: Comes first.
        other: An array.
    """

    one: Any
    other: _ArrayBias

    def apply(self, at: Any, scores: Array) -> Array:
        return self.other.apply(at, self.one.apply(at, scores))

    def tangent(self, at: Any, scores: Array, d_scores: Array, d_bias: Any) -> Array:
        d_one, d_other = d_bias
        d_scores = self.one.tangent(at, scores, d_scores, d_one)
        return self.other.tangent(at, scores, d_scores, d_other)

    def backward(self, at: Any, scores: Array, d_scores: Array, gradient: Any) -> tuple[Array, Any]:
        of_one, of_other = (None, None) if gradient is None else gradient
        d_scores, of_other = self.other.backward(at, scores, d_scores, of_other)
        d_scores, of_one = self.one.backward(at, scores, d_scores, of_one)
        return d_scores, None if gradient is None else (of_one, of_other)

    def directions(self, given: Mapping[int, Array]) -> Any:
        last = self.leaves - 1
        of_other = {0: given[last]} if last in given else {}
        of_one = {i: direction for i, direction in given.items() if i != last}
        return self.one.directions(of_one), self.other.directions(of_other)

    def zero(self) -> Any:
        return self.one.zero(), self.other.zero()

    def result(self, gradient: Any) -> Any:
        return self.one.result(gradient[0]), self.other.result(gradient[1])

    @property
    def leaves(self) -> int:
        return self.one.leaves + self.other.leaves


def _is_float(leaf: Array) -> bool:
    return jnp.issubdtype(leaf.dtype, np.floating)


def _as_modifier(bias: Any, signature: Signature, work: Work) -> Any:
    if bias is None:
        return _NoBias()
    dtype = _wide(signature)
    if isinstance(bias, Added):
        return _Both(*(_as_modifier(part, signature, work) for part in (bias.bias, bias.rows)))
    if not hasattr(bias, "shape"):
        return _Modified(bias, dtype)
    whole = [
        length if length == 1 else whole_tiles(length, tile)
        for length, tile in zip(bias.shape[2:], signature.tile, strict=True)
    ]
    return _ArrayBias(_pad_to(bias, (*bias.shape[:2], *whole)), bias.shape, dtype)


def _pad_to(x: Array, shape: tuple[int, ...]) -> Array:
    missing = [(0, want - have) for want, have in zip(shape, x.shape, strict=True)]
    return jnp.pad(x, missing) if any(more for _, more in missing) else x


def _wide(signature: Signature) -> Any:
    return wide(signature.dtype)


# What all groups share


@dataclasses.dataclass(frozen=True)
class _Setting:
    """A call, and how its examples and heads are grouped.

    Inside, arrays are [B, heads, rows, ...] of whole tiles, with zeros for padding.
    """

    signature: Signature
    work: Work
    bias: Any

    @property
    def scale(self) -> Array:
        """What scores are multiplied by."""
        return np.asarray(self.signature.scale, _wide(self.signature))

    @property
    def rows(self) -> int:
        """T, in whole tiles."""
        return whole_tiles(self.signature.query_size, self.signature.tile[0])

    @property
    def columns(self) -> int:
        """S, in whole tiles."""
        return whole_tiles(self.signature.key_size, self.signature.tile[1])

    def clean(self, **arrays: Array) -> dict[str, Array]:
        """Arrays [B, length, heads, size] as [B, heads, rows, size].

        What lies behind the valid lengths becomes 0, for it may be NaN.
        """
        cleaned = {}
        for name, given in arrays.items():
            of_keys = name in ("k", "v", "d_k", "d_v")
            x = given.astype(_wide(self.signature))
            x = _valid(x, self.work.key_sizes if of_keys else self.work.query_sizes, 1)
            whole = self.columns if of_keys else self.rows
            x = _pad_to(x, (x.shape[0], whole, *x.shape[2:]))
            cleaned[name] = x.transpose(0, 2, 1, 3)
        return cleaned

    def by_row(self, x: Array) -> Array:
        """[B, N, T] as [B, N, rows], with 0 behind the valid lengths."""
        x = _valid(x.astype(_wide(self.signature)), self.work.query_sizes, 2)
        return _pad_to(x, (*x.shape[:2], self.rows))

    def finite(self, logsumexp: Array) -> Array:
        """A log-sum-exp that can be subtracted: where it is -inf all weights are 0 anyway."""
        return self.by_row(jnp.where(logsumexp == -np.inf, 0, logsumexp))

    def from_rows(self, x: Array, dtype: Any) -> Array:
        """[B, N, rows, size] as [B, T, N, size], with 0 behind the valid lengths."""
        x = x.transpose(0, 2, 1, 3)[:, : self.signature.query_size].astype(dtype)
        return _valid(x, self.work.query_sizes, 1)  # a weight of 0 makes NaN of a valid NaN

    def from_columns(self, x: Array, dtype: Any) -> Array:
        """[B, K or N, columns, size] as [B, S, K, size]; summed over the heads of a group."""
        signature = self.signature
        if x.shape[1] != signature.key_heads:
            x = x.reshape(x.shape[0], signature.key_heads, -1, *x.shape[2:]).sum(2)
        x = x.transpose(0, 2, 1, 3)[:, : signature.key_size].astype(dtype)
        return _valid(x, self.work.key_sizes, 1)

    def logsumexp(self, x: Array) -> Array:
        """[B, N, rows] as [B, N, T]."""
        return x[:, :, : self.signature.query_size].astype(_wide(self.signature))

    def each_group(
        self, run: Callable[..., Any], arrays: dict[str, Array], carry: Any
    ) -> tuple[dict[str, Array], Any]:
        """The results of all groups of examples and heads that share their lists.

        Args:
            run: `run(group, arrays, carry) -> (results, carry)`.
            arrays: Each [B, heads, ...].
            carry: What is handed from group to group.
        """
        signature, lists = self.signature, self.work.by_query
        by_batch, by_head = (n > 1 for n in lists.counts.shape[:2])
        heads = 1 if by_head else signature.query_heads
        by_batch = by_batch or signature.batch * heads > _TOGETHER
        batch = 1 if by_batch else signature.batch
        counts = (signature.batch // batch, signature.query_heads // heads)
        if counts == (1, 1):
            group = _Group(
                self, lists, np.arange(batch, dtype=np.int32), np.arange(heads, dtype=np.int32)
            )
            return run(group, arrays, carry)

        def one(carry: Any, number: Array) -> tuple[Any, dict[str, Array]]:
            b, n = number // counts[1], number % counts[1]
            group = _Group(
                self,
                _lists_of(lists, b, n),
                b if by_batch else np.arange(batch, dtype=np.int32),
                n if by_head else np.arange(heads, dtype=np.int32),
            )
            own = {
                name: self._part(x, b, n, by_batch=by_batch, by_head=by_head)
                for name, x in arrays.items()
            }
            results, carry = run(group, own, carry)
            return carry, results

        numbers = np.arange(math.prod(counts), dtype=np.int32)
        carry, stacked = lax.scan(one, carry, numbers)

        def whole(x: Array) -> Array:
            x = x.reshape(*counts, *x.shape[1:]).swapaxes(1, 2)
            return x.reshape(signature.batch, -1, *x.shape[4:])

        return jax.tree.map(whole, stacked), carry

    def _part(self, x: Array, b: Array, n: Array, *, by_batch: bool, by_head: bool) -> Array:
        if by_batch:
            x = lax.dynamic_slice_in_dim(x, b, 1, 0)
        if not by_head:
            return x
        signature = self.signature
        is_key = x.shape[1] != signature.query_heads
        group = signature.query_heads // signature.key_heads if is_key else 1
        return lax.dynamic_slice_in_dim(x, n // group, 1, 1)


def _lists_of(lists: TileLists, b: Array, n: Array) -> TileLists:
    own = {
        field.name: _pick(_pick(jnp.asarray(getattr(lists, field.name)), 0, b), 1, n)
        for field in dataclasses.fields(lists)
    }
    return TileLists(**own)


def _pick(x: Array, axis: int, number: Array) -> Array:
    return x if x.shape[axis] == 1 else lax.dynamic_slice_in_dim(x, number, 1, axis)


def _valid(x: Array, sizes: Array, axis: int) -> Array:
    """`x` with 0 behind the valid lengths of an axis; its first one is the batch."""
    length = x.shape[axis]
    if isinstance(sizes, np.ndarray) and (sizes >= length).all():
        return x
    inside = np.arange(length, dtype=np.int32) < sizes[:, None]
    others = [i for i in range(1, x.ndim) if i != axis]
    return jnp.where(jnp.expand_dims(inside, others), x, 0)


# One group


@dataclasses.dataclass(frozen=True)
class _Group:
    """Examples and heads that go through the loops together.

    Attributes:
        setting: The call.
        lists: Their lists, with axes of 1 in front.
        batch: All examples i32[B], or one i32[].
        head: All query heads i32[N], or one i32[].
    """

    setting: _Setting
    lists: TileLists
    batch: Array
    head: Array

    def at(self, row: Array, column: Array) -> Any:
        """The positions of a tile."""
        tile = self.setting.signature.tile
        work = self.setting.work
        return block(
            (row * tile[0], column * tile[1]),
            tile,
            (work.query_sizes, work.key_sizes),
            batch=self.batch,
            head=self.head,
        )

    def each_row(self, body: Callable[..., Any], carry: Any) -> Any:
        """`body(row, carry)` for each query tile."""
        count = self.lists.counts.shape[-1]
        if count == 1:
            return body(np.int32(0), carry)

        def step(row: Array, carry: Any) -> Any:
            return body(jnp.asarray(row, np.int32), carry)  # the loop's are i64 under x64

        return lax.fori_loop(0, count, step, carry)

    def each_tile(self, row: Array, body: Callable[..., Any], carry: Any) -> Any:
        """`body(at, column, is_partial, carry)` for each tile of a row: full ones first."""
        lists = self.lists
        tiles, full, counts = (
            jnp.asarray(x)[0, 0] for x in (lists.tiles, lists.full, lists.counts)
        )

        def step(j: Array, carry: Any, *, is_partial: bool) -> Any:
            column = tiles[row, j]
            return body(self.at(row, column), column, is_partial, carry)

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

    def take_column(self, x: Array, column: Array) -> Array:
        """The rows of a key tile."""
        tile = self.setting.signature.tile[1]
        return lax.dynamic_slice_in_dim(x, column * tile, tile, 2)

    def put_row(self, x: Array, part: Array, row: Array) -> Array:
        """`x` with another query tile."""
        return lax.dynamic_update_slice_in_dim(x, part, row * part.shape[2], 2)

    def add_column(self, x: Array, part: Array, column: Array) -> Array:
        """`x` with more in a key tile."""
        part = self.take_column(x, column) + part
        return lax.dynamic_update_slice_in_dim(x, part, column * part.shape[2], 2)

    def masked(self, at: Any, scores: Array, is_partial: bool) -> Array:
        """Scores with -inf for pairs that are not allowed."""
        if not is_partial:
            return scores
        return jnp.where(self.setting.work.mask.allows(at), scores, -np.inf)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Softmax:
    """A softmax over the scores seen so far.

    Attributes:
        largest: The largest score of each query, [B, N, tile]; -inf if there is none.
        total: The sum of exp(score - largest).
    """

    largest: Array
    total: Array

    @staticmethod
    def over(queries: Array) -> "_Softmax":
        """Nothing seen yet."""
        shape = queries.shape[:3]
        return _Softmax(jnp.full(shape, -np.inf, queries.dtype), jnp.zeros(shape, queries.dtype))

    def add(self, scores: Array) -> tuple[Array, Array, "_Softmax"]:
        """The weights of more scores, what older weights are to be multiplied by, and the sum."""
        largest = jnp.maximum(self.largest, scores.max(-1))
        # With nothing seen yet both are -inf, and their difference would be NaN.
        finite = jnp.where(largest == -np.inf, 0, largest)
        weights = jnp.exp(scores - finite[..., None])
        decay = jnp.exp(self.largest - finite)
        return weights, decay, _Softmax(largest, self.total * decay + weights.sum(-1))


def _normalizer(
    group: _Group, row: Array, q_tile: Array, k: Array, logsumexp: Array
) -> tuple[Array, Array]:
    """What to subtract from scores, and to multiply their exponentials by, to get weights.

    The log-sum-exp and 1; but a large one has lost digits, by a bias of 1e30 all of them, and then
    the softmax is made again.
    """

    def again() -> tuple[Array, Array]:
        def on_tile(at: Any, column: Array, is_partial: bool, softmax: _Softmax) -> _Softmax:
            plain = _times_keys(q_tile, group.take_column(k, column)) * group.setting.scale
            scores = group.masked(at, group.setting.bias.apply(at, plain), is_partial)
            return softmax.add(scores)[2]

        softmax = group.each_tile(row, on_tile, _Softmax.over(q_tile))
        is_empty = softmax.total == 0
        largest = jnp.where(softmax.largest == -np.inf, 0, softmax.largest)
        return largest, 1 / jnp.where(is_empty, 1, softmax.total)

    is_large = jnp.any(abs(logsumexp) > LARGE)
    return lax.cond(is_large, again, lambda: (logsumexp, jnp.ones_like(logsumexp)))


def _forward_group(
    group: _Group, arrays: dict[str, Array], carry: Any
) -> tuple[dict[str, Array], Any]:
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    bias, scale = group.setting.bias, group.setting.scale

    def on_row(row: Array, results: Any) -> Any:
        q_tile = group.take_row(q, row)

        def on_tile(at: Any, column: Array, is_partial: bool, state: Any) -> Any:
            acc, softmax = state
            plain = _times_keys(q_tile, group.take_column(k, column)) * scale
            scores = group.masked(at, bias.apply(at, plain), is_partial)
            weights, decay, softmax = softmax.add(scores)
            acc = acc * decay[..., None] + _times_values(weights, group.take_column(v, column))
            return acc, softmax

        acc = jnp.zeros((*q_tile.shape[:3], v.shape[3]), q.dtype)
        acc, softmax = group.each_tile(row, on_tile, (acc, _Softmax.over(q_tile)))
        is_empty = softmax.total == 0
        out = acc / jnp.where(is_empty, 1, softmax.total)[..., None]
        logsumexp = jnp.where(is_empty, -np.inf, softmax.largest + jnp.log(softmax.total))
        return {
            "out": group.put_row(results["out"], out, row),
            "logsumexp": group.put_row(results["logsumexp"], logsumexp, row),
        }

    results = {
        "out": jnp.zeros((*q.shape[:3], v.shape[3]), q.dtype),
        "logsumexp": jnp.zeros(q.shape[:3], q.dtype),
    }
    return group.each_row(on_row, results), carry


def _backward_group(
    group: _Group, arrays: dict[str, Array], gradient: Any
) -> tuple[dict[str, Array], Any]:
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    bias, scale = group.setting.bias, group.setting.scale

    def on_row(row: Array, carry: Any) -> Any:
        d_q, d_k, d_v, gradient = carry
        q_tile, d_out, logsumexp, delta = (
            group.take_row(arrays[name], row) for name in ("q", "d_out", "logsumexp", "delta")
        )

        shift, factor = _normalizer(group, row, q_tile, k, logsumexp)

        def on_tile(at: Any, column: Array, is_partial: bool, state: Any) -> Any:
            d_q_tile, d_k, d_v, gradient = state
            k_tile, v_tile = group.take_column(k, column), group.take_column(v, column)
            plain = _times_keys(q_tile, k_tile) * scale
            scores = group.masked(at, bias.apply(at, plain), is_partial)
            weights = jnp.exp(scores - shift[..., None]) * factor[..., None]
            d_weights = _times_keys(d_out, v_tile)
            d_scores = weights * (d_weights - delta[..., None])
            d_plain, gradient = bias.backward(at, plain, d_scores, gradient)
            d_q_tile = d_q_tile + _times_values(d_plain, k_tile)
            d_k = group.add_column(d_k, _by_key(d_plain, q_tile, k_tile), column)
            d_v = group.add_column(d_v, _by_key(weights, d_out, v_tile), column)
            return d_q_tile, d_k, d_v, gradient

        state = (jnp.zeros_like(q_tile), d_k, d_v, gradient)
        d_q_tile, d_k, d_v, gradient = group.each_tile(row, on_tile, state)
        return group.put_row(d_q, d_q_tile * scale, row), d_k, d_v, gradient

    carry = (jnp.zeros_like(q), jnp.zeros_like(k), jnp.zeros_like(v), gradient)
    d_q, d_k, d_v, gradient = group.each_row(on_row, carry)
    return {"d_q": d_q, "d_k": d_k * scale, "d_v": d_v}, gradient


def _tangent_group(
    group: _Group, arrays: dict[str, Array], carry: Any, *, d_bias: Any
) -> tuple[dict[str, Array], Any]:
    k, v, d_k, d_v = (arrays[name] for name in ("k", "v", "d_k", "d_v"))
    bias, scale = group.setting.bias, group.setting.scale

    def on_row(row: Array, results: Any) -> Any:
        q_tile, d_q_tile, out, logsumexp = (
            group.take_row(arrays[name], row) for name in ("q", "d_q", "out", "logsumexp")
        )

        shift, factor = _normalizer(group, row, q_tile, k, logsumexp)

        def on_tile(at: Any, column: Array, is_partial: bool, state: Any) -> Any:
            d_acc, d_sum = state
            k_tile = group.take_column(k, column)
            plain = _times_keys(q_tile, k_tile) * scale
            d_plain = _times_keys(d_q_tile, k_tile)
            d_plain = (d_plain + _times_keys(q_tile, group.take_column(d_k, column))) * scale
            scores = group.masked(at, bias.apply(at, plain), is_partial)
            weights = jnp.exp(scores - shift[..., None]) * factor[..., None]
            d_weights = weights * bias.tangent(at, plain, d_plain, d_bias)
            d_acc = d_acc + _times_values(d_weights, group.take_column(v, column))
            d_acc = d_acc + _times_values(weights, group.take_column(d_v, column))
            return d_acc, d_sum + d_weights.sum(-1)

        zeros = (jnp.zeros_like(out), jnp.zeros_like(logsumexp))
        d_acc, d_sum = group.each_tile(row, on_tile, zeros)
        return {
            "d_out": group.put_row(results["d_out"], d_acc - d_sum[..., None] * out, row),
            "d_logsumexp": group.put_row(results["d_logsumexp"], d_sum, row),
        }

    results = {
        "d_out": jnp.zeros_like(arrays["out"]),
        "d_logsumexp": jnp.zeros_like(arrays["logsumexp"]),
    }
    return group.each_row(on_row, results), carry


# Products of [B, N, tile, ...] of queries with [B, K, tile, ...] of keys


def _times_keys(of_queries: Array, of_keys: Array) -> Array:
    """Each query's vector times each key's: [B, N, tile, tile]."""
    grouped = _grouped(of_queries, of_keys.shape[1])
    product = jnp.einsum("bkqd,bksd->bkqs", grouped, of_keys)
    return product.reshape(*of_queries.shape[:3], of_keys.shape[2])


def _times_values(weights: Array, of_keys: Array) -> Array:
    """The keys' vectors, weighted for each query: [B, N, tile, size]."""
    grouped = _grouped(weights, of_keys.shape[1])
    product = jnp.einsum("bkqs,bksd->bkqd", grouped, of_keys)
    return product.reshape(*weights.shape[:3], of_keys.shape[3])


def _by_key(weights: Array, of_queries: Array, of_keys: Array) -> Array:
    """The queries' vectors, weighted for each key and summed over its heads: as `of_keys`."""
    heads = of_keys.shape[1]
    return jnp.einsum("bkqs,bkqd->bksd", _grouped(weights, heads), _grouped(of_queries, heads))


def _grouped(x: Array, heads: int) -> Array:
    """[B, N, tile, ...] with the query heads of each of `heads` key heads below each other."""
    return x.reshape(x.shape[0], heads, -1, x.shape[3])
