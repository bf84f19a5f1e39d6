"""Warm-up and freezing: afterwards calls compile nothing."""

import contextlib
import inspect
import subprocess
import sys
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.execution import _making
from tests.execution.behind import Gate, gate, join_workers
from tests.execution.support import assert_runs_as, counted, ones, refused, wait_for

__all__ = ["gate"]

P = sx.Pow2()


def scale(w, x):
    return w * x.sum(0)


KINDS = {
    "numpy": ones,
    "jax": lambda *shape: jnp.asarray(ones(*shape)),
    "committed": lambda *shape: jax.device_put(ones(*shape), jax.devices()[0]),
}


@pytest.mark.parametrize("batch", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("params", KINDS.values(), ids=KINDS)
def test_after_warmup_calls_compile_nothing(params, batch):
    ex = sx.Exec(scale, (None, "b, s"), buckets={"b": P, "s": sx.Linear(4)})
    w, x = params(1), batch(2, 2)
    assert ex.warmup(w, x, b=range(1, 5), s=(3, 8)) == 6
    ex.freeze()
    calls = [batch(b, s) for b in (1, 3, 4) for s in (1, 4, 5)]
    with counted() as count:
        results = [ex(w, call) for call in calls]
    assert count.compilations == 0
    assert ex.stats.misses == 0
    assert len(results) == 9


def test_shapes_will_do_as_examples():
    ex = sx.Exec(scale, (None, "b, s"), buckets=P)
    float32 = jax.ShapeDtypeStruct((1, 1), jnp.float32)
    assert ex.warmup(jax.ShapeDtypeStruct((), jnp.float32), float32, b=2, s=range(1, 5)) == 3
    w = jnp.float32(2)
    with counted() as count:
        ex(w, ones(2, 3))
    assert count.compilations == 0


def test_the_last_call_will_do_as_an_example():
    ex = sx.Exec(lambda x, n, *, y: x * n + y, ("s", None), buckets=P, static_argnums=1)
    ex(ones(3), 2, y=1.0)
    assert ex.warmup(s=range(1, 9)) == 3
    ex.freeze()
    ex(ones(7), 2, y=2.0)


def test_warmup_again_compiles_nothing():
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P)
    assert [ex.warmup(ones(1), s=range(1, 9)), ex.warmup(ones(1), s=range(1, 9))] == [4, 0]


def test_warmup_compiles_each_branch_that_sizes_take():
    def fn(x):
        return x.sum() if x.shape[0] % 2 else x.max()

    ex = sx.Exec(fn, ("s",), buckets=P)
    ex.warmup(ones(3), s=range(1, 9))
    ex.freeze()
    for n in range(1, 9):
        assert_runs_as(fn, ex, ones(n))


@pytest.mark.parametrize(
    "fn",
    [lambda x: sum(x[i] for i in range(x.shape[0])), lambda x: jax.new_ref(x)[...]],
    ids=["told by the trace", "found out on the way"],
)
def test_warmup_runs_exactly_what_cannot_be_padded(fn):
    ex = sx.Exec(fn, ("s",), buckets=P, on_unsupported="exact")
    ex.warmup(ones(3), s=range(1, 6))
    assert len(ex.graphs) == 5
    ex.freeze()
    for n in range(1, 6):
        assert_runs_as(fn, ex, ones(n))


def test_progress_is_told_before_each_graph_and_at_the_end():
    told = []
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P)
    ex.warmup(ones(1), s=range(1, 5), progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_sizes_in_any_order_and_more_than_once_are_sizes():
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P)
    assert ex.warmup(ones(1), s=[5, 3, 5, 4]) == 2


def test_warmup_without_an_example_is_an_error():
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P)
    with refused(sx.ConfigError, "warmup: the shapes and dtypes", "pass example arguments"):
        ex.warmup(s=4)


