"""The weights of scores, exp2(score - shift), with and without a bias.

Without a bias scores stay as the products compute them, and the scale is fused into the exponent. A
bias may be infinite, or so large that only differences of scores are accurate: so they are
subtracted first. The kernels do loads, stores and the loop.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from shapeexec.attention.backends import _softmax
from shapeexec.attention.backends.mosaic_gpu._interpreted import InterpretedProducts
from shapeexec.attention.backends.mosaic_gpu._products import Products, along_rows

Along = Callable[[Array, tuple[int, ...]], Array]

_TO_BASE_2 = math.log2(math.e)


@dataclasses.dataclass(frozen=True)
class Weights:
    """Weights of scores without a bias.

    Attributes:
        scale: The factor of the scores.
    """

    scale: float
    initial = -np.inf  # the largest score before the first one
    empty_statistics = (-np.inf,)  # `statistics` of a query that attends to nothing

    @property
    def masked(self) -> float:
        """The value of a masked score, before the scale.

        It is finite, as a row without a key in its first tile would give inf - inf, and so low that
        weights of masked scores decay to 0 with the next allowed score. As a power of 2 it stays
        exact when it is scaled, so its difference with itself is 0.
        """
        return -(2.0 ** (120 - max(0, math.ceil(math.log2(self._scale)))))

    @property
    def _scale(self) -> float:
        return self.scale * _TO_BASE_2

    def largest(self, scores: Array) -> Array:
        """The largest score of each row, for `weigh` and `decay`."""
        return scores.max(axis=1) * self._scale

    def decay(self, before: Array, now: Array) -> Array:
        """The factor of older weights when the largest score grows."""
        return jnp.exp2(before - now)

    def weigh(self, scores: Array, along: Along, shift: Array) -> Array:
        """The weights, up to a factor per query.

        Args:
            scores: f32[rows, columns].
            along: Broadcasts numbers per query to [rows, columns].
            shift: The largest of `largest`, or what `of_gradient` gives, by query.
        """
        return jnp.exp2(scores * self._scale - along(shift, scores.shape))

    def is_alive(self, largest: Array, weight: Array) -> Array:
        """Whether a query attends to any key; `weight`: the sum of its weights.

        A row with NaN is alive, for what comes of it must be NaN too. It has a NaN weight, but not
        everywhere a NaN maximum.
        """
        return (largest > self.masked * self._scale / 2) | (weight != weight)  # noqa: PLR0124 - NaN

    def statistics(self, largest: Array, weight: Array, alive: Array) -> list[Array]:
        """The numbers per query that the forward kernel stores, and `logsumexp` is made from."""
        value = (largest + jnp.log2(weight)) * math.log(2)
        return [jnp.where(alive, value, -jnp.inf)]

    def logsumexp(self, statistics: list[Array]) -> Array:
        """The log-sum-exp f32[B, N, T]; -inf where a query attends to nothing."""
        return statistics[0]

    def of_parts(self, statistics: list[Array]) -> tuple[Array, Array]:
        """The shift and the sum of weights above it, from `statistics` over some of the keys."""
        (value,) = statistics
        return value, jnp.where(value == -np.inf, 0.0, 1.0)

    def of_all(self, shift: Array, weight: Array) -> list[Array]:
        """The `statistics` over all keys, from their shift and sum; the inverse of `of_parts`."""
        return [jnp.where(weight <= 0, -np.inf, shift + jnp.log(weight))]

    def of_gradient(self, logsumexp: Array, dead: Array, again: Any) -> list[Array]:
        """The arguments of `weigh` in the backward pass, f32[B, N, T] each.

        Args:
            logsumexp: f32[B, N, T].
            dead: Whether a query attends to nothing, which makes every weight 0.
            again: A function that recomputes `statistics`.
        """
        del again
        return [jnp.where(dead, jnp.inf, logsumexp * _TO_BASE_2)]


@dataclasses.dataclass(frozen=True)
class BiasedWeights:
    """Weights of scores that are scaled already and have a bias; see `Weights`."""

    masked = -np.inf
    # Finite, as a row with only -inf would give inf - inf.
    initial = float(np.finfo(np.float32).min)
    empty_statistics = (initial, 0.0)

    def largest(self, scores: Array) -> Array:
        """See `Weights`."""
        return scores.max(axis=1)

    def decay(self, before: Array, now: Array) -> Array:
        """See `Weights`."""
        return jnp.exp2((before - now) * _TO_BASE_2)

    def weigh(
        self, scores: Array, along: Along, shift: Array, factor: Array | None = None
    ) -> Array:
        """See `Weights`; in the backward pass each query also has a factor."""
        weights = jnp.exp2((scores - along(shift, scores.shape)) * _TO_BASE_2)
        return weights if factor is None else weights * along(factor, scores.shape)

    def is_alive(self, largest: Array, weight: Array) -> Array:
        """See `Weights`. The weight of the largest score is 1, if it is not -inf."""
        del largest
        return ~(weight <= 0)

    def statistics(self, largest: Array, weight: Array, alive: Array) -> list[Array]:
        """See `Weights`."""
        return [largest, jnp.where(alive, weight, 0.0)]

    def logsumexp(self, statistics: list[Array]) -> Array:
        """See `Weights`."""
        largest, weight = statistics
        return jnp.where(weight <= 0, -np.inf, largest + jnp.log(weight))

    def of_parts(self, statistics: list[Array]) -> tuple[Array, Array]:
        """See `Weights`."""
        shift, weight = statistics
        return shift, weight

    def of_all(self, shift: Array, weight: Array) -> list[Array]:
        """See `Weights`."""
        return [shift, weight]

    def of_gradient(self, logsumexp: Array, dead: Array, again: Any) -> list[Array]:
        """See `Weights`, and `_softmax.normalizer_of_biased`."""

        def shift_and_factor() -> tuple[Array, Array]:
            largest, weight = again()
            return largest, jnp.where(weight <= 0, 0, 1 / weight)

        shift, factor = _softmax.normalizer_of_biased(logsumexp, shift_and_factor)
        return [jnp.where(dead, jnp.inf, shift), jnp.where(dead, 0, factor)]


def add(
    form: Weights | BiasedWeights,
    products: Products | InterpretedProducts,
    scores: Array,
    *,
    largest: Array,
    weight: Array,
) -> tuple[Array, ...]:
    """Add scores to a running softmax.

    Args:
        form: The formulas of the weights.
        products: The products that made the scores.
        scores: f32[rows, columns].
        largest: The largest score of each row so far; see `Weights.largest`.
        weight: The threads' shares of the sum of each row's weights so far; see
            `Products.shares_of_sums`.

    Returns:
        The weights of the scores; the new largest score and shares; the decay of older weights.
    """
    new = jnp.maximum(largest, form.largest(scores))
    decay = form.decay(largest, new)
    weights = form.weigh(scores, along_rows, new)
    return weights, new, weight * decay + products.shares_of_sums(weights), decay
