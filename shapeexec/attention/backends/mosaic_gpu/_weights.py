"""From scores to weights: powers of 2, less the largest score, with and without a bias.

Without one, scores stay as the products make them, and their scale comes with the power in one
operation. Biases may be infinite, or so large that what is left of a score is in the difference
alone: that is taken first. What scores are, and where they are kept, is the kernels' matter.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from shapeexec.attention.backends import _softmax

Array = Any
Along = Callable[[Array, tuple[int, int]], Array]

_TO_BASE_2 = math.log2(math.e)


@dataclasses.dataclass(frozen=True)
class Weights:
    """Of scores without a bias.

    Attributes:
        scale: What scores are multiplied by before they are taken to a power of e.
    """

    scale: float
    initial = -np.inf  # the largest score before the first one
    empty_statistics = (-np.inf,)  # `statistics` of a query that attends to nothing

    @property
    def masked(self) -> float:
        """What a masked score becomes, before it is scaled.

        It is finite, lest a row without a key in its first tile meets inf - inf, and so low that
        the next allowed score wipes out what it weighed. It is a power of 2: scaled, it is exact,
        and nothing is left when the largest score is taken from it in one operation with that.
        """
        return -(2.0 ** (120 - max(0, math.ceil(math.log2(self._scale)))))

    @property
    def _scale(self) -> float:
        return self.scale * _TO_BASE_2

    def largest(self, scores: Array) -> Array:
        """The largest score of each row, as `weigh` and `decay` take it."""
        return scores.max(axis=1) * self._scale

    def decay(self, before: Array, now: Array) -> Array:
        """What weights are multiplied by when the largest score grows."""
        return jnp.exp2(before - now)

    def weigh(self, scores: Array, along: Along, shift: Array) -> Array:
        """The weights, but for a factor of each query.

        Args:
            scores: f32[rows, columns].
            along: Makes [rows, columns] of what belongs to the queries.
            shift: The largest of `largest`, or what `of_gradient` gives, by query.
        """
        return jnp.exp2(scores * self._scale - along(shift, scores.shape))

    def is_alive(self, largest: Array, weight: Array) -> Array:
        """Whether there was anything to attend to; `weight`: the sum of weights."""
        del weight
        return largest > self.masked * self._scale / 2

    def statistics(self, largest: Array, weight: Array, alive: Array) -> list[Array]:
        """Per query what the forward kernel stores, from which `logsumexp` is made."""
        value = (largest + jnp.log2(weight)) * math.log(2)
        return [jnp.where(alive, value, -jnp.inf)]

    def logsumexp(self, statistics: list[Array]) -> Array:
        """The log-sum-exp f32[B, N, T]; -inf where a query attends to nothing."""
        return statistics[0]

    def of_gradient(self, logsumexp: Array, dead: Array, again: Any) -> list[Array]:
        """What `weigh` takes in the backward pass, f32[B, N, T] each.

        Args:
            logsumexp: f32[B, N, T].
            dead: Whether a query attends to nothing, which makes every weight 0.
            again: Recomputes `statistics`.
        """
        del again
        return [jnp.where(dead, jnp.inf, logsumexp * _TO_BASE_2)]


@dataclasses.dataclass(frozen=True)
class BiasedWeights:
    """Of scores that are scaled already and have a bias; see `Weights`."""

    masked = -np.inf
    # Finite, lest a row of nothing but -inf meets inf - inf.
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
        """See `Weights`; in the backward pass the factor of each query comes too."""
        weights = jnp.exp2((scores - along(shift, scores.shape)) * _TO_BASE_2)
        return weights if factor is None else weights * along(factor, scores.shape)

    def is_alive(self, largest: Array, weight: Array) -> Array:
        """See `Weights`. The largest score, if it is not -inf, weighs 1."""
        del largest
        return weight > 0

    def statistics(self, largest: Array, weight: Array, alive: Array) -> list[Array]:
        """See `Weights`."""
        return [largest, jnp.where(alive, weight, 0.0)]

    def logsumexp(self, statistics: list[Array]) -> Array:
        """See `Weights`."""
        largest, weight = statistics
        return jnp.where(weight > 0, largest + jnp.log(weight), -np.inf)

    def of_gradient(self, logsumexp: Array, dead: Array, again: Any) -> list[Array]:
        """See `Weights`, and `_softmax.normalizer_of_biased`."""

        def shift_and_factor() -> tuple[Array, Array]:
            largest, weight = again()
            return largest, jnp.where(weight > 0, 1 / weight, 0)

        shift, factor = _softmax.normalizer_of_biased(logsumexp, shift_and_factor)
        return [jnp.where(dead, jnp.inf, shift), jnp.where(dead, 0, factor)]
