"""Score modifiers: functions of scores and positions, such as ALiBi and biases by distance.

They are not masks: a modifier changes scores and forbids no pair.
"""

import abc
import dataclasses
import math
import operator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec._errors import ConfigError
from shapeexec.attention.masks._base import Array, Positions
from shapeexec.attention.masks._value import Value, as_array, set_field, wide


class ScoreModifier(Value, abc.ABC):
    """Changes scores by their positions. A frozen dataclass (`eq=False`), as masks are."""

    @abc.abstractmethod
    def modify(self, at: Positions, scores: Array) -> Array:
        """The modified scores of a tile; `scores` are f32 and already scaled."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ALiBi(ScoreModifier):
    """A penalty by distance: `scores - slope * abs(key - query)`.

    Attributes:
        slopes: float[N] or float[B or 1, N or 1], one for each query head; see `for_heads`. They
            are kept as f32, or as f64 where JAX has f64 enabled.

    Source: Press, Smith, Lewis: Train Short, Test Long (2022), section 3.

    Example:
        >>> x = np.zeros((1, 3, 2, 4), np.float32)
        >>> sx.dot_product_attention(x, x, x, ALiBi.for_heads(2)).shape
        (1, 3, 2, 4)
    """

    axes: ClassVar = {"slopes": "BN"}

    slopes: Array

    def __post_init__(self) -> None:
        fix = "pass a float for each query head, or ALiBi.for_heads(N)"
        slopes = as_array(self.slopes, "slopes", fix=fix)
        if slopes.ndim not in (1, 2) or not jnp.issubdtype(slopes.dtype, jnp.floating):
            raise ConfigError(
                f"slopes is {slopes.dtype}{list(slopes.shape)}, not floats of 1 or 2 axes.",
                option="slopes",
                fix=fix,
            )
        dtype = jax.dtypes.canonicalize_dtype(wide(slopes.dtype))
        set_field(self, "slopes", slopes.astype(dtype)[(None,) * (2 - slopes.ndim)])

    @classmethod
    def for_heads(cls, heads: int) -> "ALiBi":
        """Make the slopes of the paper: from 2**(-8/n) down to 2**-8 in even ratios, n heads.

        If `heads` is not a power of 2, they are the slopes for the next lower power, and then every
        second slope for the next higher power.

        Args:
            heads: N, at least 1.

        Returns:
            The modifier, with slopes f32[N].

        Raises:
            ConfigError: `heads` is less than 1.
        """
        if heads < 1:
            raise ConfigError(
                f"heads={heads} is less than 1.", option="heads", fix="heads=1 or more"
            )
        below = 1 << (heads.bit_length() - 1)
        slopes = [2.0 ** (-8 * i / below) for i in range(1, below + 1)]
        between = [2.0 ** (-4 * i / below) for i in range(1, 2 * below, 2)]
        return cls(np.array(slopes + between[: heads - below]))

    def modify(self, at: Positions, scores: Array) -> Array:
        """See `ScoreModifier`."""
        # Conversion before the difference costs one per row and column; f32 is exact to 2**24.
        query, key = at.query.astype(np.float32), at.key.astype(np.float32)
        return scores - (at.of_head(self.slopes) * abs(key - query)).astype(scores.dtype)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RelativeBias(ScoreModifier):
    """A bias for each distance: `scores + table[head, clip(key - query, -left, right) + left]`.

    Distances are clipped, as in Shaw, Uszkoreit, Vaswani (2018), section 3.2. The buckets of T5
    are distances too, and `t5` makes its table into this one.

    Attributes:
        table: float[N or 1, left + 1 + right] or float[B or 1, N or 1, left + 1 + right].
        left: The largest distance to keys before the query. None: the same as after it.

    Example:
        >>> x = np.zeros((1, 3, 2, 4), np.float32)
        >>> table = np.zeros((2, 5), np.float32)  # two heads, distances from -2 to 2
        >>> sx.dot_product_attention(x, x, x, RelativeBias(table)).shape
        (1, 3, 2, 4)
    """

    axes: ClassVar = {"table": "BN-"}

    table: Array
    left: int | None = None

    def __post_init__(self) -> None:
        fix = "pass float[N, left + 1 + right]: for each head a bias for each distance"
        table = as_array(self.table, "table", fix=fix)
        if table.ndim not in (2, 3) or not jnp.issubdtype(table.dtype, jnp.floating):
            raise ConfigError(
                f"table is {table.dtype}{list(table.shape)}, not floats of 2 or 3 axes.",
                option="table",
                fix=fix,
            )
        left = (table.shape[-1] - 1) // 2 if self.left is None else operator.index(self.left)
        if not 0 <= left < table.shape[-1] or (self.left is None and table.shape[-1] % 2 == 0):
            raise ConfigError(
                f"left={self.left} does not fit a table of {table.shape[-1]} distances.",
                option="left",
                fix=f"pass left from 0 to {table.shape[-1] - 1}, or an odd number of distances",
            )
        set_field(self, "table", table[None] if table.ndim == 2 else table)
        set_field(self, "left", left)

    @classmethod
    def t5(cls, table: Array, *, bidirectional: bool, max_distance: int = 128) -> "RelativeBias":
        """Make the bias of T5, whose buckets are exact at first and then grow as the logarithm.

        Args:
            table: float[buckets, N], as T5 learns it; gradients flow to it.
            bidirectional: Whether half of the buckets are for keys after the query, as in encoders;
                else such keys count as at distance 0, as in decoders.
            max_distance: From this distance on keys are in the last bucket.

        Returns:
            The modifier, with one number per head and distance.

        Raises:
            ConfigError: There are too few buckets, or more exact ones than distances.

        Source: Raffel et al. (2020), section 2.1, and the code published with it.
        """
        buckets = table.shape[0] // 2 if bidirectional else table.shape[0]
        if not 2 <= buckets < 2 * max_distance:
            raise ConfigError(
                f"a table of {table.shape[0]} buckets does not fit max_distance={max_distance}.",
                option="max_distance",
                why=f"half of {buckets} buckets hold one distance each, the others more and more",
                fix=f"pass a table of {4 if bidirectional else 2} buckets or more, and "
                f"max_distance={max(max_distance, buckets)} or more",
            )
        behind = np.array(
            [_t5_bucket(n, buckets, max_distance=max_distance) for n in range(max_distance + 1)]
        )
        ahead = buckets + behind[1:] if bidirectional else behind[:0]
        return cls(table[np.concatenate([behind[::-1], ahead])].T, left=max_distance)

    def modify(self, at: Positions, scores: Array) -> Array:
        """See `ScoreModifier`."""
        left = self.left or 0
        distance = (at.key - at.query).clip(-left, self.table.shape[-1] - 1 - left)
        return scores + at.of_table(self.table, distance + left).astype(scores.dtype)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Added(ScoreModifier):
    """A number per query, added after another bias: it shifts the log-sum-exp only.

    Attributes:
        bias: An array as `dot_product_attention` takes it, with four axes; or a score modifier.
        rows: float[B or 1, N or 1, T or 1, 1].
    """

    axes: ClassVar = {"bias": "BNTS", "rows": "BNTS"}

    bias: Any
    rows: Array

    def modify(self, at: Positions, scores: Array) -> Array:
        """See `ScoreModifier`."""
        if isinstance(self.bias, ScoreModifier):
            scores = self.bias.modify(at, scores)
        else:
            scores = scores + at.of_pairs(self.bias).astype(scores.dtype)
        return scores + at.of_pairs(self.rows).astype(scores.dtype)


def _t5_bucket(distance: int, buckets: int, *, max_distance: int) -> int:
    exact = buckets // 2
    if distance < exact:
        return distance
    grown = math.log(distance / exact) / math.log(max_distance / exact) * (buckets - exact)
    return min(exact + int(grown), buckets - 1)
