"""A call whose graph is missing: it waits, runs in a larger graph meanwhile, or is an error."""

import dataclasses
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.execution import _making
from shapeexec.masking._registry import RULES
from tests.execution.behind import NAME, Gate, gate, join_workers
from tests.execution.support import assert_runs_as, assert_same, counted, ones, refused, wait_for
from tests.execution.test_concurrency import together
from tests.tolerance import assert_close

P = sx.Pow2()

__all__ = ["gate"]


def made(fn, in_shapes=("s",), buckets=P, **options) -> sx.Exec:
    return sx.Exec(fn, in_shapes, buckets=buckets, missing="larger", **options)


def half_of(x):
    n = x.shape[0]
    return x.sum() / (n * (n + 1) / 2)


def upto_hundred(x):  # the smaller the size, the more elements
    return jnp.ones(100 - x.shape[0]).sum() + x.sum()


def test_a_function_that_attention_lowers_is_called_where_it_is_lowered(gate):
    called_in = []

    def allowed(b, h, q, k):
        called_in.append(threading.current_thread().name)
        return k <= q

    def attend(x):
        return sx.dot_product_attention(x, x, x, mask=sx.MaskFunction(allowed))

    def tokens(s):
        return np.random.default_rng(s).normal(size=(1, s, 2, 4)).astype(np.float32)

    run = made(attend, ("1, s, 2, 4",))
    run.warmup(tokens(3), s=32)
    called_in.clear()
    lent = run(tokens(9))
    assert NAME not in called_in
    gate.settle()
    assert NAME in called_in
    assert [row.origin for row in run.graphs] == ["warmup", "worker"]
    for result in (lent, run(tokens(9))):
        assert_close(result, attend(tokens(9)))


FUNCTIONS = {
    "mean": lambda x: x.mean(),
    "softmax": lambda x: jax.nn.softmax(-x),
    "sort": lambda x: jnp.sort(-x),
    "last": lambda x: x[-1] + x[::-1].cumsum()[0],
    "prod": lambda x: (x / 3).prod() + (-x).max(),
    "reshaped": lambda x: jnp.stack([x, -x]).reshape(-1),
    "numbers of the host": half_of,
    "a capacity that falls": upto_hundred,
    "a branch": lambda x: x.sum() if x.shape[0] > 5 else x.max(),
    "gradient": jax.grad(lambda x: x.std() * x.shape[0]),
}


