"""Each strategy's ladder, its bounds on padding and graphs, its waste, and its errors."""

import dataclasses
import fractions
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapeexec._errors import BucketOverflowError, ConfigError, StrategyError
from shapeexec.bucketing import Custom, Exact, Geometric, Hybrid, Ladder, Linear, Pow2
from shapeexec.bucketing._fixed import last_bucket, runs_exact

LADDERS = [
    (Exact(), range(1, 50)),
    (Exact(minimum=10), range(10, 50)),
    (Exact(maximum=20), range(1, 21)),
    (Pow2(), [1, 2, 4, 8, 16, 32, 64]),
    (Pow2(minimum=16), [16, 32, 64]),
    (Pow2(minimum=12, maximum=40), [12, 16, 32, 40]),
    (Pow2(minimum=12, maximum=12), [12]),
    (Linear(1), range(1, 50)),
    (Linear(8), [8, 16, 24, 32, 40, 48, 56]),
    (Linear(8, minimum=5), [5, 8, 16, 24, 32, 40, 48, 56]),
    (Linear(8, minimum=20, maximum=33), [20, 24, 32, 33]),
    (Linear(100, maximum=30), [30]),
    (Geometric(2), [1, 2, 4, 8, 16, 32, 64]),
    (Geometric(1.5), [1, 2, 3, 5, 8, 12, 18, 27, 41, 62]),
    (Geometric(1.5, minimum=10, maximum=40), [10, 15, 23, 35, 40]),
    (Hybrid(16, 8), [1, 2, 4, 8, 16, 24, 32, 40, 48, 56]),
    (Hybrid(12, 10, minimum=3, maximum=45), [3, 4, 8, 12, 22, 32, 42, 45]),
    (Ladder([60, 30, 30, 90]), [30, 60, 90]),
    (Ladder(np.array([30, 60])), [30, 60]),
]


@pytest.mark.parametrize(("strategy", "ladder"), LADDERS, ids=repr)
def test_a_bucket_is_the_next_one_on_the_ladder(strategy, ladder):
    for size in range(1, min(49, max(ladder)) + 1):
        assert strategy.bucket(size) == min(rung for rung in ladder if rung >= size)


@pytest.mark.parametrize(
    ("strategy", "graphs"), [(Pow2(), (4, 8, 11)), (Linear(8), (1, 13, 125))], ids=repr
)
def test_sizes_up_to_8_and_100_and_1000_take_so_many_graphs(strategy, graphs):
    assert tuple(len(strategy.buckets_up_to(n)) for n in (8, 100, 1000)) == graphs


_SIZES = st.integers(1, 10**5)
_STEPS = st.integers(1, 500)


@given(_SIZES)
def test_an_exact_bucket_pads_nothing(n):
    assert Exact().bucket(n) == n


@given(_SIZES)
def test_powers_of_two_pad_less_than_the_size_and_double(n):
    assert Pow2().bucket(n) - n < n
    assert len(Pow2().buckets_up_to(n)) == math.ceil(math.log2(n)) + 1


@given(_SIZES, _STEPS)
def test_a_linear_ladder_pads_less_than_its_step_and_has_a_bucket_per_step(n, step):
    assert Linear(step).bucket(n) - n <= step - 1
    assert len(Linear(step).buckets_up_to(n)) == math.ceil(n / step)


@settings(deadline=None)
@given(_SIZES, st.floats(1.01, 8))
def test_a_geometric_ladder_pads_less_than_its_ratio_says(n, ratio):
    assert Geometric(ratio).bucket(n) - n < (fractions.Fraction(repr(ratio)) - 1) * n
    assert len(Geometric(ratio).buckets_up_to(n)) <= math.ceil(math.log(n, ratio)) + 1


@given(_SIZES, st.integers(1, 5000), _STEPS)
def test_a_hybrid_pads_as_powers_of_two_up_to_its_threshold_and_then_less_than_a_step(
    n, threshold, step
):
    assert Hybrid(threshold, step).bucket(n) - n < (n if n <= threshold else step)


@given(_SIZES, st.integers(1, 5000), _STEPS)
def test_a_hybrid_has_a_bucket_per_doubling_and_per_step(n, threshold, step):
    doubled = math.ceil(math.log2(min(n, threshold))) + 1
    steps = math.ceil(max(0, n - threshold) / step)
    assert len(Hybrid(threshold, step).buckets_up_to(n)) == doubled + steps