@pytest.mark.parametrize("sizes", [{}, {"t": 3}, {"s": 3, "t": 3}], ids=str)
def test_warmup_wants_sizes_for_each_symbol_and_no_other(sizes):
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P)
    with refused(sx.ConfigError, "but the symbols are s.", "give sizes for each symbol: s=..."):
        ex.warmup(ones(1), **sizes)


@pytest.mark.parametrize("sizes", [0, -1, (), "abc", None, (0, 3)], ids=repr)
def test_warmup_wants_sizes_of_at_least_1(sizes):
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P)
    with refused(sx.ConfigError, f"warmup: s={sizes!r} names no sizes", "s=range(1, 513)"):
        ex.warmup(ones(1), s=sizes)


@pytest.mark.parametrize(
    "sizes", ["12", [2.7], 3.0, True, [True], range(3), range(-2, 3)], ids=repr
)
def test_warmup_wants_sizes_that_are_integers(sizes):
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P)
    with refused(sx.ConfigError, f"warmup: s={sizes!r} names no sizes", "s=range(1, 513)"):
        ex.warmup(ones(1), s=sizes)


@pytest.mark.parametrize(
    "sizes",
    [np.int64(3), np.array([3, 4]), jnp.int32(3), {3, 4}, iter([3]), range(4, 2, -1)],
    ids=lambda sizes: type(sizes).__name__,
)
def test_warmup_takes_integers_of_every_kind(sizes):
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P)
    assert ex.warmup(ones(1), s=sizes) == 1
    assert [row.sizes for row in ex.graphs] == ["s=4"]


def test_warmup_takes_sizes_of_any_symbol():
    ex = sx.Exec(lambda x: x + 1, ("self, b",), buckets=P)
    assert ex.warmup(ones(1, 1), self=range(1, 3), sizes={sx.Dim("b"): [3, 5]}) == 4


OPTIONS = inspect.getfullargspec(sx.Exec.warmup).kwonlyargs


@pytest.mark.parametrize("n", [4, range(1, 5)])
@pytest.mark.parametrize("symbol", OPTIONS)
def test_sizes_of_a_symbol_that_is_named_like_an_option_are_in_the_mapping(symbol, n):
    told = []
    ex = sx.Exec(lambda x: x + 1, (f"{symbol}, z",), buckets=P)  # in the order of the alphabet
    done = lambda *now: told.append(now)
    made = ex.warmup(ones(1, 1), sizes={symbol: n}, z=n, workers=2, progress=done)
    assert made == len(ex.graphs) == (1 if n == 4 else 9)
    assert told[-1] == (made, made)
    what = f"sizes for z, but the symbols are {symbol}, z."
    with refused(sx.ConfigError, what, f"sizes={{'{symbol}': ..., 'z': ...}}"):
        ex.warmup(ones(1, 1), z=n)
    ex.freeze()
    with refused(sx.FrozenError, "frozen", f"warmup(*args, sizes={{'{symbol}': 9, 'z': 3}})"):
        ex(ones(9, 3))


@pytest.mark.parametrize(
    ("given", "what", "fix"),
    [
        ({"sizes": 8}, "sizes=8 is not a mapping of symbols to", "sizes={'sizes': 8}, if"),
        ({"sizes": {"s": 8}, "s": 4}, "sizes of `s` are given twice.", "leave out s=..., or 's'"),
        ({"s": 3, "progress": 3}, "progress=3 is neither True nor a function", "progress=True, or"),
    ],
    ids=["no mapping", "twice", "progress"],
)
def test_sizes_and_a_progress_that_say_nothing_are_refused(given, what, fix):
    with refused(sx.ConfigError, what, fix):
        sx.Exec(lambda x: x + 1, ("s",), buckets=P).warmup(ones(1), **given)


def test_warmup_without_sizes_makes_all_buckets_of_ladders_that_end():
    ex = sx.Exec(lambda x: x.sum(), ("s",), buckets=sx.Ladder([4], beyond=[9]))
    assert ex.warmup(ones(3)) == 2
    ex.freeze()
    for size in (3, 4, 5, 9):
        assert_runs_as(lambda x: x.sum(), ex, ones(size))


