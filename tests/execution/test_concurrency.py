"""Many threads, one Exec."""

import contextlib
import threading
from unittest import mock

import numpy as np
import pytest

import shapeexec as sx
from shapeexec.execution import _compile, _function, _making, _turns
from shapeexec.execution._functions import Functions
from shapeexec.execution._split import Call
from shapeexec.execution._turns import Turns
from shapeexec.execution._weak_table import WeakTable
from tests.execution.support import counted, ones, until
from tests.tolerance import assert_close

P = sx.Pow2()


def together(count, call):
    """Run `call(i)` in threads that start as one; what they returned."""
    barrier, got = threading.Barrier(count), {}

    def run(i):
        barrier.wait()
        try:
            got[i] = call(i)
        except Exception as error:
            got[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return [got[i] for i in range(count)]


def test_a_call_is_never_changed(monkeypatch):
    def set_once(call, name, value):
        assert not hasattr(call, name)
        Call.__dict__[name].__set__(call, value)

    monkeypatch.setattr(Call, "__setattr__", set_once)
    ex = sx.Exec(lambda scale, x: scale["by"] * x, (None, "s"), buckets=P)
    ex.warmup({"by": 2}, ones(3), s=[3, 9])
    for look in (ex, ex.plan, ex.explain, ex.trace, ex.why_new):
        look({"by": 2}, ones(3))
    assert len(ex.map({"by": 2}, [ones(3), ones(9)])) == 2


def test_threads_that_ask_a_weak_table_at_once_get_one_value():
    made = threading.Barrier(4)

    def make(kind):
        made.wait(60)  # each of the four makes one
        return object()

    table = WeakTable(make)
    assert len({id(value) for value in together(4, lambda i: table(Call))}) == 1


def test_sixteen_threads_at_a_new_bucket_compile_it_once():
    ex = sx.Exec(lambda x: x.mean() * 2, ("s",), buckets=P)
    with counted() as count:
        results = together(16, lambda i: float(ex(ones(9 + i % 8))))
    assert count.compilations == ex.stats.compiles == 1
    assert_close(results, [float(2 * ones(9 + i % 8).mean()) for i in range(16)])
    assert ex.stats.hits + ex.stats.misses == 16


def test_threads_at_different_sizes_and_branches_get_their_own_answers():
    def fn(x):
        return x.sum() if x.shape[0] % 2 else x.max()

    ex = sx.Exec(fn, ("s",), buckets=P)
    expected = [float(np.sum(ones(n)) if n % 2 else n) for n in range(1, 9)]
    for _ in range(3):
        assert together(8, lambda i: float(ex(ones(i + 1)))) == expected


def test_a_failing_function_fails_in_every_thread_and_may_work_later():
    fails = [True]

    def fn(x):
        if fails:
            raise RuntimeError("not yet")
        return x + 1

    ex = sx.Exec(fn, ("s",), buckets=P)
    assert {type(error) for error in together(8, lambda i: ex(ones(3)))} == {RuntimeError}
    fails.clear()
    assert together(8, lambda i: float(ex(ones(3))[0])) == [2.0] * 8


def test_a_compile_that_fails_frees_every_thread(monkeypatch):
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P)

    def broken(*_, **__):
        raise MemoryError("XLA has no room")

    with monkeypatch.context() as patch:
        patch.setattr(_making, "compile_graph", broken)
        assert {type(error) for error in together(8, lambda i: ex(ones(3)))} == {MemoryError}
    assert float(ex(ones(3))[0]) == 2


@pytest.mark.parametrize("most", [1, 2])
def test_no_more_graphs_are_compiled_at_once_than_there_are_turns(monkeypatch, most):
    class Counted(Turns):
        now = highest = 0

        @contextlib.contextmanager
        def turn(self):
            with super().turn():
                with self._lock:
                    self.now += 1
                    self.highest = max(self.highest, self.now)
                try:
                    yield
                finally:
                    with self._lock:
                        self.now -= 1

    turns = Counted(most)
    monkeypatch.setattr(_compile, "COMPILING", turns)
    options = [{}, {"missing": "larger"}, {"compiling": sx.Compiling(first="quick")}]
    runs = [sx.Exec(lambda x: x.sum(), ("s",), **own) for own in options]
    runs[1].warmup(ones(3), s=256)
    got = together(12, lambda i: float(runs[i % 3](ones(2**i // 2 + 1))))
    assert got == [float(ones(2**i // 2 + 1).sum()) for i in range(12)]
    until(lambda: runs[2].stats.swaps == 4)  # its tuned graphs, too, get their turns
    assert 1 <= turns.highest <= most
    with turns.turn():  # none was lost
        pass


def test_a_turn_that_is_interrupted_goes_to_the_next():
    class Interrupted(threading.Event):
        def wait(self, timeout=None):
            raise KeyboardInterrupt

    turns = Turns(1)
    with turns.turn():
        with (
            mock.patch.object(_turns.threading, "Event", Interrupted),
            pytest.raises(KeyboardInterrupt),
            turns.turn(),
        ):
            pass
        assert not turns._waiting
    with pytest.raises(ValueError, match="no"), turns.turn():
        raise ValueError("no")
    assert turns._free == 1


def test_turns_are_taken_in_order():
    turns, order = Turns(1), []

    def work(i):
        with turns.turn():
            order.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    with turns.turn():
        for i, thread in enumerate(threads):
            thread.start()
            until(lambda i=i: len(turns._waiting) > i)
    for thread in threads:
        thread.join(60)
    assert order == [0, 1, 2, 3]


def test_in_a_forked_child_nobody_has_a_turn():
    turns = Turns(1)
    with turns.turn():
        turns.forked()
        with turns.turn():
            pass


def test_calls_and_clear_may_meet():
    ex = sx.Exec(lambda x: x.sum(), ("s",), buckets=P)

    def call(i):
        if i % 4 == 0:
            ex.clear()
        return float(ex(ones(3)))

    assert together(16, call) == [6.0] * 16


def test_threads_that_ask_for_a_method_first_share_its_graphs(monkeypatch):
    class Model:
        @sx.bucketed(in_shapes=(None, "s"), buckets=P)
        def total(self, x):
            return x.sum()

    both, made = threading.Barrier(2), []

    def without_self(settings):
        made.append(1)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # a second thread that came this far would make a second store
        return _without_self(settings)

    _without_self = _function.without_self
    monkeypatch.setattr(_function, "without_self", without_self)
    model = Model()
    assert together(2, lambda i: float(model.total(ones(5 + i)))) == [15, 21]
    assert (len(made), Model.total.stats.compiles, len(Model.total.graphs)) == (1, 1, 1)


def test_threads_remember_new_functions_one_after_the_other():
    functions, seen = Functions(), []
    begun, others = threading.Event(), threading.Event()

    def given(i):
        seen.append(i)
        (others if begun.is_set() else begun).set()
        others.wait(0.2)  # a second thread that came this far would be seen before the end
        seen.append(i)
        yield "args[0]", lambda x: x

    together(2, lambda i: functions.meet(given(i), i))
    assert seen in ([0, 0, 1, 1], [1, 1, 0, 0])