@pytest.mark.parametrize("poison", [None, "nan"])
@pytest.mark.parametrize("fn", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_call_of_each_smaller_size_is_exact_in_the_larger_graph(fn, poison, gate: Gate):
    ex = made(fn, poison=poison)
    ex.warmup(ones(1), s=64)
    for size in range(2, 33):
        assert_runs_as(fn, ex, ones(size))
    assert ex.stats.larger >= 27
    gate.settle()
    for size in range(2, 33):
        assert_runs_as(fn, ex, ones(size))
    assert ex.stats.larger <= 31


def test_two_symbols_run_in_the_cheapest_graph_that_holds_both(gate: Gate):
    ex = made(lambda x: x.mean(axis=1), ("b, s",))
    for b, s in [(1, 512), (32, 32), (64, 8)]:
        ex.warmup(ones(1, 1), b=b, s=s)
    wanted = {(1, 5): "b=1, s=512", (3, 5): "b=64, s=8", (3, 20): "b=32, s=32"}
    for (b, s), sizes in wanted.items():
        plan = ex.plan(ones(b, s))
        assert plan.runs_in.sizes == sizes
        assert str(plan).endswith(f"; not compiled yet, runs in {sizes} until then")
        assert str(ex.explain(ones(b, s))).startswith(str(plan))
        assert_runs_as(lambda x: x.mean(axis=1), ex, ones(b, s))
    assert ex.stats.larger == 3
    assert ex.plan(ones(33, 33)).runs_in is None


@pytest.mark.parametrize(
    ("returns", "kind"), [("device", jax.Array), ("host", np.ndarray), ("padded", sx.Padded)]
)
def test_a_call_in_a_larger_graph_returns_what_was_asked_for(returns, kind, gate: Gate):
    ex = sx.Exec(lambda x: x * 2, ("s",), missing="larger", returns=returns)
    x = np.arange(3, dtype=np.float32)
    ex.warmup(x, s=16)
    result = ex(x)
    assert ex.stats.larger == 1
    assert isinstance(result, kind)
    np.testing.assert_array_equal(np.asarray(result), 2 * x)
    np.testing.assert_array_equal(np.asarray(ex.padded(x)), 2 * x)


def with_calls_in_a_larger_graph():
    """An Exec with a graph of 64, and the sums of three calls whose own graph of 8 is missing."""
    ex = made(lambda x: x.sum())
    ex(ones(64))
    return ex, [float(ex(ones(n))) for n in (5, 6, 5)]


def test_a_larger_graph_serves_calls_until_their_own_is_there(gate: Gate):
    ex, sums = with_calls_in_a_larger_graph()
    assert sums == [15, 21, 15]
    assert gate.compiled_in[1:] in ([], ["shapeexec"])
    assert (ex.stats.larger, ex.stats.misses, ex.stats.hits) == (3, 4, 0)
    assert [row.sizes for row in ex.graphs] == ["s=64"]


def test_the_own_graph_of_a_call_is_used_once_it_is_there(gate: Gate):
    ex, _ = with_calls_in_a_larger_graph()
    gate.settle()
    with counted() as count:
        assert [float(ex(ones(n))) for n in (5, 6, 5)] == [15, 21, 15]
    assert count.compilations == 0
    assert (ex.stats.larger, ex.stats.misses, ex.stats.hits) == (3, 4, 3)


def test_graphs_and_plans_tell_which_graph_a_worker_made(gate: Gate):
    ex, _ = with_calls_in_a_larger_graph()
    gate.settle()
    assert [(row.sizes, row.origin) for row in ex.graphs] == [("s=64", "made"), ("s=8", "worker")]
    assert [dict(row.least) for row in ex.graphs] == [{"s": 1}, {"s": 1}]
    assert (ex.graphs[{"s": 5}].sizes, ex.graphs[{"s": 9}].sizes) == ("s=8", "s=64")
    assert ex.plan(ones(5)).runs_in.origin == "worker"
    assert str(ex.plan(ones(5))).endswith("; compiled")


def bfloat(n):
    return ones(n).astype(jnp.bfloat16)


UNLIKE = {
    "a dtype": (lambda x: x.sum(), {}, bfloat),
    "another outcome of a guard": (lambda x: x.sum() if x.shape[0] > 9 else -x, {}, ones),
    "an exact symbol": (
        lambda x: sum(x[i] for i in range(x.shape[0])),
        {"on_unsupported": "exact"},
        ones,
    ),
    "a sharding": (lambda x: x.sum(), {}, lambda n: jax.device_put(ones(n), jax.devices()[0])),
    "a larger size": (lambda x: x.sum(), {}, lambda n: ones(64 + n)),
}


@pytest.mark.parametrize(("fn", "options", "other"), UNLIKE.values(), ids=UNLIKE)
def test_a_call_waits_where_no_graph_of_its_kind_is_larger(fn, options, other, gate: Gate):
    ex = made(fn, **options)
    ex(ones(64))
    assert ex.plan(other(5)).runs_in is None
    assert_runs_as(fn, ex, other(5))
    assert (ex.stats.larger, set(gate.compiled_in)) == (0, {"MainThread"})


def test_many_threads_have_their_graph_made_once(gate: Gate):
    ex = made(lambda x: x.mean() * 2)
    ex(ones(64))
    assert together(16, lambda i: float(ex(ones(9 + i % 8)))) == [10.0 + i % 8 for i in range(16)]
    assert ex.stats.larger == 16
    with counted() as count:
        gate.settle()
    assert count.compilations == 1
    assert len(ex.graphs) == 2


def test_the_function_is_traced_by_the_thread_that_calls_alone():
    threads = set()

    def fn(x):
        threads.add(threading.current_thread().name)
        return x.max()

    ex = made(fn)
    ex(ones(64))
    for n in (3, 5, 9, 17):
        ex(ones(n))
    join_workers()
    assert ex.stats.compiles == 5
    assert threads == {"MainThread"}


def called_until_made(ex, size):
    assert_same(ex(ones(size)), ex.settings.fn(ones(size)))
    join_workers()


@pytest.mark.parametrize("is_own", [True, False], ids=["our rules", "a user's rule"])
def test_a_worker_masks_unless_a_rule_is_a_users(is_own, monkeypatch, gate: Gate):
    threads = []
    prepare = _making.prepare

    def prepare_it(outline):
        threads.append(threading.current_thread().name)
        return prepare(outline)

    monkeypatch.setattr(_making, "prepare", prepare_it)
    if not is_own:
        rule = RULES["reduce_max"]

        def of_a_user(*args, **params):
            return rule.apply(*args, **params)

        own = dataclasses.replace(rule, apply=of_a_user)
        monkeypatch.setitem(RULES, "reduce_max", own)
    ex = made(lambda x: x.max())
    ex(ones(64))
    assert_runs_as(lambda x: x.max(), ex, ones(5))
    gate.settle()
    assert threads == ["MainThread", NAME if is_own else "MainThread"]
    assert ex.stats.compiles == 2


def test_a_mask_that_a_worker_cannot_put_in_is_refused_by_the_next_call(monkeypatch):
    ex = made(lambda x: x.max())
    ex(ones(64))
    monkeypatch.setitem(RULES, "reduce_max", RULES["dot_general"])
    with pytest.warns(RuntimeWarning, match="could not compile the graph for s=5"):
        called_until_made(ex, 5)
    with pytest.raises(TypeError):
        ex(ones(5))


def test_a_configuration_of_one_thread_is_not_left_to_another(gate: Gate):
    ex = made(lambda x: x @ x)
    with jax.default_matmul_precision("float32"):
        ex(ones(64))
        ex(ones(5))
    assert set(gate.compiled_in) == {"MainThread"}
    assert (ex.stats.larger, ex.stats.compiles) == (0, 2)


def test_a_trace_is_proven_at_the_sizes_of_each_call(gate: Gate):
    def fn(x, y):  # nobody hears `is`, which is true of small ints that are equal
        return x.sum() + y.sum() if x.shape[0] is y.shape[0] else x.sum() - y.sum()

    ex = made(fn, ("s", "t"))
    assert float(ex(ones(64), ones(32))) == fn(ones(64), ones(32))
    assert float(ex(ones(5), ones(6))) == 15 - 21
    assert ex.stats.larger == 1  # and the graph of this bucket is being made
    with pytest.warns(RuntimeWarning, match="not the same as at s=5, t=5"):
        assert float(ex(ones(5), ones(5))) == 30
    assert (ex.stats.larger, ex.stats.differences) == (1, 1)


@pytest.fixture(params=[MemoryError, SystemExit], ids=lambda kind: kind.__name__)
def broken(request, monkeypatch):
    fails = [request.param]
    compiled = _making.compile_graph

    def compile_it(made, row, **given):
        if fails and row.buckets != {"s": 64}:
            raise fails[0]("XLA has no room")
        return compiled(made, row, **given)

    monkeypatch.setattr(_making, "compile_graph", compile_it)
    return fails


def test_a_worker_that_fails_is_told_and_the_next_call_raises_it(broken):
    ex = made(lambda x: x.sum())
    ex(ones(64))
    with pytest.warns(RuntimeWarning) as told:
        called_until_made(ex, 5)
    (text,) = [str(warning.message) for warning in told]
    assert text == (
        "shapeexec: another thread could not compile the graph for s=5 in bucket 8 "
        f"(38% padding); not compiled yet: {broken[0].__name__}: XLA has no room\n"
        "  Fix:   the next call of this bucket makes it, and says what stops it; "
        'or missing="wait"'
    )
    for n in (6, 5):
        with pytest.raises(broken[0], match="no room"):
            ex(ones(n))
    broken.clear()
    assert float(ex(ones(5))) == 15
    assert ex.stats.larger == 1


def test_a_graph_that_is_made_while_all_is_cleared_is_forgotten(gate: Gate):
    ex = made(lambda x: x.sum())
    ex(ones(64))
    ex(ones(5)), ex(ones(9)), ex(ones(17))
    wait_for(gate.reached)
    ex.clear()
    gate.settle()
    assert len(ex.graphs) == 0
    assert gate.compiled_in == ["MainThread", "shapeexec"]
    assert float(ex(ones(5))) == 15


def test_a_failure_is_forgotten_if_all_was_cleared_meanwhile(monkeypatch):
    reached, opened = threading.Event(), threading.Event()

    def compile_graph(prepared, row, **given):
        if threading.current_thread() is not threading.main_thread():
            reached.set()
            wait_for(opened)
            raise MemoryError("XLA has no room")
        return _compile_graph(prepared, row, **given)

    _compile_graph = _making.compile_graph
    monkeypatch.setattr(_making, "compile_graph", compile_graph)
    ex = made(lambda x: x.sum())
    ex(ones(64))
    ex(ones(5))
    wait_for(reached)
    ex.clear()
    opened.set()
    join_workers()  # a warning would be an error here
    assert not ex._runner.store.behind._failed


def test_freezing_leaves_what_waits_and_keeps_what_is_made(gate: Gate):
    ex = made(lambda x: x.sum())
    ex(ones(64))
    ex(ones(5)), ex(ones(9))
    wait_for(gate.reached)
    ex.freeze()
    gate.settle()
    assert [row.sizes for row in ex.graphs] == ["s=64", "s=8"]
    assert [float(ex(ones(n))) for n in (5, 9, 2)] == [15, 45, 3]
    join_workers()
    assert (len(ex.graphs), ex.stats.larger) == (2, 4)
    with refused(sx.FrozenError, "frozen, and no graph is compiled", "or do not freeze"):
        ex(ones(65))


AT_EXIT = """
import threading, time, warnings
warnings.simplefilter("error")
import numpy as np, shapeexec as sx
from shapeexec.execution import _making
compile_graph = _making.compile_graph

def slow(*args, **given):
    while threading.current_thread().name == "shapeexec" and threading.main_thread().is_alive():
        time.sleep(0.01)
    print("compiled")
    return compile_graph(*args, **given)

_making.compile_graph = slow
run = sx.Exec(lambda x: x.sum(), ("s",), missing="larger")
for size in (64, 3, 5, 9, 17):
    assert run(np.ones(size, np.float32)) == size
assert run.stats.larger == 4
"""


def test_the_interpreter_ends_with_the_graph_that_is_being_made():
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["compiled"] * 2