def test_warmup_looks_at_buckets_and_not_at_each_size():
    asked = []

    def bucket(size):
        asked.append(size)
        return 1 << (size - 1).bit_length()

    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=bucket)
    asked.clear()
    assert ex.warmup(ones(1), s=range(1, 4097)) == 13
    assert len(asked) < 1000


def test_warmup_of_each_size_has_the_buckets_of_these_sizes_alone():
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=sx.Linear(4), constraints="s <= 13")
    assert ex.warmup(ones(1), s=range(6, 14)) == 3
    assert [row.sizes for row in ex.graphs] == ["s=8", "s=12", "s=16"]


def test_warmup_past_a_ladder_is_an_error():
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets={"s": sx.Ladder([4])})
    for sizes in (range(1, 6), [5]):
        with pytest.raises(sx.BucketOverflowError, match="`s`: size=5") as caught:
            ex.warmup(ones(1), s=sizes)
        assert caught.value.symbol == "s"


def test_a_frozen_exec_refuses_what_it_does_not_hold():
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P)
    ex(ones(3))
    ex.freeze()
    ex(ones(4))
    with refused(sx.FrozenError, "frozen, and no graph is compiled for s=5", "warm up these sizes"):
        ex(ones(5))
    assert ex.cache_size == 1


def test_the_nearest_graphs_are_made_first():
    ex = sx.Exec(lambda x: x.sum(), ("b, s",), buckets=P)
    ex.warmup(ones(2, 30), b=range(1, 9), s=[8, 32])
    sizes = [row.sizes for row in ex.graphs]
    assert sizes[:2] == ["b=2, s=32", "b=1, s=32"]
    assert sizes[-1] == "b=8, s=8"


def test_several_workers_make_graphs_and_the_caller_alone_traces(gate: Gate):
    threads, told = set(), []

    def fn(x):
        threads.add(threading.current_thread().name)
        return x.mean()

    ex = sx.Exec(fn, ("s",), buckets=P)
    gate.opened.set()
    made = ex.warmup(ones(1), s=range(1, 200), workers=2, progress=lambda *t: told.append(t))
    assert made == ex.stats.compiles == len(ex.graphs) == 9
    assert threads == {"MainThread"}
    assert set(gate.compiled_in) == {"shapeexec"}
    assert {row.origin for row in ex.graphs} == {"warmup"}
    assert told == sorted(set(told))
    assert (told[0], told[-1]) == ((0, 9), (9, 9))
    ex.freeze()
    for n in (1, 7, 130, 199):
        assert_runs_as(fn, ex, ones(n))


def test_workers_find_out_on_the_way_what_cannot_be_padded():
    ex = sx.Exec(lambda x: jax.new_ref(x)[...], ("s",), buckets=P, on_unsupported="exact")
    ex.warmup(ones(3), s=range(1, 6), workers=3)
    ex.freeze()
    assert [ex(ones(n)).shape for n in range(1, 6)] == [(n,) for n in range(1, 6)]


def test_workers_make_each_graph_once_beside_calls(gate: Gate):
    ex = sx.Exec(lambda x: x.sum(), ("s",), buckets=P, missing="larger")
    ex(ones(64))
    ex(ones(5))
    wait_for(gate.reached)
    gate.opened.set()
    ex.warmup(s=range(1, 65), workers=2)
    join_workers()
    assert ex.stats.compiles == len(ex.graphs) == 7


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError], ids=lambda kind: kind.__name__)
def test_a_warmup_that_is_stopped_goes_on_where_it_stopped(workers, stop):
    ex = sx.Exec(lambda x: x.max(), ("s",), buckets=P)

    def stopped(done, total):
        if done:
            raise stop

    with pytest.raises(stop):
        ex.warmup(ones(1), s=range(1, 65), workers=workers, progress=stopped)
    join_workers()
    made = len(ex.graphs)
    assert 1 <= made < 7
    assert ex.warmup(ones(1), s=range(1, 65), workers=workers) == 7 - made
    assert ex.stats.compiles == 7


