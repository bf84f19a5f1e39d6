"""An Exec as Python knows functions: methods, pickles, copies, signatures, doctests."""

import abc
import concurrent.futures
import copy
import doctest
import functools
import gc
import inspect
import multiprocessing
import pickle
import weakref
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import shapeexec as sx
from tests.execution import python_module
from tests.execution.python_module import Scaled, mean, plain_mean, total
from tests.execution.support import assert_same, ones, refused

P = sx.Pow2()


# Methods


def test_a_method_is_bound_and_instances_share_graphs():
    first, second = Scaled(2), Scaled(3)
    made = Scaled.total.stats.misses
    for instance, weight in ((first, 2), (second, 3), (first, 2)):
        assert instance.total(ones(3)) == weight * 6
    assert Scaled.total.stats.misses <= made + 1
    assert Scaled.total(second, ones(3)) == 18
    assert first.total.cache_size == Scaled.total.cache_size


def test_an_attribute_that_is_set_later_is_heeded():
    instance = Scaled(2)
    assert instance.total(ones(3)) == 12
    instance.weight = jnp.float32(5)
    assert instance.total(ones(3)) == 30
    instance.power = 2
    assert instance.total(ones(3)) == 70


class Everything:
    """A method with a static and a keyword argument."""

    scale = 2

    @functools.partial(
        sx.bucketed, (None, "s", None), P, static_argnums=2, kwarg_shapes={"mask": "s"}
    )()
    def run(self, x: jax.Array, how: str, *, mask: Any = 1.0) -> jax.Array:
        return getattr(x * mask, how)() * self.scale


USES = {
    "a call": (lambda run, *own: run(*own, ones(3), "sum"), 12),
    "a keyword": (lambda run, *own: run(*own, ones(3), "sum", mask=ones(3)), 2 * (1 + 4 + 9)),
    "plan": (lambda run, *own: run.plan(*own, ones(3), "sum").buckets, {"s": 4}),
    "explain": (lambda run, *own: len(run.explain(*own, ones(3), "sum").added), 0),
    "map": (lambda run, *own: [*run.map(*own, [ones(2), ones(3)], "sum")], [6, 12]),
    "warmup": (lambda run, *own: run.warmup(*own, ones(3), "sum", s=range(1, 9)), 4),
}


@pytest.mark.parametrize(("do", "expected"), USES.values(), ids=USES)
@pytest.mark.parametrize("of", [lambda i: (i.run,), lambda i: (Everything.run, i)], ids=["i", "c"])
def test_positions_of_a_method_count_self_and_its_spec_may_be_written(do, expected, of):
    Everything.run.clear()
    assert do(*of(Everything())) == expected


def test_a_warm_up_of_a_method_remembers_its_last_call():
    instance = Everything()
    instance.run.clear()
    instance.run(ones(3), "sum")
    assert [instance.run.warmup(s=3), instance.run.warmup(s=15)] == [0, 1]


def test_a_method_without_an_instance_is_refused():
    with refused(sx.ConfigError, "run is a method, and no instance is given.", "on an instance"):
        Everything.run()


class Net(nnx.Module):
    def __init__(self) -> None:
        self.weight = nnx.Param(jnp.float32(2))

    @sx.bucketed(buckets=P)
    def total(self, x: jax.Array) -> jax.Array:
        return self.weight[...] * x.sum()


class Frozen(eqx.Module):
    weight: jax.Array

    @sx.bucketed(("s",), P)
    def total(self, x: jax.Array) -> jax.Array:
        return self.weight * x.sum()


@pytest.mark.parametrize("make", [lambda: Scaled(2), Net, lambda: Frozen(jnp.float32(2))])
def test_instances_are_held_weakly(make):
    instance = make()
    for n in (3, 4):
        assert instance.total(ones(n)) == 2 * ones(n).sum()
    assert instance.total.map([ones(3)]) == [12]
    alive = weakref.ref(instance)
    del instance
    gc.collect()
    assert alive() is None


