"""`Exec.advise`: following each line helps by what it said, within a factor of 2."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.execution._function import runner_of
from shapeexec.execution._learning import EVERY
from shapeexec.execution.analysis import _advise, _of_running
from shapeexec.execution.analysis._facts import Facts
from tests.execution.behind import join_workers
from tests.execution.support import ones

SPEED = sx.Speed(seconds_per_flop=1e-8, seconds_per_byte=1e-8)
SLOW = sx.Speed(seconds_per_flop=1e-2, seconds_per_byte=1e-2)
FREE = sx.Speed(seconds_per_flop=0.0, seconds_per_byte=0.0)


def spread(x):  # x: f32[b, s]
    return x - x.mean(axis=1, keepdims=True)


def branching(x):  # x: f32[b, s]
    return spread(x) * 2 if x.shape[1] > 40 else spread(x)


def by_parity(x):  # x: f32[b, s]
    return spread(x) * 2 if x.shape[1] % 2 == 0 else spread(x)


def without_parity(x):  # x: f32[b, s]
    return jax.lax.cond(jnp.asarray(x.shape[1]) % 2 == 0, lambda x: x * 2, lambda x: x, spread(x))


def drawn(low, high, *, count=60):
    random = np.random.default_rng(0)
    return [(int(random.integers(1, 5)), int(random.integers(low, high))) for _ in range(count)]


def served(run, calls):
    for b, s in calls:
        run(ones(b, s))
    return run


@dataclasses.dataclass(frozen=True)
class Case:
    """Calls, and the advice that they lead to."""

    kind: str
    calls: list[tuple[int, int]]
    fn: object = spread
    options: dict[str, object] = dataclasses.field(default_factory=dict)
    speed: sx.Speed = SPEED
    followed: object = None  # the changed function; None: `apply` changes settings


CASES = [
    Case("strategy", drawn(65, 80)),
    Case("strategy", drawn(33, 90, count=30), options={"buckets": {"s": sx.Pow2()}}),
    Case("strategy", drawn(5, 30), options={"buckets": sx.Linear(64)}),
    Case("waste", drawn(33, 64, count=20), options={"buckets": sx.Linear(64)}, speed=SLOW),
    Case("guards", drawn(20, 60, count=30), fn=branching, speed=FREE),
    Case("guards", drawn(33, 60, count=16), fn=by_parity, followed=without_parity, speed=FREE),
    Case(
        "thrash", drawn(8, 60, count=24), options={"limits": sx.CacheLimits(graphs=6)}, speed=FREE
    ),
]


@pytest.mark.filterwarnings("ignore:shapeexec:RuntimeWarning")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
def test_following_a_line_spares_what_it_said_and_its_source_is_the_same(case):
    run = served(sx.Exec(case.fn, ("b, s",), **case.options), case.calls)
    advice = run.advise(case.speed)
    (line,) = [line for line in advice if line.kind == case.kind]
    other = run.variant(fn=case.followed) if case.followed else advice.apply(case.kind)
    if not case.followed:
        names = {"sx": sx, "run": run}
        exec(line.change, names)
        assert (names["run"].settings, names["run"]._limits) == (other.settings, other._limits)
    served(other, case.calls)
    assert line.saves
    for name, said in line.saves.items():
        spared = getattr(run.stats, name) - getattr(other.stats, name)
        assert said / 2 <= spared <= 2 * said, name
        assert spared > 0
    if case.kind in ("strategy", "waste"):
        spared = modelled(run, case.speed) - modelled(other, case.speed)
        made = (len(other.graphs) - len(run.graphs)) * run.analysis().graph_seconds
        spared -= made * (case.kind == "waste")
        assert line.seconds / 2 <= spared <= 2 * line.seconds


def test_what_ran_exactly_before_an_axis_was_a_symbol_is_not_padded_by_the_advice():
    calls = [(2, 5), (2, 6)] * 20 + [(2, 520), (2, 700), (2, 600), (2, 550)] * 3
    run = served(sx.Exec(spread), calls)
    advice = run.advise(SPEED)
    (line,) = [line for line in advice if line.kind == "strategy"]
    other = served(advice.apply("strategy"), calls)
    assert run.stats.padded_bytes - other.stats.padded_bytes == line.saves["padded_bytes"] > 0


def modelled(run, speed):
    """The seconds of all calls by the cost model, at the buckets that they ran in."""
    model = run.cost_model()
    return sum(use.calls * model.seconds(speed, **use.buckets) for use in run.analysis().uses)


def test_the_bound_of_a_branch_is_found_between_the_sizes_that_were_seen():
    run = served(sx.Exec(branching, ("b, s",)), [(1, 20), (1, 33), (1, 50), (1, 50)])
    (line,) = [line for line in run.advise(FREE) if line.kind == "guards"]
    assert line.changes["strategies"]["s"].buckets == (40, 64)
    assert "s > 40" in line.observation or "s <= 40" in line.observation


def test_the_padding_that_is_left_is_told_as_a_share_of_what_there_was():
    run = served(sx.Exec(spread, ("b, s",), buckets={"s": sx.Linear(50)}), [(1, 60), (1, 80)])
    (line,) = [line for line in run.advise(SPEED) if line.kind == "strategy"]
    assert line.saves == {"padded_bytes": 4 * (60 - 20)}
    assert line.observation.endswith("padding in bytes falls to 33%")


def attend(q, k, v):  # f32[b, s, 2, 4] each
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2.0
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)


def attend_causally(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2.0
    seen = jnp.arange(q.shape[1])[:, None] >= jnp.arange(k.shape[1])
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def attend_in_a_loop(q, k, v):
    def step(x, _):
        return attend(x, k, v), None

    return jax.lax.scan(step, q, None, length=2)[0]


def no_softmax(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(scores), v)


def other_sum(q, k, v):
    scores = jnp.exp(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    weights = scores / jnp.exp(jnp.einsum("bqhd,bkhd->bhqk", k, q)).sum(axis=-1, keepdims=True)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def no_product(q, k, v):
    weights = jax.nn.softmax(q[:, :, 0, 0][:, None] + k[:, :, 0, 0][..., None], axis=-1)
    return jnp.einsum("bqk,bkhd->bqhd", weights, v)


def asked(fn, platform="gpu"):
    """The lines on attention of a function that was called, as if on a device of a platform."""
    run = sx.Exec(fn, ("b, s, 2, 4",) * 3)
    for s in (40, 64, 33):
        run(*[ones(2, s, 2, 4) / 1000] * 3)
    facts = facts_of(run, platform=platform)
    advice = _advise.advice_of(facts, make=run._changed)
    return run, [line for line in advice if line.kind == "attention"]


def facts_of(run, *, platform="cpu", speed=SPEED):
    return Facts(
        settings=run.settings,
        limits=run._limits,
        analysis=run.analysis(),
        rows=run.graphs.rows,
        model=run.cost_model(),
        speed=speed,
        platform=platform,
    )


@pytest.mark.parametrize(
    ("fn", "mask"), [(attend, ""), (attend_causally, ", mask=...")], ids=("full", "causal")
)
def test_attention_that_is_written_out_is_found_with_the_bytes_that_a_kernel_spares(fn, mask):
    run, (line,) = asked(fn)
    assert line.change.startswith(f"sx.dot_product_attention(q, k, v{mask})")
    assert 'einsum("bhqk,bkhd->bqhd"' in line.observation

    def kernel(q, k, v):
        return sx.dot_product_attention(q, k, v, is_causal=bool(mask))

    written, other = run.cost_model(), run.variant(fn=kernel)
    other(*[ones(2, 64, 2, 4) / 1000] * 3)
    spared = 3 * (written(b=2, s=64).bytes - other.cost_model()(b=2, s=64).bytes)
    assert line.bytes / 2 <= spared <= 2 * line.bytes
    assert line.seconds is None


def test_attention_in_a_loop_is_found():
    assert len(asked(attend_in_a_loop)[1]) == 1


@pytest.mark.parametrize("fn", [no_softmax, other_sum, no_product])
def test_what_is_no_attention_is_not_taken_for_it(fn):
    assert asked(fn)[1] == []


def test_on_a_cpu_no_kernel_is_advised():
    assert asked(attend, platform="cpu")[1] == []


def test_copies_are_told_where_an_accelerator_compiles_them():
    run = served(sx.Exec(spread, ("b, s",)), [(1, 2)])
    facts = facts_of(run)
    assert not [*_of_running.copies(facts)]
    stats = dataclasses.replace(facts.analysis.stats, copy_compiles=40, copy_seconds=1.5)
    facts = dataclasses.replace(facts, analysis=dataclasses.replace(facts.analysis, stats=stats))
    (line,) = _of_running.copies(facts)
    assert (line.seconds, line.saves, line.changes) == (
        1.5,
        {"copy_compiles": 40},
        {"returns": "host"},
    )
    hosted = dataclasses.replace(facts, settings=run.variant(returns="host").settings)
    assert not [*_of_running.copies(hosted)]


def test_a_limit_in_bytes_grows_with_the_graphs():
    run = served(sx.Exec(spread, ("b, s",)), [(1, 2)])
    facts = facts_of(run)
    stats = dataclasses.replace(facts.analysis.stats, graphs=2, evictions=12, remade=8)
    facts = dataclasses.replace(
        facts,
        analysis=dataclasses.replace(facts.analysis, stats=stats),
        limits=sx.CacheLimits(graphs=None, device_bytes=1000, pin=[{"s": 4}]),
    )
    (line,) = _of_running.thrash(facts)
    assert line.change == (
        'run = run.variant(limits=sx.CacheLimits(graphs=None, device_bytes=3000, pin=({"s": 4},)))'
    )


def test_where_all_is_well_there_is_no_advice():
    run = served(sx.Exec(spread, ("b, s",), buckets=sx.Exact()), [(2, 8), (4, 8)] * 9)
    advice = run.advise(SPEED)
    assert (len(advice), str(advice)) == (0, "no advice")
    with pytest.raises(sx.ConfigError, match="apply: no advice changes a setting") as raised:
        advice.apply()
    assert raised.match("Fix: +print")


def test_symbols_that_cannot_be_padded_get_no_buckets():
    def unrolled(x):
        return sum(x[:, i] for i in range(x.shape[1]))

    run = sx.Exec(unrolled, ("b, s",), on_unsupported="exact")
    served(run, [(3, 2), (3, 3), (3, 2)])
    assert not [line for line in run.advise(SPEED) if line.kind in ("strategy", "waste", "guards")]


def test_symbols_that_calls_have_not_shown_yet_keep_their_strategy():
    def outer(x, y):
        return (x[:, None] * y[None, :]).mean(1)

    run = sx.Exec(outer, buckets=100)
    for n in range(3, 30):
        run(ones(n), ones(4))
    advised = run.advise(SPEED).apply()
    assert advised.settings.strategy("b") != sx.Linear(100)
    assert advised.settings.strategy("unknown_1_0") == sx.Linear(100)
    (line,) = run.advise(SPEED).lines
    assert '"UNKNOWN": sx.Linear(100)' in line.change


LEARNING = sx.Adaptive(graphs=6, compile_calls=1e6)  # which nothing here pays for


def test_buckets_that_learn_get_others_to_start_with():
    run = served(sx.Exec(spread, ("b, s",), buckets={"s": LEARNING}), drawn(65, 80, count=20))
    advice = run.advise(SPEED)
    (line,) = advice  # how many buckets there are they choose themselves
    names = {"sx": sx, "run": run}
    exec(line.change, names)
    other = advice.apply("strategy")
    assert names["run"].settings == other.settings
    strategy = other.settings.strategies["s"]
    assert dataclasses.replace(strategy, start=LEARNING.start) == LEARNING
    served(other, drawn(65, 80, count=20))
    said, spared = line.saves["padded_bytes"], run.stats.padded_bytes - other.stats.padded_bytes
    assert said / 2 <= spared <= 2 * said
    spared = modelled(run, SPEED) - modelled(other, SPEED)
    assert line.seconds / 2 <= spared <= 2 * line.seconds


def test_buckets_that_have_learned_enough_get_no_others():
    rule = sx.Adaptive(graphs=2, compile_calls=1.0, min_usage=0.02)
    run = sx.Exec(spread, ("b, s",), buckets={"b": sx.Exact(), "s": rule})
    for call in range(EVERY - 1):
        run(ones(2, (5, 9)[call % 2]))
    assert [line.kind for line in run.advise(SPEED)] == ["strategy"]
    run(ones(2, 9))
    join_workers()
    assert run.settings.strategy("s") == sx.Ladder((5, 9), beyond=sx.Pow2())
    assert not run.advise(SPEED).lines


def test_of_two_lines_that_change_one_setting_the_dearer_counts():
    lines = tuple(
        sx.AdviceLine(kind, "", "", seconds=seconds, changes={kind[0]: kind, "both": kind})
        for kind, seconds in (("waste", 2.0), ("strategy", 1.0))
    )
    advice = sx.Advice(lines, dict)
    assert advice.apply() == {"both": "waste", "w": "waste", "s": "strategy"}
    assert advice.apply("strategy") == {"both": "strategy", "s": "strategy"}


def test_the_dearest_line_stands_first():
    with pytest.warns(RuntimeWarning, match="compiled again"):
        run = served(
            sx.Exec(spread, ("b, s",), limits=sx.CacheLimits(graphs=1)), drawn(65, 80, count=16)
        )
    advice = run.advise(SPEED)
    prices = [line.seconds for line in advice]
    assert len(prices) > 1
    assert prices == sorted(prices, reverse=True)
    assert str(advice).startswith(f"{advice.lines[0].kind}, {advice.lines[0].price}: ")


ERRORS = [
    ((), {}, "advise: spread was not called yet.", "call it with what it will see"),
    ([(2, 3)], {"speed": 3}, "advise: 3 is not a Speed.", r"speed=sx.Speed\(...\)"),
]


@pytest.mark.parametrize(("calls", "options", "what", "fix"), ERRORS, ids=["no call", "no speed"])
def test_what_cannot_be_advised_on_is_told(calls, options, what, fix):
    run = served(sx.Exec(spread, ("b, s",)), calls)
    with pytest.raises(sx.ConfigError, match=what) as raised:
        run.advise(**options)
    assert raised.match(f"Fix: +{fix}")


def test_advice_of_a_kind_that_is_not_there_is_refused():
    run = served(sx.Exec(spread, ("b, s",)), drawn(65, 80))
    with pytest.raises(sx.ConfigError, match="there is no advice of the kind 'thrash'") as raised:
        run.advise(SPEED).apply("thrash")
    assert raised.match("Got: +strategy")
    assert raised.match("Fix: +one of these")


def test_a_variant_may_have_other_limits():
    run = sx.Exec(spread, ("b, s",))
    limits = sx.CacheLimits(graphs=3)
    assert runner_of(run.variant(limits=limits)).store.limits == limits
    assert run.variant(limits=limits).variant(check="off")._limits == limits
    with pytest.raises(sx.ConfigError, match="limits=3"):
        run.variant(limits=3)
