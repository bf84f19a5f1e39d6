"""`sx.fit`: its options, its choice of the number of graphs, and what it refuses."""

import jax
import numpy as np
import pytest

import shapeexec as sx

SIZES = [(1, 10), (1, 12), (2, 50), (8, 50), (8, 90), (3, 31)]


def area(b, s):
    return b * s


def attend(w, x):  # x: f32[b, s, 4]
    return (jax.nn.softmax(x @ w, axis=1)[..., None] * x).sum(axis=1)


def called():
    run = sx.Exec(attend, in_shapes=(None, "b, s, 4"))
    run(np.ones(4, np.float32), np.ones((3, 5, 4), np.float32))
    return run


SPEED = sx.Speed(seconds_per_flop=1e-9, seconds_per_byte=1e-9, seconds_per_call=1e-5)


def test_the_ladders_are_the_buckets_of_an_exec_and_as_many_graphs_are_compiled():
    run = called()
    found = sx.fit(run, SIZES, graphs=3, speed=SPEED)
    fitted = sx.Exec(attend, in_shapes=(None, "b, s, 4"), buckets=found.strategies)
    for b, s in SIZES:
        fitted(np.ones(4, np.float32), np.ones((b, s, 4), np.float32))
    assert fitted.stats.compiles == found.graphs <= 3
    buckets = [{**row.buckets} for row in fitted.graphs]
    assert sorted(map(str, buckets)) == sorted(str({**row.buckets}) for row in found.rows)


def test_the_cost_of_a_fit_is_in_seconds_of_its_cost_model():
    run = called()
    model = run.cost_model()
    found = sx.fit(run, SIZES, graphs=3, speed=SPEED)
    seconds = [
        model.seconds(SPEED, **{symbol: found.strategies[symbol].bucket(n) for symbol, n in call})
        for call in ((("b", b), ("s", s)) for b, s in SIZES)
    ]
    assert found.cost == pytest.approx(sum(seconds))
    assert sx.fit(model, SIZES, graphs=3, speed=SPEED) == found


@pytest.mark.parametrize(
    "sizes",
    [
        [{"b": b, "s": s} for b, s in SIZES],
        dict.fromkeys(SIZES, 1),
        dict.fromkeys(SIZES, 0.5),
        np.array(SIZES),
        iter(SIZES),
    ],
    ids=("mappings", "counts", "weights", "array", "iterator"),
)
def test_requests_have_many_forms(sizes):
    found = sx.fit(None, sizes, graphs=3, cost=area)
    assert found.strategies == sx.fit(None, SIZES, graphs=3, cost=area).strategies


def test_a_request_of_the_only_symbol_is_an_int():
    found = sx.fit(None, [10, 11, 12, 50, 51, 90], graphs=3, cost=lambda s: s)
    assert found.strategies == {"s": sx.Ladder([12, 51, 90])}
    assert found.is_optimal


def test_buckets_are_multiples_and_those_that_must_be_there_are():
    found = sx.fit(None, SIZES, graphs=5, cost=area, multiple_of={"s": 16}, must={"s": [64]})
    assert 64 in found.strategies["s"].buckets
    assert all(bucket % 16 == 0 for bucket in found.strategies["s"].buckets)
    assert found.strategies["s"].buckets[-1] == 96


def test_a_size_of_count_zero_is_reached_and_costs_nothing():
    found = sx.fit(None, {(1, 10): 2, (4, 200): 0}, graphs=4, cost=area)
    assert found.cost == found.exact_cost == 20
    assert (found.strategies["b"].bucket(4), found.strategies["s"].bucket(200)) == (4, 200)


def test_the_fewest_graphs_that_keep_to_a_waste_are_chosen():
    wastes = [sx.fit(None, SIZES, graphs=k, cost=area).waste for k in range(1, 7)]
    enough = next(k for k, waste in enumerate(wastes, start=1) if waste <= 0.2)
    found = sx.fit(None, SIZES, max_waste=0.2, cost=area)
    assert found.waste == wastes[enough - 1]
    assert found.graphs == enough


def payback(seconds):
    return sx.fit(
        None,
        SIZES,
        cost=area,
        compile_seconds=seconds,
        requests_per_second=10.0,
        horizon=6.0,
    )


@pytest.mark.parametrize("seconds", [1e-3, 500.0, 2000.0, 1e6])
def test_a_graph_is_added_where_it_pays_for_its_compile(seconds):
    share = 10.0 * 6.0 / len(SIZES)
    costs = {k: sx.fit(None, SIZES, graphs=k, cost=area).cost for k in range(1, 9)}
    least = min(costs[k] * share + k * seconds for k in costs)
    found = payback(seconds)
    assert found.cost * share + found.graphs * seconds == pytest.approx(least)


def test_cheap_compiles_leave_no_padding_and_dear_ones_one_graph():
    assert payback(1e-3).waste == 0
    assert payback(1e6).graphs == 1


