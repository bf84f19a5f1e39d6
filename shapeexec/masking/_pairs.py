"""Reductions of valid elements alone, by a computation that need not have an identity.

Which elements are valid, and over which axes or windows to reduce, is up to the rules.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jax import Array, lax


def of_valid(
    combine: Callable[[Sequence[Array], Sequence[Array]], Sequence[Array]],
) -> Callable[[Any, Any], tuple[Array, ...]]:
    """A computation on `(is_valid, *values)` that ignores values that are not valid.

    "`combine` if both are valid, else the valid one" has an identity, any value that is not valid,
    and is associative if `combine` is.
    """

    def combine_valid(left: Any, right: Any) -> tuple[Array, ...]:
        (left_ok, *a), (right_ok, *b) = left, right
        chosen = [
            lax.select(left_ok & right_ok, both, lax.select(left_ok, x, y))
            for both, x, y in zip(combine(a, b), a, b, strict=True)
        ]
        return (left_ok | right_ok, *chosen)

    return combine_valid
