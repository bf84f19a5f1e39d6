"""The rule by which a ladder that learns changes: what it costs, remembers and says."""

import dataclasses
import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapeexec._errors import ConfigError
from shapeexec.bucketing import Adaptive, Aligned, Ladder, Linear, Pow2, check_laws
from shapeexec.bucketing._adaptive import State, states_of, strategy_at, text_of
from shapeexec.bucketing._adaptive_rule import buckets_of, refuse, step
from shapeexec.bucketing._fit import cheapest_ladders

STREAMS = st.lists(st.integers(1, 9), min_size=40, max_size=80)
RULES = st.builds(
    Adaptive,
    graphs=st.integers(1, 3),
    horizon=st.sampled_from([5.0, 30.0, 1e9]),
    compile_calls=st.sampled_from([0.5, 2.0, 6.0]),
    start=st.sampled_from([Pow2(), Linear(4)]),
)


def mean_of(state):
    weights = np.array([*state.weights.values()])
    return float(np.array([*state.weights]) @ weights / weights.sum())


@dataclasses.dataclass
class Run:
    """What a stream cost, and each change with the states before and after it."""

    padded: float = 0.0
    valid: float = 0.0
    price: float = 0.0
    state: State = dataclasses.field(default_factory=State)
    changes: list = dataclasses.field(default_factory=list)


def serve(rule, sizes, *, batch=1, state=None, now=lambda request: 0.0):
    run = Run(state=state or State())
    for start in range(0, len(sizes), batch):
        own = sizes[start : start + batch]
        run.valid += sum(own)
        run.padded += sum(buckets_of(own, run.state.ladder, start=rule.start))
        known = run.state
        run.state, change = step(rule, known, sizes=own, now=now(start))
        if change is not None:
            run.price += rule.compile_calls * change.made * mean_of(run.state)
            run.changes.append((change, known, run.state))
    return run


def offline(rule, sizes, *, price):
    """The least cost of a stream for those who know it, by brute force.

    All graphs of `start` are there for nothing; ladders change at will.
    """
    rungs = range(1, 10)
    free = {rule.start.bucket(size) for size in sizes}
    ladders = [
        frozenset(chosen)
        for count in range(rule.graphs + 1)
        for chosen in itertools.combinations(rungs, count)
    ]
    served = {ladder: buckets_of(sizes, sorted(ladder), start=rule.start) for ladder in ladders}
    least = {ladder: price * len(ladder - free) for ladder in ladders}
    for i, _ in enumerate(sizes):
        least = {ladder: least[ladder] + served[ladder][i] for ladder in ladders}
        cheapest = min(least.values())
        near = [one for one in ladders if least[one] <= cheapest + price * rule.graphs]
        least = {
            ladder: min(least[one] + price * len(ladder - one - free) for one in near)
            for ladder in ladders
        }
    return min(least.values())


def totals(rule, state, *, held):
    """Of each ladder that reaches the largest size its cost, and the price of its new graphs."""
    sizes, weights = [*state.weights], np.array([*state.weights.values()])
    price, found = rule.compile_calls * mean_of(state), {}
    for count in range(1, rule.graphs + 1):
        for ladder in itertools.combinations(sorted({*sizes, *held}), count):
            if ladder[-1] < sizes[-1]:
                continue
            used = buckets_of(sizes, ladder, start=rule.start)
            found[ladder] = weights @ used + price * len({*used, *ladder} - held)
    return found


@settings(max_examples=100)
@given(RULES, STREAMS)
def test_graphs_never_cost_more_than_the_padding_that_has_run(rule, sizes):
    run = serve(rule, sizes)
    assert run.price <= run.padded - run.valid + 1e-6


@settings(max_examples=15, deadline=None)
@given(RULES, STREAMS)
def test_a_stream_costs_at_most_2w_minus_1_times_the_offline_optimum(rule, sizes):
    run = serve(rule, sizes)
    best = offline(rule, sizes, price=rule.compile_calls * min(sizes))
    w = run.padded / run.valid
    assert run.padded + run.price <= (2 * w - 1) * best + 1e-6


@settings(max_examples=40)
@given(RULES.map(lambda rule: dataclasses.replace(rule, horizon=1e9)), STREAMS)
def test_until_the_first_change_it_costs_at_most_twice_the_best_ladder(rule, sizes):
    run = serve(rule, sizes)
    if run.changes:
        sizes = sizes[: run.changes[0][0].request]
        run = serve(rule, sizes)
    held = {rule.start.bucket(size) for size in sizes}
    best = min(totals(rule, run.state, held=held).values())
    look = rule.compile_calls * mean_of(run.state) / 4 + max(held)
    assert run.padded <= best + look
    assert run.price <= run.padded


