"""Strategies that follow from a tile or from a greatest share of padding."""

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shapeexec._errors import BucketOverflowError, ConfigError
from shapeexec.bucketing import Aligned, Exact, Geometric, Ladder, Linear, MemoryOptimal, Pow2

OTHERS = st.sampled_from([Exact(), Pow2(), Geometric(1.3), Linear(48), Pow2(minimum=9)])


@given(to=st.integers(1, 200), other=OTHERS, size=st.integers(1, 5000))
def test_aligned_buckets_are_those_of_the_other_strategy_rounded_up(to, other, size):
    bucket = Aligned(to, other).bucket(size)
    rounded = [-(-each // to) * to for each in other.buckets_up_to(size)]
    assert bucket == min(each for each in rounded if each >= size)


def test_aligned_takes_a_strategy_in_any_form_and_has_multiples_by_default():
    assert Aligned(128, "pow2") == Aligned(128, Pow2())
    assert repr(Aligned(128, "pow2", maximum=512)) == "Aligned(128, Pow2(), maximum=512)"
    assert Aligned(128).buckets_up_to(300) == Linear(128).buckets_up_to(300)


def test_aligned_ends_where_the_other_strategy_ends_and_tells_the_size():
    assert Aligned(128, [30, 200]).buckets_up_to(256) == (128, 256)
    with pytest.raises(BucketOverflowError, match="size=300 is past the last bucket of Ladder"):
        Aligned(128, [30, 200]).bucket(300)
    assert Aligned(128, Ladder([30], beyond="linear:30")).bucket(300) == 384


@given(share=st.floats(0.01, 0.99), size=st.integers(1, 5000))
@example(share=0.5, size=1)
@example(share=0.29, size=71)
def test_no_size_is_padded_by_more_than_the_share_and_no_ladder_is_shorter(share, size):
    strategy = MemoryOptimal(share)
    bucket = strategy.bucket(size)
    least = strategy.lower_bound(bucket)
    most = Fraction(repr(share))  # as it is written: 0.29 * 100 is below 29 in floats
    assert bucket - least <= most * bucket
    assert bucket + 1 - least > most * (bucket + 1)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: MemoryOptimal(1),
            "max_waste=1 is not a number above 0 and below 1.\n"
            "  Fix:   max_waste=0.1, say; for no padding, Exact()",
        ),
        (
            lambda: MemoryOptimal("0.1"),
            "max_waste='0.1' is not a number above 0 and below 1.\n"
            "  Fix:   max_waste=0.1, say; for no padding, Exact()",
        ),
        (
            lambda: Aligned(0),
            "to=0 is not an integer of at least 1.\n  Fix:   pass to as an int, 1 or more",
        ),
        (
            lambda: Aligned(8, "pow3"),
            "strategy='pow3' is not a strategy.\n"
            '  Fix:   "exact", "pow2", "linear:8", "geometric:1.5", "hybrid:64,64", '
            '"ladder:30,60,90", or a strategy, which has options: Pow2(minimum=16)',
        ),
    ],
)
def test_an_option_that_cannot_work_is_told_with_a_way_out(call, text):
    with pytest.raises(ConfigError) as caught:
        call()
    assert str(caught.value) == text