class Slotted:
    __slots__ = ("__weakref__", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    @sx.bucketed(("s",), P)
    def total(self, x: jax.Array) -> jax.Array:
        return self.weight * x.sum()


def test_instances_that_are_equal_by_their_own_word_share_no_weights():
    assert [float(Slotted(w).total(ones(2))) for w in (2.0, 3.0)] == [6, 9]


def test_a_method_that_assigns_to_self_is_refused():
    class Counter:
        count = 0

        @sx.bucketed(("s",), P)
        def add(self, x: jax.Array) -> jax.Array:
            self.count += 1
            return x

    with refused(sx.ConfigError, "the function changes `count` of a Counter.", "return the new"):
        Counter().add(ones(3))


def test_a_method_of_an_equinox_module_has_its_arrays_for_arguments():
    class Model(eqx.Module):
        linear: eqx.nn.Linear

        @sx.bucketed(("b, 3",), P)
        def __call__(self, x: jax.Array) -> jax.Array:
            return jax.vmap(self.linear)(x)

    for seed in (0, 1):
        model = Model(eqx.nn.Linear(3, 2, key=jax.random.key(seed)))
        assert_same(model(ones(5, 3)), jax.vmap(model.linear)(ones(5, 3)))
    assert Model.__dict__["__call__"].__get__(None).cache_size == 1


def test_a_method_of_an_nnx_module_changes_it():
    class Counter(nnx.Module):
        def __init__(self) -> None:
            self.count = nnx.Variable(jnp.float32(0))

        @sx.bucketed(("s",), P)
        def add(self, x: jax.Array) -> jax.Array:
            self.count[...] += x.sum()
            return self.count[...] * x

    counter = Counter()
    assert_same(counter.add(ones(2)), jnp.asarray(3 * ones(2)))
    counter.add(ones(3))
    assert counter.count[...] == 9


# What may be called


def test_what_a_callable_holds_is_an_argument():
    class Scale:
        def __init__(self, by: Any) -> None:
            self.by = by

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.by * x.sum()

    scale = Scale(jnp.float32(2))
    for ex in (sx.Exec(scale, ("s",), buckets=P), sx.Exec(scale.__call__, ("s",), buckets=P)):
        scale.by = jnp.float32(2)
        assert ex(ones(3)) == 12
        scale.by = jnp.float32(3)
        assert ex(ones(3)) == 18
        assert ex.cache_size == 1


def test_an_nnx_module_that_is_called_trains_on():
    linear = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    ex = sx.Exec(linear, ("b, 3",), buckets=P)
    for _ in range(2):
        assert_same(ex(ones(5, 3)), linear(ones(5, 3)))
        linear.kernel[...] += 1
    assert ex.cache_size == 1


def test_a_partial_holds_arguments():
    def fn(w: jax.Array, x: jax.Array, *, bias: Any) -> jax.Array:
        return (w * x).sum() + bias

    weight = np.float32([2])
    ex = sx.Exec(functools.partial(fn, weight, bias=1.0), ("s",), buckets=P)
    assert ex(ones(3)) == 13
    weight[:] = 3  # NumPy's arrays change in place
    assert ex(ones(3)) == 19
    assert repr(ex).startswith("Exec(partial(")
    bound = functools.partial(sx.Exec(fn, (None, "s"), buckets=P), weight, bias=1.0)
    assert bound(ones(3)) == 19


@pytest.mark.parametrize("ex", [total, plain_mean, Scaled(1).total, Scaled.total])
def test_the_signature_is_that_of_the_function(ex):
    assert inspect.signature(ex) == inspect.signature(ex.settings.fn)


def test_examples_in_docstrings_are_found():
    found = {test.name.rpartition("python_module")[2]: test for test in _tests() if test.examples}
    assert {".total", ".Scaled.total"} <= found.keys()
    runner = doctest.DocTestRunner()
    for test in found.values():
        assert runner.run(test).failed == 0


def _tests() -> list[doctest.DocTest]:
    return doctest.DocTestFinder().find(python_module, globs={**vars(python_module)})


# Pickles and copies


def test_settings_travel_and_graphs_do_not():
    plain_mean(ones(3))
    other = pickle.loads(pickle.dumps(plain_mean))
    assert isinstance(other, sx.Exec)
    assert other.settings == plain_mean.settings
    assert (other.cache_size, other.stats.hits) == (0, 0)
    assert_same(other(ones(5)), jnp.asarray(mean(ones(5))))


def test_what_a_decorator_made_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(total)) is total
    method = pickle.loads(pickle.dumps(Scaled(3).total))
    assert method(ones(2)) == 9
    assert pickle.loads(pickle.dumps(Scaled.total))(Scaled(2), ones(2)) == 6


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_has_graphs_of_its_own(copied):
    ex = sx.Exec(lambda x: x.sum(), ("s",), buckets=lambda n: n + n % 2)
    ex(ones(3))
    other = copied(ex)
    assert other.cache_size == 0
    assert other(ones(3)) == 6
    assert (ex.stats.hits, other.stats.misses) == (0, 1)


def test_a_deep_copy_of_a_method_is_of_a_copy_of_its_instance():
    instance = Scaled(2)
    other = copy.deepcopy(instance.total)
    instance.weight = jnp.float32(3)
    assert other(ones(2)) == 6


