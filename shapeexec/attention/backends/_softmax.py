"""The arithmetic of one tile that kernels share: a running softmax, its gradient, biases, products.

All values are arrays inside a kernel; loads and stores are left to the kernels. Source:
FlashAttention-2 (Dao, https://arxiv.org/abs/2307.08691, algorithms 1 and 2).
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

State = tuple[Array, Array, Array]
"""For each query: the sum of weighted values, the largest score and the sum of weights so far."""

LARGE = 128.0
"""From here on a log-sum-exp is rounded by 2**-17 or more, which affects the weights."""


def start(queries: int, value_size: int, *, columns: bool) -> State:
    """The state before the first tile.

    Args:
        queries: Queries of the tile.
        value_size: The head size of the values.
        columns: Whether numbers per query are f32[queries, 1] instead of f32[queries].
    """
    by_query = (queries, 1) if columns else (queries,)
    return (
        jnp.zeros((queries, value_size), np.float32),
        jnp.full(by_query, -np.inf, np.float32),
        jnp.zeros(by_query, np.float32),
    )


def advance(state: State, scores: Array, values: Array) -> State:
    """The state after one more tile.

    Args:
        state: The state so far.
        scores: f32[queries, keys], -inf where a pair is not allowed.
        values: [keys, value size], finite.
    """
    total, old_max, old_sum = state
    columns = old_max.ndim == 2
    new_max = jnp.maximum(old_max, scores.max(1, keepdims=columns))
    shift = finite(new_max)
    weights = jnp.exp(scores - _column(shift))
    decay = jnp.exp(old_max - shift)
    total = total * _column(decay) + times(weights.astype(values.dtype), values)
    return total, new_max, old_sum * decay + weights.sum(1, keepdims=columns)


def finish(state: State) -> tuple[Array, Array]:
    """Output and log-sum-exp; 0 and -inf where nothing was allowed."""
    total, largest, weight = state
    is_empty = weight == 0
    out = total / _column(jnp.where(is_empty, 1, weight))
    return out, jnp.where(is_empty, -np.inf, largest + jnp.log(weight))


def statistics(state: State) -> tuple[Array, Array]:
    """Shift and factor: weights are exp(score - shift) * factor."""
    _, largest, weight = state
    return finite(largest), jnp.where(weight == 0, 0, 1 / weight)


def normalizer(
    logsumexp: Array, bias: Any, *, again: Callable[[], tuple[Array, Array]]
) -> tuple[Array, Array | None]:
    """Shift and factor of the weights; see `weights_again`.

    Without a bias they are the log-sum-exp and 1: scores are rounded as much as their log-sum-exp.

    Args:
        logsumexp: f32, of all queries.
        bias: The bias; None: there is none.
        again: A function that computes the `statistics` of all queries.
    """
    return (logsumexp, None) if bias is None else normalizer_of_biased(logsumexp, again)


def normalizer_of_biased(
    logsumexp: Array, again: Callable[[], tuple[Array, Array]]
) -> tuple[Array, Array]:
    """Shift and factor of the weights, where there is a bias; see `normalizer`.

    They are the log-sum-exp and 1. But a large log-sum-exp has lost digits (with a bias of 1e30
    all of them), so that the weights of a query would not sum to 1; then they are recomputed.
    """
    is_rounded = (abs(logsumexp) > LARGE) & jnp.isfinite(logsumexp)
    return lax.cond(jnp.any(is_rounded), again, lambda: (logsumexp, jnp.ones_like(logsumexp)))


def weights_again(scores: Array, shift: Array, factor: Array | None) -> Array:
    """The weights of the forward pass: 0 where scores are -inf.

    Args:
        scores: f32, of a tile, its queries along any axis.
        shift: Their log-sum-exp, or the shift of `statistics`; f32, broadcasting to the tile.
        factor: The factor of `statistics`; None: 1.
    """
    weights = jnp.exp(scores - finite(shift))
    return weights if factor is None else weights * factor


@dataclasses.dataclass(frozen=True)
class Scores:
    """The scores of a tile.

    Attributes:
        final: Scaled, with bias, and -inf where a pair is not allowed.
        before_bias: Maps the gradient of final scores to the gradient of scaled scores without
            a bias.
    """

    final: Array
    before_bias: Callable[[Array], Array]

    def weights(self, shift: Array, factor: Array | None) -> Array:
        """The weights of the forward pass; see `weights_again`."""
        return weights_again(self.final, shift, factor)


def biased(bias: Any, at: Any, scores: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Scaled scores with their bias, and the function for their gradients.

    Args:
        bias: An array, a score modifier, or None.
        at: The positions of the tile.
        scores: f32, of the tile.

    Returns:
        The biased scores, and a function from their gradient to the gradient of `scores`.
    """
    if bias is None:
        return scores, lambda d_biased: d_biased
    if hasattr(bias, "shape"):
        return scores + at.of_pairs(bias).astype(scores.dtype), lambda d_biased: d_biased
    answers = []
    changed = bias.modify(_Memory(at, answers, is_new=True), scores)

    def back(d_biased: Array) -> Array:
        memory = _Memory(at, answers, is_new=False)
        return jax.vjp(lambda x: bias.modify(memory, x), scores)[1](d_biased)[0]

    return changed, back


class _Memory:
    """`Positions` that record and replay reads: a kernel's loads have no derivative."""

    def __init__(self, at: Any, answers: list[Array], *, is_new: bool) -> None:
        self._at, self._answers, self._is_new = at, answers, is_new
        self._rest = iter(answers)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._at, name)
        if not name.startswith("of_"):
            return found

        def read(*question: Any) -> Array:
            if not self._is_new:
                return next(self._rest)
            self._answers.append(found(*question))
            return self._answers[-1]

        return read


def masked(mask: Any, at: Any, scores: Array) -> Array:
    """The scores, with -inf where the mask does not allow the pair."""
    return jnp.where(mask.allows(at), scores, -np.inf)


def times(left: Array, right: Array) -> Array:
    """[m, k] times [k, n], summed in f32."""
    return _product(left, right, ((1,), (0,)))


def times_transposed(left: Array, right: Array) -> Array:
    """[m, k] times the transpose of [n, k], summed in f32."""
    return _product(left, right, ((1,), (1,)))


def _product(left: Array, right: Array, axes: tuple[tuple[int], tuple[int]]) -> Array:
    # By default tensor cores round f32 to 10 bits.
    precision = lax.Precision.HIGHEST if left.dtype == np.float32 else None
    return lax.dot_general(
        left, right, (axes, ((), ())), precision=precision, preferred_element_type=np.float32
    )


def _column(x: Array) -> Array:
    return x if x.ndim == 2 else x[:, None]


def finite(x: Array) -> Array:
    """A largest score or log-sum-exp that can be subtracted: 0 instead of -inf.

    It is -inf if there are no scores; -inf - -inf would be NaN.
    """
    return jnp.where(x == -np.inf, 0, x)
