"""The cache by itself, then an Exec's: order, limits, single flight, failures."""

import gc
import threading
import warnings
import weakref

import jax
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.execution import _making
from shapeexec.execution._cache import CacheLimits, GraphCache
from tests.execution.support import counted, ones, refused, until, wait_for

P = sx.Pow2()


class Entry:
    def __init__(self, device_bytes=0):
        self.device_bytes = device_bytes


def filled(cache, *keys, device_bytes=0):
    for key in keys:
        cache.get(key, lambda: Entry(device_bytes))
    return cache


def held(cache, keys):
    return [key for key in keys if key in cache]


def test_the_least_recently_used_entry_leaves_first():
    cache = filled(GraphCache(CacheLimits(graphs=2)), "a", "b", "c")
    assert held(cache, "abc") == ["b", "c"]


@pytest.mark.parametrize("use", [lambda c: c.find("a"), lambda c: c.get("a", Entry)])
def test_an_entry_that_is_used_stays(use):
    cache = filled(GraphCache(CacheLimits(graphs=2)), "a", "b")
    use(cache)
    filled(cache, "c")
    assert held(cache, "abc") == ["a", "c"]


def test_entries_leave_when_they_hold_too_many_bytes():
    cache = filled(GraphCache(CacheLimits(graphs=None, device_bytes=10)), *"abc", device_bytes=4)
    assert held(cache, "abc") == ["b", "c"]
    assert cache.device_bytes == 8


def test_one_entry_stays_even_if_it_is_too_large():
    cache = filled(GraphCache(CacheLimits(device_bytes=1)), "a", "b", device_bytes=4)
    assert held(cache, "ab") == ["b"]


def test_entries_that_leave_and_come_back_are_counted():
    cache = filled(GraphCache(CacheLimits(graphs=1)), *"abc")
    assert (cache.evictions, cache.remade) == (2, 0)
    filled(cache, "a")
    assert (cache.evictions, cache.remade) == (3, 1)


def test_what_is_missing_is_not_found():
    assert GraphCache(CacheLimits()).find("a") is None


def test_many_threads_at_one_new_key_make_it_once():
    cache, made, barrier = GraphCache(CacheLimits()), [], threading.Barrier(16)
    entry, got = Entry(), []

    def make():
        made.append(1)
        until(lambda: cache._flights)
        return entry

    def ask():
        barrier.wait()
        got.append(cache.get("a", make))

    run(*[ask] * 16)
    assert (len(made), got) == (1, [entry] * 16)


def run(*targets):
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


class Making:
    """A making that waits until told to end, and a waiter for it."""

    def __init__(self, cache, outcome, retry=None):
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.cache, self.outcome, self.retry = cache, outcome, retry
        self.maker_got = self.waiter_got = None

    def make(self):
        self.begun.set()
        wait_for(self.may_end)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def ask(self, make):
        try:
            return self.cache.get("a", make)
        except BaseException as error:
            return error

    def run(self, meanwhile=lambda: None):
        def maker():
            self.maker_got = self.ask(self.make)

        def waiter():
            wait_for(self.begun)
            threading.Timer(0.05, end).start()
            self.waiter_got = self.ask(lambda: self.retry)

        def end():
            meanwhile()
            self.may_end.set()

        run(maker, waiter)


def test_a_making_that_fails_tells_its_waiters_and_may_be_tried_again():
    cache, error, entry = GraphCache(CacheLimits()), ValueError("no"), Entry()
    making = Making(cache, error)
    making.run()
    got = making.waiter_got
    assert making.maker_got is got.__cause__ is error
    assert got is not error
    assert (type(got), got.args) == (ValueError, ("no",))
    assert cache.get("a", lambda: entry) is entry


FAILURES = {
    "one of ours": lambda: sx.ConfigError("no", option="x", fix="yes"),
    "out of memory": lambda: sx.OutOfMemoryError(
        "no", sizes={"s": 5}, buckets={"s": 8}, bytes=None, got="all", fix="yes"
    ),
    "of Python": lambda: KeyError("no"),
    "of Python's memory": lambda: MemoryError("no"),
    "of XLA": lambda: jax.errors.JaxRuntimeError("INTERNAL: no"),
}


class Slotted(Exception):
    __slots__ = ("code",)

    def __str__(self):
        return self.code