def test_a_fit_prints_its_ladders_its_bound_and_its_graphs():
    found = sx.fit(None, [(1, 10), (1, 12), (2, 50), (8, 50)], graphs=2, cost=area)
    assert str(found).splitlines() == [
        "4 requests in 2 graphs: padding is 25.4% of the cost, the least possible",
        "  b: Ladder([2, 8])",
        "  s: Ladder([50])",
        "  b   s  requests   cost  padding",
        "  8  50         1  57.1%     0.0%",
        "  2  50         3  42.9%    59.3%",
    ]


def test_a_fit_that_costs_nothing_prints():
    assert str(sx.fit(None, {3: 1}, graphs=1, cost=lambda s: 0.0)).splitlines() == [
        "1 requests in 1 graphs: padding is 0.0% of the cost, the least possible",
        "  s: Ladder([3])",
        "  s  requests  cost  padding",
        "  3         1  0.0%     0.0%",
    ]


def test_a_parameter_with_a_default_is_no_symbol():
    found = sx.fit(None, [10, 50], graphs=2, cost=lambda s, scale=2, **rest: s * scale)
    assert found.strategies == {"s": sx.Ladder([10, 50])}


FORMS = 'pass a list of requests, each {"b": 8, "s": 8} or (8, 8), or their counts: {(8, 8): 3}'
A_COST = "a function of the sizes: cost=lambda b, s: b * s * s"
TOO_LONG = "a shorter horizon=, or none of the three options and graphs= instead"
TOGETHER = "compile_seconds=, requests_per_second= and horizon= together, in seconds"
REFUSED = [
    (
        {"graphs": 0},
        "graphs=0 is not an integer of at least 1.",
        "pass graphs as an int, 1 or more",
    ),
    ({"sizes": []}, "sizes is empty: no request was seen.", "pass at least one request"),
    ({"sizes": 5}, "sizes=5 is not a collection of requests.", FORMS),
    (
        {"sizes": [(1, 2), (3,)]},
        "sizes[1]=(3,) does not have one size for each symbol: `b` and `s`.",
        FORMS,
    ),
    (
        {"sizes": [{"b": 1, "q": 2}]},
        "sizes[0]={'b': 1, 'q': 2} does not have one size for each symbol: `b` and `s`.",
        FORMS,
    ),
    (
        {"sizes": [(1, 0)]},
        "sizes[0]['s']=0 is not an integer of at least 1.",
        "pass sizes[0]['s'] as an int, 1 or more",
    ),
    (
        {"sizes": {(1, 2): -1}},
        "sizes[(1, 2)]=-1 is not a count.",
        "pass each count as a finite number, 0 or more",
    ),
    (
        {"cost": 3},
        "fit: None has no symbols.",
        "sx.fit(run, sizes, graphs=16), with an Exec, a CostModel, or None and cost=",
    ),
    (
        {"cost": lambda b, s: -b},
        "cost(b=1, s=10) = -1 is not a finite number of at least 0.",
        "return what a call costs, such as its seconds",
    ),
    (
        {"cost": lambda b, s: 100 * b - s},
        "cost falls as `s` grows.",
        "pass a cost that never falls, such as the running maximum of a measured one",
    ),
    ({"must": [8]}, "must=[8] does not name the symbol.", "must={'s': [...]}"),
    (
        {"must": {"q": [8]}},
        "must: there is no symbol 'q'.",
        "must={'b': ...}",
    ),
    (
        {"must": {"s": [91]}},
        "must: s=91 is beyond the greatest size, 90.",
        "a smaller bucket; a size that may occur goes into sizes with the count 0",
    ),
    (
        {"must": {"s": [30]}, "multiple_of": 16},
        "must: s=30 is not a multiple of 16.",
        "32, or another multiple_of=",
    ),
    (
        {"must": {"b": [1, 2, 3]}, "graphs": 2},
        "graphs=2 are too few for the buckets that must be there.",
        "a larger graphs=, or fewer buckets in must=",
    ),
    (
        {"max_waste": 1.0},
        "max_waste=1.0 is not a share from 0 to just below 1.",
        "max_waste=0.1, say, for 10 %",
    ),
    (
        {"max_waste": 0.1, "graphs": 2},
        "max_waste=0.1 needs more than 2 graphs.",
        "a larger max_waste=, or more graphs: graphs= or max_graphs=",
    ),
    (
        {"max_memory": 80, "memory": area},
        "max_memory=80 is too little for a request: it needs more bytes.",
        "a larger max_memory=, or requests that are split, such as smaller batches",
    ),
    (
        {"max_memory": 0, "memory": area},
        "max_memory=0 is not a positive number of bytes.",
        "max_memory=8 * 2**30, say, for 8 GiB",
    ),
    (
        {"memory": max},
        "memory=<built-in function max> limits nothing by itself.",
        "max_memory=8 * 2**30, say, for 8 GiB",
    ),
    (
        {"max_memory": 80},
        "max_memory: None has no estimate of the bytes that a call needs.",
        "memory=lambda b, s: its bytes; or pass an Exec or a CostModel",
    ),
    (
        {"max_memory": 80, "memory": lambda b, s: -1},
        "memory(b=1, s=10) = -1 is not a finite number of at least 0.",
        "return the bytes that a call needs",
    ),
    (
        {"max_memory": 80, "memory": 3},
        "memory=3 cannot be called.",
        "a function of the sizes: memory=lambda b, s: b * s * s",
    ),
    (
        {"sizes": {(1, 2): 1e308, (3, 4): 1e308}},
        "sizes: the counts add up to inf, more than 1e+290.",
        "divide the counts by the greatest: only their ratios matter",
    ),
    (
        {"sizes": {(1, 2): 10**400}},
        "sizes[(1, 2)]=1000000000000000000000000000000000000000 is not a count.",
        "pass each count as a finite number, 0 or more",
    ),
    (
        {"sizes": {(1, 2): 1e280}, "cost": lambda b, s: 1e200},
        "the cost of 1e+280 requests is beyond what a float holds.",
        "cost= in a larger unit, or smaller counts",
    ),
    (
        {"cost": lambda b, s: 10**400},
        "cost(b=1, s=10) = 1000000000000000000000000000000000000000 is not a finite number of at"
        " least 0.",
        "return what a call costs, such as its seconds",
    ),
    (
        {"sizes": [(1, 2**63)]},
        "sizes[0]['s']=9223372036854775808 is more than 2**53.",
        "a size that an array can have",
    ),
    (
        {"multiple_of": {"s": 2**63}},
        "multiple_of['s']=9223372036854775808 is more than 2**53.",
        "a size that an array can have",
    ),
    (
        {"must": {"s": 3}},
        "must['s']=3 is not a list of buckets.",
        "must={'s': [64, 128]}",
    ),
    (
        {"max_waste": "0.1"},
        "max_waste='0.1' is not a share from 0 to just below 1.",
        "max_waste=0.1, say, for 10 %",
    ),
    (
        {"cost": max},
        "cost=<built-in function max> has no signature that names its parameters.",
        A_COST,
    ),
    (
        {"compile_seconds": "1", "requests_per_second": 1.0, "horizon": 60.0},
        "compile_seconds='1' is not a positive number.",
        TOGETHER,
    ),
    (
        {"compile_seconds": 1.0, "requests_per_second": 1e200, "horizon": 1e200},
        "the time of all calls and compiles is beyond what a float holds.",
        TOO_LONG,
    ),
    (
        {"graphs": 2, "compile_seconds": 1.0, "requests_per_second": 1.0, "horizon": 60.0},
        "graphs=2 and compile_seconds=: both determine the number of graphs.",
        "pass one of them; max_graphs= is the limit where compile_seconds= chooses",
    ),
    ({"horizon": 60.0}, "compile_seconds=None is not a positive number.", TOGETHER),
    (
        {"compile_seconds": 1.0, "requests_per_second": -1, "horizon": 60.0},
        "requests_per_second=-1 is not a positive number.",
        TOGETHER,
    ),
]


