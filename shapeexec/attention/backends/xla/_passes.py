"""The forward and backward pass of a group, and its derivative along a direction, tile by tile.

`_groups` groups examples and heads, and visits the tiles.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec.attention.backends._softmax import LARGE, finite
from shapeexec.attention.backends.xla._groups import BY_KEY, Group


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Softmax:
    """A running softmax over the scores so far.

    Attributes:
        largest: The largest score of each query, [B, N, tile]; -inf before the first one.
        total: The sum of exp(score - largest).
    """

    largest: Array
    total: Array

    @staticmethod
    def over(queries: Array) -> "_Softmax":
        """The softmax of no scores."""
        shape = queries.shape[:3]
        return _Softmax(jnp.full(shape, -np.inf, queries.dtype), jnp.zeros(shape, queries.dtype))

    def add(self, scores: Array) -> tuple[Array, Array, "_Softmax"]:
        """Add scores: their weights, the factor that older weights decay by, and the new state."""
        largest = jnp.maximum(self.largest, scores.max(-1))
        # Before the first score both are -inf, and their difference would be NaN.
        shift = finite(largest)
        weights = jnp.exp(scores - shift[..., None])
        decay = jnp.exp(self.largest - shift)
        return weights, decay, _Softmax(largest, self.total * decay + weights.sum(-1))


@dataclasses.dataclass(frozen=True)
class _QueryTile:
    """The queries of one tile, and the computation of their scores.

    Attributes:
        group: The group of the tile.
        row: The number of the tile.
        q: [B, N, tile, H].
    """

    group: Group
    row: Array
    q: Array

    def scaled(self, k_tile: Array) -> Array:
        """Scaled scores of a key tile before bias and mask, [B, N, tile, tile]."""
        return _times_keys(self.q, k_tile) * self.group.setting.scale

    def final(self, at: Any, scaled: Array, *, is_partial: bool) -> Array:
        """Scaled scores with their bias, -inf where the mask does not allow the pair."""
        scores = self.group.setting.bias.apply(at, scaled)
        return self.group.masked(at, scores, is_partial=is_partial)

    def normalizer(self, k: Array, logsumexp: Array) -> tuple[Array, Array]:
        """Shift and factor of the weights: weight = exp(score - shift) * factor.

        These are the log-sum-exp and 1. A large log-sum-exp has lost digits (all of them by a bias
        of 1e30), so there the running softmax over all keys `k` is repeated.
        """

        def again() -> tuple[Array, Array]:
            def on_tile(at: Any, softmax: _Softmax, *, is_partial: bool) -> _Softmax:
                scaled = self.scaled(self.group.take_column(k, at, is_partial=is_partial))
                return softmax.add(self.final(at, scaled, is_partial=is_partial))[2]

            softmax = self.group.each_tile(self.row, on_tile, carry=_Softmax.over(self.q))
            is_empty = softmax.total == 0
            return finite(softmax.largest), 1 / jnp.where(is_empty, 1, softmax.total)

        is_large = jnp.any(abs(logsumexp) > LARGE)
        return lax.cond(is_large, again, lambda: (logsumexp, jnp.ones_like(logsumexp)))


def forward_group(
    group: Group, arrays: dict[str, Array], *, carry: Any
) -> tuple[dict[str, Array], Any]:
    """The output and the log-sum-exp of a group; see `Setting.each_group`."""
    by_tiles = functools.partial(_forward_by_tiles, group, arrays)
    if not group.is_one_full_tile or group.setting.signature.bias is not None:
        return by_tiles(), carry
    results, total = _forward_at_once(group, arrays)
    return lax.cond(jnp.isnan(total).any(), by_tiles, lambda: results), carry


def _forward_by_tiles(group: Group, arrays: dict[str, Array]) -> dict[str, Array]:
    """The results of `forward_group`, tile by tile."""
    q, k, v = arrays["q"], arrays["k"], arrays["v"]

    def on_row(row: Array, results: Any) -> Any:
        queries = _QueryTile(group, row, group.take_row(q, row))

        def on_tile(at: Any, state: Any, *, is_partial: bool) -> Any:
            acc, softmax = state
            k_tile, v_tile = (group.take_column(x, at, is_partial=is_partial) for x in (k, v))
            scores = queries.final(at, queries.scaled(k_tile), is_partial=is_partial)
            weights, decay, softmax = softmax.add(scores)
            acc = acc * decay[..., None] + _times_values(weights, v_tile)
            return acc, softmax

        acc = jnp.zeros((*queries.q.shape[:3], v.shape[3]), q.dtype)
        acc, softmax = group.each_tile(row, on_tile, carry=(acc, _Softmax.over(queries.q)))
        is_empty = softmax.total == 0
        out = acc / jnp.where(is_empty, 1, softmax.total)[..., None]
        logsumexp = jnp.where(is_empty, -np.inf, softmax.largest + jnp.log(softmax.total))
        return {
            "out": group.put_row(results["out"], out, row=row),
            "logsumexp": group.put_row(results["logsumexp"], logsumexp, row=row),
        }

    results = {
        "out": jnp.zeros((*q.shape[:3], v.shape[3]), q.dtype),
        "logsumexp": jnp.zeros(q.shape[:3], q.dtype),
    }
    return group.each_row(on_row, results)


def _forward_at_once(group: Group, arrays: dict[str, Array]) -> tuple[dict[str, Array], Array]:
    """The results of `forward_group` for one full tile, and the sums of weights, [B, N, tile].

    XLA makes one kernel of a softmax in this form, but not of one that may have begun before. Where
    all scores of a query are -inf its sum is NaN, and the results are not those of `forward_group`.
    """
    row: Any = np.int32(0)
    k, v = (
        group.take_column(arrays[name], group.at(row, row), is_partial=False) for name in ("k", "v")
    )
    scores = _QueryTile(group, row, arrays["q"]).scaled(k)
    largest = scores.max(-1)
    weights = jnp.exp(scores - largest[..., None])
    total = weights.sum(-1)
    out = _times_values(weights, v) / total[..., None]
    return {"out": out, "logsumexp": largest + jnp.log(total)}, total


def backward_group(
    group: Group, arrays: dict[str, Array], *, carry: Any
) -> tuple[dict[str, Array], Any]:
    """The gradients of q, k and v of a group, and of the bias; see `Setting.each_group`."""
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    bias, scale = group.setting.bias, group.setting.scale

    def on_row(row: Array, carry: Any) -> Any:
        d_q, d_k, d_v, gradient = carry
        q_tile, d_out, logsumexp, delta = (
            group.take_row(arrays[name], row) for name in ("q", "d_out", "logsumexp", "delta")
        )
        queries = _QueryTile(group, row, q_tile)
        shift, factor = queries.normalizer(k, logsumexp)

        def on_tile(at: Any, state: Any, *, is_partial: bool) -> Any:
            d_q_tile, d_k, d_v, gradient = state
            k_tile, v_tile = (group.take_column(x, at, is_partial=is_partial) for x in (k, v))
            scaled = queries.scaled(k_tile)
            scores = queries.final(at, scaled, is_partial=is_partial)
            weights = jnp.exp(scores - shift[..., None]) * factor[..., None]
            d_weights = _times_keys(d_out, v_tile)
            d_scores = weights * (d_weights - delta[..., None])
            d_scaled, gradient = bias.backward(at, scaled, d_scores=d_scores, gradient=gradient)
            d_q_tile = d_q_tile + _times_values(d_scaled, k_tile)
            d_k = group.add_column(d_k, _by_key(d_scaled, q_tile, of_keys=k_tile), at=at)
            d_v = group.add_column(d_v, _by_key(weights, d_out, of_keys=v_tile), at=at)
            return d_q_tile, d_k, d_v, gradient

        state = (jnp.zeros_like(q_tile), d_k, d_v, gradient)
        d_q_tile, d_k, d_v, gradient = group.each_tile(row, on_tile, carry=state)
        return group.put_row(d_q, d_q_tile * scale, row=row), d_k, d_v, gradient

    zeros = (jnp.zeros_like(q), group.zeros_by_key(k), group.zeros_by_key(v))
    d_q, d_k, d_v, gradient = group.each_row(on_row, (*zeros, carry))
    return {"d_q": d_q, "d_k": d_k * scale, "d_v": d_v}, gradient


def tangent_group(
    group: Group, arrays: dict[str, Array], *, carry: Any, d_bias: Any
) -> tuple[dict[str, Array], Any]:
    """The derivatives of output and log-sum-exp of a group along a direction."""
    k, bias = arrays["k"], group.setting.bias
    by_key = [name for name in BY_KEY if name in arrays]

    def on_row(row: Array, results: Any) -> Any:
        rows = {name: group.take_row(x, row) for name, x in arrays.items() if name not in BY_KEY}
        q_tile, out, logsumexp = rows["q"], rows["out"], rows["logsumexp"]
        queries = _QueryTile(group, row, q_tile)
        shift, factor = queries.normalizer(k, logsumexp)

        def on_tile(at: Any, state: Any, *, is_partial: bool) -> Any:
            d_acc, d_sum = state
            tiles = {x: group.take_column(arrays[x], at, is_partial=is_partial) for x in by_key}
            k_tile, v_tile = tiles["k"], tiles["v"]
            scaled = queries.scaled(k_tile)
            d_scaled = _direction(scaled, rows, tiles=tiles, scale=group.setting.scale)
            scores = queries.final(at, scaled, is_partial=is_partial)
            weights = jnp.exp(scores - shift[..., None]) * factor[..., None]
            d_weights = weights * bias.tangent(at, scaled, d_scores=d_scaled, d_bias=d_bias)
            d_acc = d_acc + _times_values(d_weights, v_tile)
            if "d_v" in tiles:
                d_acc = d_acc + _times_values(weights, tiles["d_v"])
            return d_acc, d_sum + d_weights.sum(-1)

        zeros = (jnp.zeros_like(out), jnp.zeros_like(logsumexp))
        d_acc, d_sum = group.each_tile(row, on_tile, carry=zeros)
        return {
            "d_out": group.put_row(results["d_out"], d_acc - d_sum[..., None] * out, row=row),
            "d_logsumexp": group.put_row(results["d_logsumexp"], d_sum, row=row),
        }

    results = {
        "d_out": jnp.zeros_like(arrays["out"]),
        "d_logsumexp": jnp.zeros_like(arrays["logsumexp"]),
    }
    return group.each_row(on_row, results), carry


def _direction(
    scaled: Array, rows: Mapping[str, Array], *, tiles: Mapping[str, Array], scale: Any
) -> Array:
    """The derivative of scaled scores along the directions `d_q` and `d_k`, if they are given.

    A missing direction is not replaced by zeros: XLA for CPUs (jax 0.10 to 0.12) computes garbage
    for some fusions of such a product, and it would be needless work.
    """
    d_scaled = jnp.zeros_like(scaled)
    if "d_q" in rows:
        d_scaled = d_scaled + _times_keys(rows["d_q"], tiles["k"]) * scale
    if "d_k" in tiles:
        d_scaled = d_scaled + _times_keys(rows["q"], tiles["d_k"]) * scale
    return d_scaled


# Products of [B, N, tile, ...] of queries with [B, K, tile, ...] of keys


def _times_keys(of_queries: Array, of_keys: Array) -> Array:
    """The product of each query's vector with each key's vector: [B, N, tile, tile]."""
    grouped = _grouped(of_queries, of_keys.shape[1])
    product = jnp.einsum("bkqd,bksd->bkqs", grouped, of_keys)
    return product.reshape(*of_queries.shape[:3], of_keys.shape[2])


def _times_values(weights: Array, of_keys: Array) -> Array:
    """The keys' vectors, weighted for each query: [B, N, tile, size]."""
    grouped = _grouped(weights, of_keys.shape[1])
    product = jnp.einsum("bkqs,bksd->bkqd", grouped, of_keys)
    return product.reshape(*weights.shape[:3], of_keys.shape[3])


def _by_key(weights: Array, of_queries: Array, *, of_keys: Array) -> Array:
    """The queries' vectors, weighted for each key and summed over its heads: as `of_keys`."""
    heads = of_keys.shape[1]
    return jnp.einsum("bkqs,bkqd->bksd", _grouped(weights, heads), _grouped(of_queries, heads))


def _grouped(x: Array, heads: int) -> Array:
    """[B, N, tile, ...] with the query heads of each of `heads` key heads below each other."""
    return x.reshape(x.shape[0], heads, -1, x.shape[3])