class Picky(Exception):
    def __new__(cls, *args):
        if not args:
            raise ValueError("it wants arguments")
        return super().__new__(cls)


def slotted():
    error = Slotted()
    error.code = "3"
    return error


PASSED_ON = {
    "slots": slotted,
    "a class that refuses": lambda: Picky("no"),
    "fields of Python": lambda: ImportError("no", name="x"),
    "a file": lambda: FileNotFoundError(2, "no", "x"),
}


@pytest.mark.parametrize("name", PASSED_ON)
def test_a_waiter_raises_the_error_itself_where_no_other_is_like_it(name):
    error = PASSED_ON[name]()
    error.args = () if name == "a class that refuses" else error.args
    making = Making(GraphCache(CacheLimits()), error)
    making.run()
    assert making.waiter_got is error


@pytest.mark.parametrize("name", FAILURES)
def test_a_waiter_raises_an_exception_of_its_own(name):
    error = FAILURES[name]()
    error.add_note("a note")
    making = Making(GraphCache(CacheLimits()), error)
    making.run()
    got = making.waiter_got
    assert got is not error
    assert got.__cause__ is error
    assert (type(got), str(got), got.args) == (type(error), str(error), error.args)
    assert {**vars(got)} == {**vars(error)}
    got.add_note("of the waiter")
    assert error.__notes__ == ["a note"]


@pytest.mark.parametrize(
    "error",
    [UnicodeDecodeError("utf-8", b"a", 0, 1, "no"), FileNotFoundError(2, "no", "file")],
    ids=["text", "file"],
)
def test_an_exception_that_cannot_be_made_again_is_raised_itself(error):
    making = Making(GraphCache(CacheLimits()), error)
    making.run()
    assert making.waiter_got is error


def test_a_waiter_sleeps_until_the_making_ends():
    class Flights(dict):
        looks = 0

        def get(self, key):
            self.looks += 1
            return super().get(key)

    cache, entry = GraphCache(CacheLimits()), Entry()
    cache._flights = Flights()
    making = Making(cache, entry)
    making.run()
    assert making.waiter_got is entry
    assert cache._flights.looks <= 2  # one by each of them


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupted_making_is_taken_over_by_a_waiter(stop):
    entry = Entry()
    making = Making(GraphCache(CacheLimits()), stop(), retry=entry)
    making.run()
    assert isinstance(making.maker_got, stop)
    assert making.waiter_got is entry


def test_clear_lets_a_making_end_well():
    cache, entry = filled(GraphCache(CacheLimits()), "b"), Entry()
    making = Making(cache, entry)
    making.run(meanwhile=cache.clear)
    assert making.maker_got is making.waiter_got is entry
    assert "b" not in cache


@pytest.mark.parametrize("name", ["graphs", "device_bytes"])
def test_limits_leave_room_for_one(name):
    with refused(sx.ConfigError, f"{name}=0: no graph fits.", f"{name}=1 or None"):
        CacheLimits(**{name: 0})
    with refused(sx.ConfigError, f"{name}=True is not an integer.", "None"):
        CacheLimits(**{name: True})


def test_limits_take_the_integers_of_numpy():
    pin = {"s": np.int64(8)}
    limits = CacheLimits(graphs=np.int64(3), device_bytes=np.int32(9), pin=[pin])
    assert repr(limits) == "CacheLimits(graphs=3, device_bytes=9, pin=({'s': 8},))"
    assert limits == CacheLimits(graphs=3, device_bytes=9, pin=[{"s": 8}])


# The cache of an Exec


def test_an_exec_compiles_again_what_left():
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P, limits=CacheLimits(graphs=1))
    for n in (1, 2, 1):
        ex(ones(n))
    assert (ex.cache_size, ex.stats.evictions, ex.stats.compiles, ex.stats.hits) == (1, 2, 3, 0)


def test_a_graph_that_leaves_is_freed():
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P, limits=CacheLimits(graphs=1))
    ex(ones(1))
    graph = weakref.ref(next(iter(ex._runner.store._cache._entries.values())))
    ex(ones(2))
    gc.collect()
    assert graph() is None