@settings(max_examples=100)
@given(RULES, STREAMS)
def test_a_change_is_to_the_cheapest_ladder_with_the_price_of_its_graphs(rule, sizes):
    for change, before, after in serve(rule, sizes).changes:
        size = sizes[after.requests - 1]
        held = {*before.held, *buckets_of([size], before.ladder, start=rule.start)}
        found = totals(rule, after, held=held)
        assert found[change.after] == pytest.approx(min(found.values()))
        assert change.saving > change.price


@settings(max_examples=40)
@given(RULES, STREAMS)
def test_each_ladder_obeys_the_laws_and_its_limit(rule, sizes):
    for change, before, after in serve(rule, sizes).changes:
        assert change.after == after.ladder
        for ladder in (before.ladder, after.ladder):
            assert len(ladder) <= rule.graphs
            check_laws(strategy_at(rule, ladder), range(1, 40))


@settings(max_examples=40)
@given(RULES, STREAMS, st.integers(0, 60))
def test_what_was_learned_goes_on_from_its_text(rule, sizes, cut):
    whole = serve(rule, sizes)
    first = serve(rule, sizes[:cut])
    kept = states_of(text_of({"s": first.state}))["s"]
    assert kept == first.state
    assert serve(rule, sizes[cut:], state=kept).state == whole.state


def test_a_change_is_not_followed_by_another_at_once():
    rule = Adaptive(graphs=4, compile_calls=1.0)
    generator = np.random.default_rng(0)
    run = serve(rule, generator.integers(1, 100, 400).tolist())
    assert run.changes
    for _, _, state in run.changes:
        again, other = step(rule, dataclasses.replace(state, due=0.0), sizes=[], now=0.0)
        assert other is None
        assert again.ladder == state.ladder


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([0.0, 3.0, 40.0])), min_size=1, max_size=7
    ),
    st.integers(1, 4),
)
def test_prices_of_buckets_are_part_of_what_is_minimised(rows, graphs):
    counts, prices = (np.array(column, float) for column in zip(*rows, strict=True))
    costs = np.arange(1.0, len(rows) + 1)
    last = len(rows) - 1

    def total(chosen):
        ends = np.array([*chosen, last])
        return (
            counts @ costs[ends[np.searchsorted(ends, np.arange(len(rows)))]] + prices[ends].sum()
        )

    for found, ladder in cheapest_ladders(counts, costs, graphs=graphs, prices=prices):
        subsets = itertools.combinations(range(last), len(ladder) - 1)
        assert found == pytest.approx(min(map(total, subsets)))
        assert found == pytest.approx(total(ladder[:-1]))


# Beside the best ladder in hindsight, on a small table of lengths

TABLE = {"conversation": (5.5, 0.9, 4000), "code": (6.8, 1.3, 7500)}
"""Mean and deviation of the logarithm of lengths, and the largest one."""


def lengths(name, count, seed):
    mean, deviation, largest = TABLE[name]
    drawn = np.random.default_rng(seed).lognormal(mean, deviation, count)
    return np.clip(drawn, 1, largest).astype(int).tolist()


def excess(rule, run_buckets, sizes):
    best = Ladder.fit(sizes, rule.graphs)
    return sum(run_buckets) / sum(map(best.bucket, sizes)) - 1, {*best.buckets}


def test_a_learned_ladder_is_near_the_best_ladder_and_near_again_after_a_shift():
    rule, batch = Adaptive(), 32
    parts = [lengths("conversation", 4000, 1), lengths("code", 4000, 2)]
    state, graphs = State(), set()
    for sizes, most in zip(parts, (0.05, 0.10), strict=True):
        run = []
        for start in range(0, len(sizes), batch):
            own = sizes[start : start + batch]
            run += buckets_of(own, state.ladder, start=rule.start)
            state, _ = step(rule, state, sizes=own, now=0.0)
        found, best = excess(rule, run[2000:], sizes[2000:])
        graphs |= best
        assert 0 <= found <= most
        assert state.compiles <= 3 * len(graphs)


# What is remembered

KNOWN = State({10: 50.0, 30: 50.0}, held=(16, 32), requests=100, now=0.0)


@pytest.mark.parametrize(
    ("options", "calls", "seconds", "left"),
    [
        ({"horizon": 100.0}, 10, 0.0, np.exp(-0.1)),
        ({"horizon": 100.0, "horizon_seconds": 20.0}, 10, 10.0, np.exp(-0.6)),
        ({"horizon": 100.0}, 10, 1e9, np.exp(-0.1)),
        ({"horizon": 100.0, "horizon_seconds": 20.0}, 10, -5.0, np.exp(-0.1)),
    ],
    ids=["by calls", "by both", "not by the clock", "a clock set back"],
)
def test_a_size_fades(options, calls, seconds, left):
    state, _ = step(Adaptive(**options), KNOWN, sizes=[10] * calls, now=seconds)
    assert state.weights[30] == pytest.approx(50 * left)
    assert state.weights[10] == pytest.approx(50 * left + calls)
    assert state.requests == 110