@settings(deadline=None)
@given(st.floats(1.01, 8), st.integers(1, 500))
def test_a_geometric_ladder_grows_by_its_ratio_rounded_up(ratio, minimum):
    rungs = Geometric(ratio, minimum=minimum).buckets_up_to(50_000)
    exact_ratio = fractions.Fraction(repr(ratio))
    assert rungs[0] == minimum
    for rung, following in itertools.pairwise(rungs):
        assert following == math.ceil(rung * exact_ratio)


def test_a_geometric_ratio_means_what_is_written():
    assert Geometric(1.1, minimum=10).buckets_up_to(12) == (10, 11, 13)
    assert Geometric(1.1, minimum=100).bucket(101) == 110


def test_a_geometric_ladder_reaches_sizes_past_any_float():
    assert Geometric(2).bucket(2**70 + 1) == 2**71
    assert Pow2().bucket(2**70 + 1) == 2**71


# A strategy prints as it is written, so that errors and plans can be pasted back.
@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        (Exact(), "Exact()"),
        (Pow2(minimum=4, maximum=64), "Pow2(minimum=4, maximum=64)"),
        (Linear(np.int64(8)), "Linear(8)"),
        (Geometric(2, maximum=64), "Geometric(2.0, maximum=64)"),
        (Hybrid(16, 8), "Hybrid(16, 8)"),
        (Ladder([60, 30]), "Ladder([30, 60])"),
        (Ladder([60, 30], beyond="linear:8"), "Ladder([30, 60], beyond=Linear(8))"),
        (Pow2(maximum=64, beyond="exact"), "Pow2(maximum=64, beyond=Exact())"),
        (Custom(math.ceil), "Custom(<built-in function ceil>)"),
    ],
    ids=repr,
)
def test_a_strategy_prints_as_it_is_written(strategy, text):
    assert repr(strategy) == text


def test_expected_waste_is_the_share_of_padding():
    assert Linear(10).expected_waste([1, 9, 20]) == 10 / 40
    assert Linear(10).expected_waste({1: 1, 9: 2, 20: 0}) == 11 / 30
    assert Linear(10).expected_waste(iter([5])) == 0.5
    assert Exact().expected_waste(range(1, 100)) == 0


def test_expected_waste_of_pow2_on_uniform_lengths_is_a_quarter_to_a_third():
    assert Pow2().expected_waste(range(1, 4097)) == pytest.approx(1 / 4, abs=1e-3)
    assert Pow2().expected_waste(range(1, 5462)) == pytest.approx(1 / 3, abs=1e-3)
    for n in range(1000, 8000, 100):
        assert 0.249 <= Pow2().expected_waste(range(1, n + 1)) <= 1 / 3


def test_a_size_of_count_zero_needs_no_bucket_to_measure_waste():
    assert Ladder([10]).expected_waste({5: 1, 99: 0}) == 0.5


@pytest.mark.parametrize(
    ("strategy", "size", "last", "fix"),
    [
        (
            Ladder([30, 60, 90]),
            120,
            "past the last bucket of Ladder: 30, 60, 90.",
            'add a bucket of 120 or more, pass beyond="exact" or another strategy for larger '
            "sizes, or refuse inputs larger than 90",
        ),
        (
            Pow2(maximum=100),
            101,
            "past the last bucket of Pow2: 1, 2, 4, 8, 16, 32, 64, 100.",
            'maximum=101 or more, maximum=None for no end, or beyond="exact"',
        ),
        (
            Linear(1, maximum=50),
            51,
            "past the last bucket of Linear: 1, 2, 3, 4, 5, 6, ..., 48, 49, 50.",
            'maximum=51 or more, maximum=None for no end, or beyond="exact"',
        ),
    ],
    ids=repr,
)
def test_a_size_past_the_end_names_the_size_and_the_ladder(strategy, size, last, fix):
    with pytest.raises(BucketOverflowError) as caught:
        strategy.bucket(size)
    error = caught.value
    assert str(error) == f"size={size} is {last}\n  Fix:   {fix}"
    assert error.size == size
    assert error.ladder == strategy.buckets_up_to(error.ladder[-1])
    assert error.ladder[-1] < size
    with pytest.raises(BucketOverflowError):
        strategy.buckets_up_to(size)


