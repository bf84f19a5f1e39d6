"""The laws of all strategies, and the checks that catch a strategy which breaks one."""

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapeexec._errors import BucketOverflowError, ConfigError, StrategyError
from shapeexec.bucketing import (
    Adaptive,
    Aligned,
    Custom,
    Exact,
    Geometric,
    Hybrid,
    Ladder,
    Linear,
    MemoryOptimal,
    Pow2,
    Strategy,
    as_strategy,
    check_laws,
    checked_bucket,
)

MOST = 3000  # the largest size that the properties try


def bounded(kind, **options):
    """A strategy of a kind with any options and any cuts."""
    cuts = st.lists(st.integers(1, MOST), min_size=2, max_size=2).map(sorted)

    def cut(own, ends, use_minimum, use_maximum, beyond):
        minimum = {"minimum": ends[0]} if use_minimum else {}
        maximum = {"maximum": ends[1], "beyond": beyond} if use_maximum else {}
        return kind(**own, **minimum, **maximum)

    own = st.fixed_dictionaries(options)
    return st.builds(cut, own, cuts, st.booleans(), st.booleans(), BEYOND)


BEYOND = st.sampled_from(
    ["error", None, "exact", "linear:30", "pow2", 7, Linear(8, minimum=500), lambda size: size + 0]
)
STRATEGIES = {
    "Exact": bounded(Exact),
    "Pow2": bounded(Pow2),
    "Linear": bounded(Linear, step=st.integers(1, 200)),
    "Geometric": bounded(Geometric, ratio=st.floats(1.01, 10)),
    "Hybrid": bounded(Hybrid, threshold=st.integers(1, 600), step=st.integers(1, 200)),
    "Ladder": st.builds(
        Ladder, st.lists(st.integers(1, MOST), min_size=1, max_size=20), beyond=BEYOND
    ),
    "Aligned": bounded(
        Aligned,
        to=st.integers(1, 200),
        strategy=st.sampled_from(["exact", "pow2", "geometric:1.3", Linear(48), Pow2(minimum=9)]),
    ),
    "MemoryOptimal": bounded(MemoryOptimal, max_waste=st.floats(0.01, 0.9)),
    "Adaptive": st.builds(
        Adaptive, start=st.sampled_from(["exact", "geometric:1.3", Linear(48), Pow2(minimum=9)])
    ),
    "Custom": st.builds(lambda step: Custom(Linear(step).bucket), st.integers(1, 200)),
}

every_strategy = pytest.mark.parametrize("kind", STRATEGIES)


def end_of(strategy):
    """The largest size worth trying: the ladder's end, or `MOST`."""
    if getattr(strategy, "beyond", None) is not None:
        return MOST
    if isinstance(strategy, Ladder):
        return strategy.buckets[-1]
    return getattr(strategy, "maximum", None) or MOST


def draw(data, kind, count):
    strategy = data.draw(STRATEGIES[kind])
    return strategy, *(data.draw(st.integers(1, end_of(strategy))) for _ in range(count))


@every_strategy
@settings(deadline=None)
@given(data=st.data())
def test_a_bucket_is_an_int_of_at_least_its_size(kind, data):
    strategy, size = draw(data, kind, 1)
    bucket = strategy.bucket(size)
    assert type(bucket) is int
    assert bucket >= size


@every_strategy
@settings(deadline=None)
@given(data=st.data())
def test_larger_sizes_never_get_smaller_buckets(kind, data):
    strategy, a, b = draw(data, kind, 2)
    assert strategy.bucket(min(a, b)) <= strategy.bucket(max(a, b))


@every_strategy
@settings(deadline=None)
@given(data=st.data())
def test_a_bucket_is_its_own_bucket(kind, data):
    strategy, size = draw(data, kind, 1)
    bucket = strategy.bucket(size)
    assert strategy.bucket(bucket) == bucket


@every_strategy
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_a_ladder_is_exactly_the_buckets_of_its_sizes(kind, data):
    strategy, a, b = draw(data, kind, 2)
    lo, hi = min(a, b), max(a, b)
    assert strategy.ladder(lo, hi) == tuple(sorted({strategy.bucket(k) for k in range(lo, hi + 1)}))
    assert strategy.buckets_up_to(lo) == strategy.ladder(1, lo)


@every_strategy
@settings(deadline=None)
@given(data=st.data())
def test_the_lower_bound_is_the_smallest_size_in_a_bucket(kind, data):
    strategy, size = draw(data, kind, 1)
    bucket = strategy.bucket(size)
    lowest = strategy.lower_bound(bucket)
    assert strategy.bucket(lowest) == bucket
    assert lowest == 1 or strategy.bucket(lowest - 1) < bucket