def test_rare_large_sizes_need_no_bucket():
    sizes = [100] * 500 + [130] * 500 + [9000]
    ladders = {
        share: serve(Adaptive(graphs=2, min_usage=share), sizes, batch=len(sizes)).state.ladder
        for share in (1e-9, 0.01)
    }
    assert ladders == {1e-9: (130, 9000), 0.01: (100, 130)}


def test_a_quadratic_cost_weighs_long_calls_more():
    sizes = [60, 100] * 400 + [900, 1000] * 40
    found = {
        cost: serve(Adaptive(graphs=3, cost=cost), sizes, batch=len(sizes)).state.ladder
        for cost in ("linear", "quadratic")
    }
    assert found == {"linear": (60, 100, 1000), "quadratic": (100, 900, 1000)}


def test_a_refused_bucket_does_not_come_back():
    rule, sizes = Adaptive(graphs=2, compile_calls=1.0), [9, 20] * 300
    changed = serve(rule, sizes, batch=600).state
    assert changed.ladder == (9, 20)
    back = refuse(changed, ladder=(), buckets=[20])
    assert (back.ladder, back.refused) == ((), (20,))
    assert 20 not in back.held
    assert serve(rule, sizes, batch=600, state=back).state.ladder == (9, 32)


def test_a_change_says_why():
    ((change, _, _),) = serve(Adaptive(graphs=2), [9, 20] * 300, batch=600).changes
    assert str(change) == (
        "2 buckets in the place of 2 after request 600: padding 39.6% -> 0.0%; the old ones cost "
        "393 mean calls more, 2 new graphs cost 10"
    )


def test_a_value_tells_what_it_has_learned_in_short():
    run = serve(Adaptive(graphs=2), [9, 20] * 300, batch=600)
    learned = Adaptive(graphs=2, learned=text_of({"s": run.state}))
    assert repr(learned) == "Adaptive(graphs=2, learned='s: 600 requests')"
    assert (learned.of("s"), learned.of("b")) == (Ladder([9, 20], beyond=Pow2()), Pow2())
    assert learned.bucket(9) == 16
    assert learned == Adaptive(graphs=2, learned=text_of({"s": run.state}))
    assert text_of({}) == ""


REFUSED = [
    (
        {"graphs": 0},
        "graphs=0 is not an integer of at least 1.",
        "pass graphs as an int, 1 or more",
    ),
    ({"horizon": 0}, "horizon=0 is not a finite number above 0.", "horizon=1500"),
    ({"horizon": "long"}, "horizon='long' is not a finite number above 0.", "horizon=1500"),
    (
        {"horizon_seconds": -1.0},
        "horizon_seconds=-1.0 is not a finite number above 0.",
        "horizon_seconds=3600, or None",
    ),
    (
        {"compile_calls": float("inf")},
        "compile_calls=inf is not a number above 0, below 1e+15.",
        "compile_calls=5",
    ),
    ({"min_usage": 1}, "min_usage=1 is not a number above 0, below 1.", "min_usage=0.001"),
    ({"min_usage": True}, "min_usage=True is not a number above 0, below 1.", "min_usage=0.001"),
    ({"cost": "cubic"}, "cost='cubic' is not known.", 'cost="linear" or "quadratic"'),
    (
        {"start": Adaptive()},
        "start=Adaptive() learns its buckets, which a part of a strategy cannot.",
        'start="pow2", or another strategy that does not learn',
    ),
] + [
    (
        {"learned": text},
        f"learned={text!r:.80} is not what an Adaptive has learned.",
        'the `learned` of a strategy in run.settings.strategies, or "" for nothing',
    )
    for text in (
        "{",
        "[]",
        '{"s": {}}',
        text_of({"s": State({7: 1.0, 3: 1.0})}),
        text_of({"s": State({3: float("nan")})}),
        text_of({"s": State(ladder=(8, 8))}),
        text_of({"s": State(ladder=(0,))}),
        None,
    )
]


@pytest.mark.parametrize(
    ("option", "made"),
    [
        ("strategy", lambda: Aligned(8, Adaptive())),
        ("beyond", lambda: Ladder([5], beyond=Adaptive())),
        ("beyond", lambda: Pow2(maximum=8, beyond=Adaptive())),
    ],
)
def test_a_strategy_that_learns_is_no_part_of_another(option, made):
    what = f"{option}=Adaptive() learns its buckets, which a part of a strategy cannot."
    with pytest.raises(ConfigError, match=re.escape(what)) as caught:
        made()
    assert caught.value.fix == f'{option}="pow2", or another strategy that does not learn'


@pytest.mark.parametrize(("options", "what", "fix"), REFUSED, ids=lambda value: str(value)[:50])
def test_an_option_that_cannot_work_is_refused(options, what, fix):
    with pytest.raises(ConfigError, match=re.escape(what)) as caught:
        Adaptive(**options)
    assert f"Fix:   {fix}" in str(caught.value)
    assert caught.value.option == next(iter(options))
