"""Windows that cannot be told apart from padding are refused, never guessed."""

import pytest
from jax import lax

from shapeexec._errors import UnsupportedPrimitiveError
from tests.cases import Case
from tests.checks import assert_pad_safe


@pytest.mark.parametrize(
    ("init", "combine", "primitive"),
    [
        (0.0, lax.add, "reduce_window_sum"),
        (1.0, lambda a, b: a * b, "reduce_window"),
    ],
    ids=["monoid", "any computation"],
)
def test_a_window_of_ragged_size_that_moves_is_refused(init, combine, primitive: str) -> None:
    def cumulative(x):
        n = x.shape[0]
        return lax.reduce_window(x, init, combine, (n,), (1,), [(n - 1, 0)])

    case = Case("cumulative", cumulative, ("s",))
    with pytest.raises(UnsupportedPrimitiveError, match="leave `s` out of buckets") as caught:
        assert_pad_safe(case, case.sizes, 1, None)
    assert caught.value.primitive == primitive
    assert caught.value.symbols == {"s"}