@every_strategy
@settings(deadline=None)
@given(data=st.data())
def test_strategies_pass_their_own_check(kind, data):
    check_laws(data.draw(STRATEGIES[kind]))


@every_strategy
@settings(deadline=None)
@given(data=st.data())
def test_strategies_are_values(kind, data):
    strategy = data.draw(STRATEGIES[kind])
    copy = dataclasses.replace(strategy)
    assert copy == strategy
    assert hash(copy) == hash(strategy)
    with pytest.raises(dataclasses.FrozenInstanceError):
        strategy.anything = 1


def test_a_numpy_size_gets_a_python_bucket():
    for strategy in (Exact(), Pow2(minimum=4), Linear(8), Geometric(1.5), Ladder([8])):
        assert type(strategy.bucket(np.int32(3))) is int
    assert checked_bucket(Custom(lambda size: np.int64(8)), 3) == 8


def test_a_ladder_costs_two_calls_for_each_bucket_and_not_one_for_each_size():
    asked = []
    strategy = Custom(lambda size: asked.append(size) or -(-size // 1000) * 1000)
    assert len(strategy.buckets_up_to(100_000)) == 100
    assert len(asked) <= 200


WAY_ON = '; past a last bucket go on with Ladder([30, 60, 90], beyond="exact"), say'
BROKEN = {
    "too small": (
        lambda size: size // 8 * 8,
        "returns a bucket below the size",
        "bucket(1) = 0",
        f"return a bucket of at least 1 for size 1{WAY_ON}",
        (1, 0),
    ),
    "too small late": (
        lambda size: min(size, 5000),
        "returns a bucket below the size",
        "bucket(8191) = 5000",
        f"return a bucket of at least 8191 for size 8191{WAY_ON}",
        (8191, 5000),
    ),
    "not monotone": (
        lambda size: 8 if size == 5 else size,
        "is not monotone: a larger size gets a smaller bucket",
        "bucket(5) = 8, yet bucket(6) = 6",
        f"let larger sizes never get smaller buckets{WAY_ON}",
        (6, 6),
    ),
    "not idempotent": (
        lambda size: 2 * size,
        "is not idempotent: a bucket is not its own bucket",
        "bucket(1) = 2, yet bucket(2) is 4",
        "return 2 for size 2",
        (1, 2),
    ),
    "a float": (
        lambda size: size / 1,
        "returns something other than an int",
        "bucket(1) = 1.0, a float",
        "return an int, by // rather than / and by int() around math.ceil of floats",
        (1, 1.0),
    ),
    "a bool": (
        lambda size: True,
        "returns something other than an int",
        "bucket(1) = True, a bool",
        "return an int, by // rather than / and by int() around math.ceil of floats",
        (1, True),
    ),
    "None": (
        lambda size: None,
        "returns something other than an int",
        "bucket(1) = None, a NoneType",
        "return an int, by // rather than / and by int() around math.ceil of floats",
        (1, None),
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_strategy_is_caught_and_told_which_law_it_breaks(fault):
    function, law, got, fix, asked = BROKEN[fault]
    strategy = as_strategy(function)
    with pytest.raises(StrategyError) as caught:
        check_laws(strategy)
    assert caught.value.what.startswith("Custom(<lambda> at test_laws.py:")
    assert caught.value.what.endswith(f" {law}.")
    assert caught.value.got == got
    assert str(caught.value).endswith(f"\n  Fix:   {fix}")
    assert caught.value.strategy is strategy
    assert (caught.value.size, caught.value.bucket) == asked


@pytest.mark.parametrize("fault", ["too small", "not idempotent", "a float", "a bool", "None"])
def test_a_broken_strategy_is_caught_on_use(fault):
    function, law, *_ = BROKEN[fault]
    with pytest.raises(StrategyError, match=law):
        checked_bucket(as_strategy(function), 1)


def test_a_broken_strategy_cannot_hang_a_ladder():
    with pytest.raises(StrategyError, match="below the size"):
        Custom(lambda size: min(size, 10)).buckets_up_to(100)


def test_a_bucket_past_its_own_end_is_not_idempotent():
    def overrun(size):
        if size > 10:
            raise BucketOverflowError("too large", size=size, ladder=(12,), fix="none")
        return 12

    with pytest.raises(StrategyError, match="not idempotent") as caught:
        checked_bucket(Custom(overrun), 3)
    assert caught.value.got == "bucket(3) = 12, yet bucket(12) is past the last bucket"
    assert isinstance(caught.value.__cause__, BucketOverflowError)


def test_the_check_tries_the_sizes_it_is_given_in_any_order():
    late = Custom(lambda size: 5000 if size == 4999 else size)
    check_laws(late, [1, 2])
    with pytest.raises(StrategyError, match="monotone"):
        check_laws(Custom(lambda size: 5005 if size == 5000 else size), [5001, 5000])
    with pytest.raises(ConfigError, match=re.escape("size=0 is not an integer of at least 1.")):
        check_laws(late, [0])


def test_the_check_stops_at_the_end_of_a_finite_ladder_but_not_before_its_first_size():
    check_laws(Ladder([30, 60]))
    with pytest.raises(BucketOverflowError):
        check_laws(Ladder([30, 60]), [61, 62])


@pytest.mark.parametrize("ask", [lambda strategy: checked_bucket(strategy, 7), check_laws])
def test_an_exception_of_the_users_function_comes_through_and_says_for_which_size(ask):
    def table(size):
        return {1: 1, 2: 2}[size]

    strategy = as_strategy(table)
    with pytest.raises(KeyError) as caught:
        ask(strategy)
    (note,) = caught.value.__notes__
    size = caught.value.args[0]
    assert note == f"  Where: {strategy!r}, asked by shapeexec for the bucket of size {size}"
    assert "test_laws.py" in note


def test_a_strategy_of_ones_own_needs_only_bucket():
    @dataclasses.dataclass(frozen=True)
    class Evens(Strategy):
        def bucket(self, size: int) -> int:
            return size + size % 2

    assert as_strategy(Evens()) == Evens()
    check_laws(Evens())
    assert Evens().buckets_up_to(5) == (2, 4, 6)
    assert Evens().lower_bound(6) == 5
    assert Evens().expected_waste([1, 3]) == 1 / 3


def test_a_strategy_without_bucket_cannot_be_made():
    class Lazy(Strategy):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Lazy()


def test_an_object_with_a_bucket_method_is_a_strategy():
    class Tens:
        def bucket(self, size):
            return -(-size // 10) * 10

    tens = Tens()
    strategy = as_strategy(tens)
    assert strategy.bucket(11) == 20
    assert strategy == as_strategy(tens)
    assert hash(strategy) == hash(as_strategy(tens))


def test_a_function_is_a_strategy():
    strategy = as_strategy(Linear(8).bucket)
    assert isinstance(strategy, Custom)
    assert strategy.buckets_up_to(20) == (8, 16, 24)


@pytest.mark.parametrize(
    ("value", "first_line", "fix"),
    [
        (
            128.0,
            "buckets=128.0 is not a strategy.",
            'a strategy such as Pow2(), its name "pow2", 32 for multiples of 32, [8, 16] for '
            "these buckets, an object with a method bucket(size), or a function of the size",
        ),
        (Pow2, "buckets=Pow2 is a class, not a strategy.", "sx.Pow2(), an instance of it"),
        (int, "buckets=int is a class, not a strategy.", "int(...), an instance of it"),
    ],
)
def test_what_is_no_strategy_is_refused(value, first_line, fix):
    with pytest.raises(ConfigError) as caught:
        as_strategy(value)
    assert caught.value.what == first_line
    assert str(caught.value).endswith(f"\n  Fix:   {fix}")


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("exact", Exact()),
        ("pow2", Pow2()),
        (" linear:8 ", Linear(8)),
        ("geometric:1.5", Geometric(1.5)),
        ("geometric:2", Geometric(2)),
        ("hybrid:64, 32", Hybrid(64, 32)),
        ("ladder:30,60,90", Ladder([30, 60, 90])),
    ],
)
def test_a_text_names_a_strategy(text, strategy):
    assert as_strategy(text) == strategy


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("pow3", None),
        ("linear", None),
        ("linear:", None),
        ("linear:x", None),
        ("linear:8,9", None),
        ("pow2:16", None),
        ("linear:0", "step=0 is not an integer of at least 1."),
        ("linear:8.5", "step=8.5 is not an integer of at least 1."),
        ("", None),
    ],
)
def test_a_text_that_names_none_is_refused_with_those_that_do(text, why):
    with pytest.raises(ConfigError) as caught:
        as_strategy(text)
    assert caught.value.what == f"buckets={text!r} is not a strategy."
    assert caught.value.why == why
    assert caught.value.fix == (
        '"exact", "pow2", "linear:8", "geometric:1.5", "hybrid:64,64", "ladder:30,60,90", '
        "or a strategy, which has options: Pow2(minimum=16)"
    )


def test_the_way_out_of_a_strategy_that_falls_obeys_the_laws():
    with pytest.raises(StrategyError) as caught:
        check_laws(as_strategy(lambda size: 64 if size <= 40 else size))
    told = caught.value.fix.rpartition("go on with ")[2].removesuffix(", say")
    way_out = eval(told, {"Ladder": Ladder})
    check_laws(way_out)
    assert [way_out.bucket(size) for size in (40, 90, 91)] == [60, 90, 91]