@pytest.mark.parametrize(
    ("options", "first", "fix"), REFUSED, ids=[first for _, first, _ in REFUSED]
)
def test_what_cannot_be_fitted_is_refused_with_a_way_out(options, first, fix):
    given = {"sizes": SIZES, "cost": area} | options
    with pytest.raises(sx.ConfigError) as caught:
        sx.fit(None, given.pop("sizes"), **given)
    assert caught.value.what == first
    assert str(caught.value).endswith(f"\n  Fix:   {fix}")


def test_a_function_without_symbols_has_nothing_to_fit():
    with pytest.raises(sx.ConfigError) as caught:
        sx.fit(sx.Exec(attend, in_shapes=(None, None)), SIZES)
    no_symbol = "has no symbol whose buckets could be fitted."
    assert caught.value.what == f"fit: Exec(attend, 0 graphs) {no_symbol}"
    assert caught.value.fix == 'name the axes that change: sx.Exec(fn, ("b, s",))'
    with pytest.raises(sx.ConfigError) as caught:
        sx.fit(None, SIZES, cost=constant)
    assert caught.value.what == f"fit: {constant!r} {no_symbol}"
    assert caught.value.fix == A_COST


def constant(scale=1):
    return scale


def of_b(b):
    return b


@pytest.mark.parametrize(
    ("cost", "first", "fix"),
    [
        ("linear", "cost='linear' cannot be called.", A_COST),
        (max, "cost=<built-in function max> has no signature that names its parameters.", A_COST),
        (
            of_b,
            f"cost={of_b!r} cannot be called with `b` and `s` by keyword.",
            "cost=lambda b, s: ...",
        ),
    ],
    ids=("text", "builtin", "one symbol only"),
)
def test_a_cost_that_is_no_function_of_the_symbols_is_refused(cost, first, fix):
    with pytest.raises(sx.ConfigError) as caught:
        sx.fit(called(), SIZES, cost=cost)
    assert (caught.value.what, caught.value.fix) == (first, fix)


def test_buckets_of_the_only_symbol_are_a_list():
    with pytest.raises(sx.ConfigError) as caught:
        sx.fit(None, [3, 9], cost=lambda s: s, must=3)
    assert caught.value.what == "must['s']=3 is not a list of buckets."