@pytest.mark.parametrize(
    ("strategy", "sizes", "buckets"),
    [
        (Ladder([30, 60], beyond="exact"), (31, 60, 61, 75), (60, 60, 61, 75)),
        (Ladder([30, 60], beyond="linear:50"), (61, 101), (100, 150)),
        (Ladder([30, 60], beyond=[90, 120]), (60, 61, 91), (60, 90, 120)),
        (Ladder([30, 60], beyond=Pow2()), (61, 65), (64, 128)),
        (Ladder([30, 60], beyond=lambda size: -(-size // 7) * 7), (60, 61, 64), (60, 63, 70)),
        (Pow2(maximum=100, beyond="exact"), (65, 100, 101), (100, 100, 101)),
        (Linear(8, maximum=20, beyond=32), (17, 20, 21, 40), (20, 20, 32, 64)),
        (Geometric(1.5, maximum=10, beyond="pow2"), (9, 10, 11), (10, 10, 16)),
        (Hybrid(8, 8, maximum=30, beyond="exact"), (9, 29, 31), (16, 30, 31)),
        (Exact(maximum=4, beyond="pow2"), (3, 4, 5), (3, 4, 8)),
    ],
    ids=repr,
)
def test_past_the_end_another_strategy_may_go_on(strategy, sizes, buckets):
    assert tuple(map(strategy.bucket, sizes)) == buckets


@pytest.mark.parametrize("last", [Ladder([8]), Pow2(maximum=8)], ids=repr)
def test_a_ladder_ends_in_an_error_if_it_is_told_to(last):
    again = dataclasses.replace(last, beyond="error")
    assert again == last
    with pytest.raises(BucketOverflowError):
        again.bucket(9)


def test_an_end_past_the_end_names_all_buckets():
    with pytest.raises(BucketOverflowError) as caught:
        Ladder([30, 60], beyond=[50, 90]).bucket(91)
    assert caught.value.ladder == (30, 60, 90)
    assert caught.value.what == "size=91 is past the last bucket of Ladder: 30, 60, 90."
    assert caught.value.last == 90
    assert caught.value.fix == (
        'give beyond= a strategy that holds 91, such as beyond="exact", or refuse inputs larger '
        "than 90"
    )


def test_an_end_before_the_end_serves_nothing_and_is_not_named():
    with pytest.raises(BucketOverflowError) as caught:
        Ladder([8], beyond=[4]).bucket(9)
    assert (caught.value.ladder, caught.value.last) == ((8,), 8)
    assert caught.value.fix.endswith("refuse inputs larger than 8")


def test_the_last_bucket_is_that_of_all_ladders_that_end():
    assert last_bucket(Ladder([4], beyond=[9])) == 9
    assert last_bucket(Ladder([4], beyond=[3])) == 4
    assert last_bucket(Pow2(maximum=6, beyond=Ladder([9], beyond="exact"))) == 9
    assert last_bucket(Pow2(maximum=6, beyond="exact")) == 6
    assert last_bucket(Pow2()) is None


def test_an_end_far_away_lists_no_bucket_that_is_not_told():
    asked = []

    @dataclasses.dataclass(frozen=True, repr=False)
    class Counted(Exact):
        def _raw_bucket(self, size):
            asked.append(size)
            return size

    with pytest.raises(BucketOverflowError, match=r"1, 2, 3, 4, 5, 6, \.\.\., 9998, 9999, 10000"):
        Counted(maximum=10_000).bucket(10_001)
    assert len(asked) < 200


def test_what_goes_on_past_the_end_must_be_lawful():
    with pytest.raises(StrategyError, match="returns a bucket below the size"):
        Ladder([30], beyond=lambda size: 10).bucket(31)


def test_sizes_are_left_as_they_are_by_exact_alone_and_past_the_end_of_what_goes_on_with_it():
    ladder = Ladder([30, 60], beyond="exact")
    assert [runs_exact(ladder, size) for size in (3, 60, 61)] == [False, False, True]
    assert runs_exact(Exact(), 3)
    assert not runs_exact(Exact(minimum=8), 3)
    assert not runs_exact(Ladder([30], beyond="pow2"), 32)
    assert runs_exact(Pow2(maximum=4, beyond=[8]), 9) is False


def integer(name, value):
    return f"{name}={value} is not an integer of at least 1.", f"pass {name} as an int, 1 or more"


ERRORS = {
    "step 0": (lambda: Linear(0), *integer("step", "0")),
    "step -1": (lambda: Linear(-1), *integer("step", "-1")),
    "step 2.5": (lambda: Linear(2.5), *integer("step", "2.5")),
    "step True": (lambda: Linear(True), *integer("step", "True")),
    "step None": (lambda: Linear(None), *integer("step", "None")),
    "step an array": (lambda: Linear(np.array([1])), *integer("step", "array([1])")),
    "minimum 0": (lambda: Pow2(minimum=0), *integer("minimum", "0")),
    "maximum 0": (lambda: Exact(maximum=0), *integer("maximum", "0")),
    "threshold 0": (lambda: Hybrid(0, 8), *integer("threshold", "0")),
    "step of a hybrid": (lambda: Hybrid(8, 0), *integer("step", "0")),
    "minimum above maximum": (
        lambda: Linear(8, minimum=9, maximum=4),
        "minimum=9 exceeds maximum=4: no bucket lies between.",
        "minimum=4, maximum=9, or leave one out",
    ),
    **{
        f"ratio {value!r}": (
            lambda value=value: Geometric(value),
            f"ratio={value!r} is not a finite number above 1.",
            "ratio=1.5, say; for a bucket at each size, Exact()",
        )
        for value in (1.0, 0.5, -2, math.inf, math.nan, True, "2", None, 10**400)
    },
    "geometric minimum": (lambda: Geometric(2, minimum=0), *integer("minimum", "0")),
    "empty ladder": (
        lambda: Ladder([]),
        "buckets is empty: no size would have a bucket.",
        "pass at least one bucket",
    ),
    "ladder of 0": (lambda: Ladder([30, 0]), *integer("buckets[1]", "0")),
    "ladder of a float": (lambda: Ladder([30.0]), *integer("buckets[0]", "30.0")),
    "ladder of a string": (lambda: Ladder("30"), *integer("buckets[0]", "'3'")),
    "ladder of an int": (
        lambda: Ladder(30),
        "buckets=30 is not a collection of ints.",
        "Ladder([30, 60, 90]), say",
    ),
    "beyond no strategy": (
        lambda: Ladder([3], beyond="exakt"),
        "beyond='exakt' is not a strategy.",
        '"exact", "pow2", "linear:8", "geometric:1.5", "hybrid:64,64", "ladder:30,60,90", or a '
        "strategy, which has options: Pow2(minimum=16)",
    ),
    "beyond an endless ladder": (
        lambda: Pow2(beyond="exact"),
        "beyond=Exact() without maximum=: an endless ladder has no sizes past it.",
        "maximum=1024, beyond=sx.Exact(), say, or leave beyond= out",
    ),
    "custom without a function": (
        lambda: Custom(3),
        "fn=3 cannot be called.",
        "pass a function from size to bucket",
    ),
    "size 0": (lambda: Pow2().bucket(0), *integer("size", "0")),
    "size 0 of a ladder": (lambda: Ladder([3]).bucket(0), *integer("size", "0")),
    "size 1.5": (lambda: Linear(8).bucket(1.5), *integer("size", "1.5")),
    "n 0": (lambda: Pow2().buckets_up_to(0), *integer("n", "0")),
    "lo 0": (lambda: Pow2().ladder(0, 5), *integer("lo", "0")),
    "hi 0": (lambda: Pow2().ladder(1, 0), *integer("hi", "0")),
    "lo above hi": (
        lambda: Pow2().ladder(9, 5),
        "lo=9 exceeds hi=5: no size lies between.",
        "ladder(5, 9)",
    ),
    "lower bound of no bucket": (
        lambda: Linear(8).lower_bound(12),
        "bucket=12 is not a bucket of Linear(8).",
        "pass 16, the bucket that size 12 falls in",
    ),
    "no sizes": (
        lambda: Pow2().expected_waste([]),
        "sizes is empty: no size was seen.",
        "pass at least one size",
    ),
    "only counts of 0": (
        lambda: Pow2().expected_waste({8: 0}),
        "sizes is empty: no size was seen.",
        "pass at least one size",
    ),
    "sizes of 0": (lambda: Pow2().expected_waste([4, 0]), *integer("size", "0")),
    "sizes no iterable": (
        lambda: Pow2().expected_waste(4),
        "sizes=4 is neither sizes nor counts by size.",
        "pass an iterable of ints, or a mapping from size to count",
    ),
    **{
        f"count {count!r}": (
            lambda count=count: Pow2().expected_waste({4: count}),
            f"sizes[4]={count!r} is not a count.",
            "pass each count as a finite number, 0 or more",
        )
        for count in (-1, math.inf, math.nan, "many", None)
    },
}


@pytest.mark.parametrize("case", ERRORS)
def test_an_argument_that_cannot_work_is_told_with_a_way_out(case):
    call, first_line, fix = ERRORS[case]
    with pytest.raises(ConfigError) as caught:
        call()
    assert str(caught.value) == f"{first_line}\n  Fix:   {fix}"