@pytest.mark.parametrize(
    ("ex", "name"),
    [
        (sx.Exec(lambda x: x, ("s",)), "fn"),
        (sx.Exec(mean, ("s",), buckets=lambda n: n), "buckets"),
        (sx.Exec(mean, ("s",), buckets={"s": lambda n: n}), "buckets"),
    ],
)
def test_what_cannot_be_pickled_is_named(ex, name):
    what = f"an Exec whose {name} cannot be pickled cannot be pickled."
    with refused(sx.ConfigError, what, "at the top level of a module"):
        pickle.dumps(ex)


def test_a_spawned_process_makes_graphs_of_its_own():
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        done = pool.submit(python_module.run_in_another_process, pickle.dumps(plain_mean))
        assert done.result() == (1.5, 1)


# Inside of a transformation


def test_an_exec_inside_of_a_transformation_warns_once_and_counts():
    ex = sx.Exec(lambda x: x.sum(), ("s",), buckets=P)
    with pytest.warns(RuntimeWarning, match="inside a transformation") as caught:
        gradient = jax.grad(lambda x: 2 * ex(x))(ones(3))
    jax.jit(ex)(ones(3))
    (warning,) = caught
    np.testing.assert_array_equal(gradient, [2, 2, 2])
    assert "jax.grad(lambda x: 2 * ex(x))(ones(3))  (test_python.py:" in str(warning.message)
    assert "Fix:   transform first, pad last: Exec(jax.grad(" in str(warning.message)
    assert str(ex.stats).endswith(", 2 plain calls")
    assert "plain_calls=2" in repr(ex.stats)


@pytest.mark.parametrize("transform", [jax.jit, eqx.filter_jit, nnx.jit, jax.grad, jax.vmap])
def test_each_transformation_is_told(transform):
    ex = sx.Exec(lambda x: (x * x).sum(), ("...",))
    with pytest.warns(RuntimeWarning, match="inside a transformation"):
        transform(ex)(jnp.ones(3) if transform is jax.vmap else jnp.ones(()))


@pytest.mark.parametrize("transform", [eqx.filter_jit, eqx.filter_grad, nnx.jit, jax.grad, jax.jit])
def test_an_exec_inside_of_a_library_is_told_at_the_users_own_line(transform):
    ex = sx.Exec(lambda x: (x * x).sum(), ("...",))
    with pytest.warns(RuntimeWarning, match="inside a transformation") as caught:
        transform(ex)(jnp.ones(()))
    (warning,) = caught
    assert "Where: transform(ex)(jnp.ones(()))  (test_python.py:" in str(warning.message)
    assert warning.filename == __file__


def test_a_method_cannot_donate_self():
    class Scaled:
        @sx.bucketed((None, "s"), P, donate_argnums=(0,))
        def of(self, x: jax.Array) -> jax.Array:
            return x

    with refused(sx.ConfigError, "donate_argnums: 0 is `self`, whose arrays", "donate arrays"):
        Scaled().of(ones(3))


def test_an_exec_inside_of_another_is_no_matter(recwarn):
    inner = sx.Exec(lambda x: x.sum(), ("s",), buckets=P)
    assert sx.Exec(lambda x: inner(x) + 1, ("s",), buckets=P)(ones(3)) == 7
    assert not [warning for warning in recwarn if "shapeexec" in str(warning.message)]


@pytest.mark.parametrize("outer", ["bucketed", "abstract"])
def test_a_method_may_be_abstract(outer):
    def summed(self, x):
        return x.sum()

    both = [abc.abstractmethod, sx.bucketed(("s",), P)]
    for decorate in both if outer == "bucketed" else both[::-1]:
        summed = decorate(summed)
    base = abc.ABCMeta("Base", (), {"summed": summed})

    class Twice(base):
        @sx.bucketed(("s",), P)
        def summed(self, x):
            return super().summed(x) * 2

    with pytest.raises(TypeError, match=r"abstract method '?summed"):
        base()
    assert Twice().summed(ones(3)) == 12
    assert "summed" not in Twice.__abstractmethods__


def test_a_cached_property_is_made_anew_for_each_graph_and_kept_by_none():
    class Scaled:
        def __init__(self, weight):
            self.weight = jnp.float32(weight)

        @functools.cached_property
        def twice(self):
            return self.weight * 2

        @sx.bucketed(("s",), P)
        def total(self, x):
            return x.sum() * self.twice

        @sx.bucketed(("s",), P)
        def careless(self, x):
            self.kept = x
            return x.sum() * self.twice

    first, second = Scaled(1), Scaled(3)
    assert [first.total(ones(3)), second.total(ones(4))] == [12, 60]
    assert "twice" not in vars(first)
    first.weight = jnp.float32(2)
    assert first.total(ones(3)) == 24
    assert first.twice == 4  # from here on it is an attribute like any other
    first.weight = jnp.float32(5)
    assert first.total(ones(3)) == 24
    with refused(sx.ConfigError, "the function changes `kept` of a Scaled.", "return the new"):
        second.careless(ones(3))