AT_EXIT = """
import threading

import numpy as np

import shapeexec as sx

run = sx.Exec(lambda x: x.sum(), ("s",))


def warm():
    threading.main_thread().join()
    print(run.warmup(np.ones(3, np.float32), s=range(1, 65), workers=2), len(run.graphs))


threading.Thread(target=warm).start()
"""


def test_a_warmup_that_outlives_the_main_thread_ends():
    command = [sys.executable, "-c", AT_EXIT]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.returncode) == ("7 7\n", 0), done.stderr


def test_what_stops_a_worker_is_raised(monkeypatch):
    def broken(*_, **__):
        raise MemoryError("XLA has no room")

    ex = sx.Exec(lambda x: x.max(), ("s",), buckets=P)
    with monkeypatch.context() as patch:
        patch.setattr(_making, "compile_graph", broken)
        with pytest.raises(MemoryError, match="no room"):
            ex.warmup(ones(1), s=range(1, 65), workers=2)
        join_workers()
    assert ex.warmup(ones(1), s=range(1, 65), workers=2) == 7


def test_a_configuration_of_one_thread_is_warmed_up_by_it(gate: Gate):
    ex = sx.Exec(lambda x: x @ x, ("s",), buckets=P)
    with jax.default_matmul_precision("float32"):
        assert ex.warmup(ones(1), s=range(1, 9), workers=2) == 4
    assert set(gate.compiled_in) == {"MainThread"}


@pytest.mark.parametrize("workers", [0, -1, "2", 1.5, True, range(3)], ids=repr)
def test_workers_are_a_number_of_threads(workers):
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P)
    with refused(sx.ConfigError, f"workers={workers!r} is not a number of", "workers=2, or"):
        ex.warmup(ones(1), s=3, workers=workers)


def test_a_bar_is_drawn_by_rich(capsys):
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P)
    assert ex.warmup(ones(1), s=range(1, 9), progress=True) == 4
    text = capsys.readouterr().out
    assert "compiling graphs" in text
    assert "100%" in text
    assert ex.warmup(ones(1), s=range(1, 9), progress=False) == 0
    assert capsys.readouterr().out == ""


def test_a_rich_that_cannot_be_imported_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    with pytest.raises(ModuleNotFoundError, match=r"rich\.progress"):
        sx.Exec(lambda x: x + 1, ("s",), buckets=P).warmup(ones(1), s=3, progress=True)


class Tqdm:
    """What is used of tqdm's bars."""

    drawn: tuple[int, int] | None = None

    def __init__(self, desc):
        assert desc == "compiling graphs"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        Tqdm.drawn = (*Tqdm.drawn, "closed")

    def refresh(self):
        Tqdm.drawn = (self.n, self.total)


@pytest.mark.parametrize("has_tqdm", [True, False])
def test_without_rich_tqdm_draws_the_bar_or_a_warning_says_that_nobody_does(has_tqdm, monkeypatch):
    monkeypatch.setattr(Tqdm, "drawn", None)
    monkeypatch.setitem(sys.modules, "rich", None)
    tqdm = types.SimpleNamespace(tqdm=Tqdm, __spec__="of tqdm") if has_tqdm else None
    monkeypatch.setitem(sys.modules, "tqdm", tqdm)
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P)
    with contextlib.ExitStack() as stack:
        told = None if has_tqdm else stack.enter_context(pytest.warns(RuntimeWarning))
        assert ex.warmup(ones(1), s=range(1, 9), progress=True) == 4
    assert Tqdm.drawn == ((4, 4, "closed") if has_tqdm else None)
    assert [str(warning.message) for warning in told or ()] == [
        "shapeexec: no bar is drawn, because neither rich nor tqdm is installed.\n"
        "  Fix:   pip install tqdm, or progress=print"
    ] * (not has_tqdm)
