"""What code does with a size that is not heard: each trace is held against the plain one."""

import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.execution import _making, _worker
from tests.execution.support import assert_runs_as, assert_same, ones, refused

FIVE = jax.core.ShapedArray((5,), jnp.float32)
FIVES = jax.ShapeDtypeStruct((5,), jnp.float32)


def either(is_five):
    """A program that goes one way at size 5, as it finds out by `is_five`."""

    def fn(x):
        return x.sum() if is_five(x) else x.max() * 3

    return fn


def in_a_thread(x):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: x.shape[0] == 5).result()


def struct(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


HEARD = {
    "the type of an array": lambda x: jax.typeof(x) == FIVE,
    "another type": lambda x: [True, False][jax.typeof(x) != FIVE],
    "a type in a list": lambda x: jax.typeof(x) in [FIVE],
    "a type in a set": lambda x: jax.typeof(x) in {FIVE},
    "a type as a key": lambda x: {FIVE: True}.get(jax.typeof(x), False),
    "a struct": lambda x: struct(x) == FIVES,
    "another struct": lambda x: [True, False][struct(x) != FIVES],
    "a struct in a set": lambda x: struct(x) in {FIVES},
    "a struct as a key": lambda x: {FIVES: True}.get(struct(x), False),
    "the shape of a result": lambda x: jax.eval_shape(lambda y: y * 2, x) == FIVES,
    "the text of a type": lambda x: "[5]" in str(jax.typeof(x)),
    "the short text of a type": lambda x: "[5]" in jax.typeof(x).str_short(),
    "the text of a struct": lambda x: "5" in repr(struct(x)).replace("32", ""),
    "the text of a traced array": lambda x: "[5]" in repr(x),
    "a traced array in a string": lambda x: "[5]" in f"{x}",
    "a question of another thread": in_a_thread,
}


@pytest.mark.parametrize("is_five", HEARD.values(), ids=HEARD)
def test_a_question_about_the_type_of_an_array_is_a_guard(is_five):
    fn = either(is_five)
    ex = sx.Exec(fn, ("s",), buckets=sx.Linear(8))
    for size in (4, 5, 6, 5, 7):
        assert_runs_as(fn, ex, ones(size))
    assert ex.stats.differences == 0
    assert ex.plan(ones(5)).guards


def test_types_that_are_equal_at_all_sizes_ask_nothing():
    fn = either(lambda x: jax.typeof(x) == jax.typeof(x * 2))
    ex = sx.Exec(fn, ("s",), buckets=sx.Linear(8))
    assert_runs_as(fn, ex, ones(4))
    assert ex.plan(ones(4)).guards == ()


def caught(fn, otherwise):
    def tried(x):
        try:
            return fn(x)
        except Exception:
            return otherwise(x)

    return tried


def largest(x):
    return x.max() * 3


def unpacked(x):
    first, _b, _c, _d, last = x
    return (first + last) * x.sum()


UNHEARD = {
    "type(n) is int": either(lambda x: type(x.shape[0]) is int),
    "an attribute that ints lack": either(lambda x: hasattr(x.shape[0], "scope")),
    "a list of the elements": caught(lambda x: sum(list(x)), largest),
    "a product that fits": caught(lambda x: x @ jnp.ones(5), largest),
    "a sum that fits": caught(lambda x: (x + jnp.ones(5)).sum(), largest),
    "so many elements": caught(unpacked, largest),
    "the same loop": caught(
        lambda x: jax.lax.scan(lambda c, v: (c + v[0] * v[1], None), 0.0, (x, jnp.ones(5)))[0],
        largest,
    ),
    "a stack that fits": caught(lambda x: jnp.stack([x, jnp.ones(5)]).sum(), largest),
}


@pytest.mark.parametrize("fn", UNHEARD.values(), ids=UNHEARD)
@pytest.mark.parametrize("first", [5, 6])
@pytest.mark.filterwarnings("ignore:shapeexec. at symbolic sizes:RuntimeWarning")
def test_what_is_not_heard_is_found_and_runs_exactly(fn, first):
    ex = sx.Exec(fn, ("s",), buckets=sx.Linear(8))
    for size in (first, 5, 6, 7, 5, 4):
        assert_runs_as(fn, ex, ones(size))
    assert ex.stats.differences >= 1


@pytest.mark.filterwarnings("ignore:shapeexec. at symbolic sizes:RuntimeWarning")
def test_an_error_of_xla_at_a_trace_that_is_not_proven_is_told_with_the_one_that_follows(
    monkeypatch,
):
    tried = []

    def broken(*_, meanwhile=None, **__):
        tried.append(1)
        if meanwhile is not None:
            meanwhile()
        raise MemoryError(f"compilation {len(tried)}")

    monkeypatch.setattr(_making, "compile_graph", broken)
    with pytest.raises(MemoryError, match="compilation 2") as told:
        sx.Exec(UNHEARD["type(n) is int"], ("s",), buckets=sx.Linear(8))(ones(5))
    assert str(told.value.__context__) == "compilation 1"


@pytest.mark.filterwarnings("ignore:shapeexec. at symbolic sizes:RuntimeWarning")
def test_sizes_that_are_the_same_object_are_found():
    def fn(x, y):
        return x.sum() * (2 if x.shape[0] is y.shape[0] else 3) + y.max()

    ex = sx.Exec(fn, ("s", "t"), buckets=sx.Linear(8))
    for sizes in ((5, 3), (5, 5), (6, 3), (4, 4)):
        assert_runs_as(fn, ex, *map(ones, sizes))


def test_python_traces_as_before_when_it_is_over():
    before = sys.gettrace()
    assert_runs_as(jnp.sort, sx.Exec(jnp.sort, ("s",)), ones(5))
    assert sys.gettrace() is before


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python tells of exceptions by events")
def test_under_a_debugger_each_size_is_checked():
    ex = sx.Exec(jnp.sort, ("s",), buckets=sx.Linear(8))
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        for size in (4, 5, 6):
            assert_runs_as(jnp.sort, ex, ones(size))
    finally:
        sys.settrace(before)
    assert ex.stats.checks == 3


def test_a_difference_is_told_once_with_the_line_and_the_way_out():
    def fn(x):
        if type(x.shape[0]) is int:
            return x.sum()  # here
        return x.max()

    ex = sx.Exec(fn, ("s",), buckets=sx.Linear(8))
    with pytest.warns(RuntimeWarning) as told:
        results = [ex(ones(size)) for size in (4, 5, 4)]
    assert [float(x) for x in results] == [10, 15, 10]
    assert len(told) == 1
    text = str(told[0].message)
    assert "at symbolic sizes the function is not the same as at s=4" in text
    assert "# here" in text
    assert "isinstance(n, int)" in text
    assert (ex.stats.differences, ex.stats.exact) == (2, {"s": 3})
    assert "# here" in str(ex.explain(ones(4)))


def test_only_the_symbols_that_matter_are_exact():
    def fn(x):
        return x.sum(0) if type(x.shape[1]) is int else x.max(0)

    ex = sx.Exec(fn, ("b, s",), buckets=sx.Linear(8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for shape in ((3, 4), (5, 4), (6, 4)):
            assert_runs_as(fn, ex, ones(*shape))
    assert ex.plan(ones(7, 4)).exact == ("s",)
    assert ex.cache_size == 1


def test_each_graph_is_checked_once_and_sizes_too_if_that_is_wanted():
    for check, checks in (("graphs", 2), ("sizes", 5), ("worker", 5), ("off", 0)):
        ex = sx.Exec(jnp.sort, ("s",), buckets=sx.Linear(8), check=check)
        for size in (4, 5, 6, 4, 7, 12):
            assert_runs_as(jnp.sort, ex, ones(size))
        assert ex.stats.checks == checks


@pytest.mark.filterwarnings("ignore:shapeexec. at symbolic sizes:RuntimeWarning")
def test_a_worker_holds_an_answer_back_until_it_is_proven():
    is_odd = [False]

    def fn(x):  # another function from the second call on, as nobody can hear
        return x.sum() * (2 if type(x.shape[0]) is int and is_odd[0] else 3)

    ex = sx.Exec(fn, ("s",), buckets=sx.Linear(8), check="worker")
    assert float(ex(ones(4))) == 30
    is_odd[0] = True
    assert float(ex(ones(5))) == 30
    assert float(ex(ones(6))) == 42
    assert (ex.stats.differences, ex.stats.checks > 2) == (2, True)
    with jax.numpy_dtype_promotion("strict"):  # for this thread alone
        assert float(ex(ones(7))) == 56


def test_a_worker_proves_before_an_argument_is_donated():
    ex = sx.Exec(lambda x: x * 2, ("s",), buckets=sx.Linear(8), check="worker", donate_argnums=0)
    for size in (4, 5):
        assert_same(ex(jnp.asarray(ones(size))), jnp.asarray(ones(size)) * 2)
    assert ex.stats.checks == 2


def test_a_size_at_which_jax_compares_otherwise_is_checked_too():
    ex = sx.Exec(lambda x: x + x[:1], ("s",), buckets=sx.Linear(8))
    for size in (4, 5, 1, 6):
        assert_runs_as(lambda x: x + x[:1], ex, ones(size))
    assert ex.stats.checks == 2


def test_an_unknown_way_to_check_is_refused():
    with refused(sx.ConfigError, "check='all' is not known.", '"sizes", "worker" or "off"'):
        sx.Exec(jnp.sort, ("s",), check="all")


def test_xla_compiles_in_another_thread_while_this_one_proves(monkeypatch):
    threads = {"trace": [], "compile": []}

    def noted(x):
        threads["trace"].append(threading.get_ident())
        return x.sum()

    begin = _worker.begin

    def watched(work):
        def worked():
            threads["compile"].append(threading.get_ident())
            return work()

        return begin(worked)

    monkeypatch.setattr(_worker, "begin", watched)
    ex = sx.Exec(noted, ("s",), buckets=8)
    assert ex(np.ones(3, np.float32)) == 3
    assert threads["trace"] == [threading.get_ident()] * 2  # symbolic, and plain for the proof
    assert len(threads["compile"]) == 1
    assert threads["compile"][0] != threading.get_ident()


def test_configuration_of_this_thread_alone_is_heeded():
    ex = sx.Exec(lambda x: x * 1.5, ("s",), buckets=8)
    with jax.enable_x64(True):
        assert ex(np.ones(3)).dtype == np.float64
    assert ex(np.ones(3)).dtype == np.float32


def test_a_graph_of_a_wrong_trace_is_dropped_and_its_compilation_counted():
    def by_type(x):
        return x * 2 if type(x.shape[0]) is int else x * 3

    ex = sx.Exec(by_type, ("s",), buckets=8)
    with pytest.warns(RuntimeWarning, match="at symbolic sizes the function is not the same"):
        np.testing.assert_array_equal(ex(ones(3)), 2 * ones(3))
    assert ex.stats.differences == 1
    assert ex.stats.compiles == 2
    (row,) = ex.graphs
    assert row.exact == {"s": 3}


def test_an_error_of_the_function_at_the_sizes_is_its_own_and_leaves_nothing():
    def odd(x):
        if type(x.shape[0]) is int and x.shape[0] == 3:
            raise LookupError("three")
        return x.sum()

    ex = sx.Exec(odd, ("s",), buckets=8)
    for _ in range(2):
        with pytest.raises(LookupError, match="three"):
            ex(ones(3))