def test_a_thrashing_cache_warns_once():
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P, limits=CacheLimits(graphs=1))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for n in (1, 2, 3) * 3:
            ex(ones(n))
    (warning,) = [w for w in told if "after their eviction" in str(w.message)]
    assert "s=" in str(warning.message)
    assert "Fix:   limits=sx.CacheLimits(graphs=2" in str(warning.message)


def test_clear_forgets_graphs_and_traces_and_keeps_statistics():
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P)
    ex(ones(3))
    ex.clear()
    assert (ex.cache_size, ex.stats.misses) == (0, 1)
    with counted() as count:
        ex(ones(3))
    assert (count.compilations, ex.stats.traces) == (1, 2)


def test_a_graph_that_ends_compiling_after_clear_is_not_another_branchs(monkeypatch):
    """Both branches are the first trace of their structure, one before and one after clear()."""
    begun, may_end = threading.Event(), threading.Event()

    def fn(x):
        return x * 2 if x.shape[0] % 2 else x * 3

    ex = sx.Exec(fn, ("s",), buckets={"s": sx.Ladder([4])})
    compile_graph = _making.compile_graph

    def slow(*args, **kwargs):
        graph = compile_graph(*args, **kwargs)
        if not begun.is_set():
            begun.set()
            wait_for(may_end)
        return graph

    monkeypatch.setattr(_making, "compile_graph", slow)
    got = []
    first = threading.Thread(target=lambda: got.append(ex(ones(3))))
    first.start()
    wait_for(begun)
    ex.clear()
    even = threading.Thread(target=lambda: got.append(ex(ones(2))))
    even.start()
    even.join(5)
    may_end.set()
    for thread in (first, even):
        thread.join(60)
    by_size = {len(result): result for result in got}
    assert by_size[3].tolist() == [2, 4, 6]
    assert by_size[2].tolist() == [3, 6]


def test_a_pinned_graph_never_leaves():
    pin = [{"s": 4}]
    run = sx.Exec(lambda x: x * 2, ("s",), buckets=P, limits=sx.CacheLimits(graphs=2, pin=pin))
    for size in (3, 5, 9, 17, 33):
        run(ones(size))
    assert [row.sizes for row in run.graphs] == ["s=4", "s=64"]
    assert run.stats.evictions == 3


def test_a_pin_of_some_symbols_pins_all_graphs_with_these_buckets():
    run = sx.Exec(
        lambda x: x.sum(), ("b, s",), buckets=P, limits=sx.CacheLimits(graphs=1, pin={"b": 2})
    )
    for shape in ((2, 3), (2, 5), (4, 3), (4, 5)):
        run(ones(*shape))
    assert [row.sizes for row in run.graphs] == ["b=2, s=4", "b=2, s=8", "b=4, s=8"]


def test_graphs_of_maps_are_not_pinned():
    limits = sx.CacheLimits(graphs=1, pin={"s": 4})
    run = sx.Exec(lambda x: x.sum(), ("s",), buckets=P, limits=limits)
    run.map([ones(3), ones(4)])
    run(ones(9))
    assert [row.sizes for row in run.graphs] == ["s=16"]


@pytest.mark.parametrize(
    ("pin", "what", "fix"),
    [
        ([{"t": 4}], "pin={'t': 4}: no spec has the symbol `t`.", "one of s"),
        ([{"s": 5}], "pin={'s': 5}: s=5 is not a bucket.", 'pin=[{"s": 8}]'),
        ([{}], "pin=[{}] names no buckets.", "pin=[{"),
        ("s=4", "pin='s=4' names no buckets.", "pin=[{"),
        ([{"s": "4"}], "names no buckets.", "pin=[{"),
        (4, "pin=4 names no buckets.", "pin=[{"),
    ],
    ids=str,
)
def test_a_pin_that_no_bucket_has_is_refused(pin, what, fix):
    with refused(sx.ConfigError, what, fix):
        sx.Exec(lambda x: x, ("s",), buckets=P, limits=sx.CacheLimits(pin=pin))


def test_a_variant_whose_buckets_a_pin_does_not_have_is_refused():
    run = sx.Exec(lambda x: x, ("s",), buckets=P, limits=sx.CacheLimits(pin={"s": 4}))
    with refused(sx.ConfigError, "s=4 is not a bucket.", '{"s": 10}'):
        run.variant(buckets=sx.Linear(10))
