"""Arguments and results that hold more than arrays: modules, functions, strings and objects."""

import dataclasses
import functools
import gc
import weakref
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import shapeexec as sx
from tests.execution.support import assert_same, batch, ones, refused
from tests.tolerance import assert_close

P = sx.Pow2(minimum=4)
KEY = jax.random.key(0)
SIZES = (3, 4, 2)  # one bucket, which one of them fills


# Trees whose leaves are not all arrays


def scaled(settings: dict[str, Any], x: jax.Array) -> Any:
    y = settings["activation"](x * settings["scale"])
    return {"mean": y.mean() if settings["mode"] == "mean" else y.sum(), "mode": settings["mode"]}


def test_texts_and_functions_in_a_tree_are_constants_and_arrays_data():
    ex = sx.Exec(scaled, (None, "s, 3"), buckets=P)
    for n in SIZES:
        for mode in ("mean", "sum"):
            for function in (jnp.tanh, jnp.abs):
                settings = {"mode": mode, "activation": function, "scale": np.float32(n)}
                assert_same(ex(settings, batch(n)), eqx.filter_jit(scaled)(settings, batch(n)))
    assert ex.cache_size == 4


def test_a_text_that_comes_later_is_seen():
    ex = sx.Exec(lambda p, x: (p, x.sum()), (None, "s"), buckets=P)
    for p in ([1.0, np.ones(2)], ["a", np.ones(2)], ["b", np.ones(2)], [1.0, np.ones(2)]):
        got, total = ex(p, ones(3))
        assert got[0] == p[0]
        assert total == 6
    assert ex.cache_size == 3


def test_constants_of_other_types_or_signs_have_their_own_graphs():
    @dataclasses.dataclass(frozen=True)
    class Config:
        scale: float

    fn = lambda c, x: (1 / (c.scale * x), c.scale * jnp.arange(3))
    ex = sx.Exec(fn, (None, "s"), buckets=P)
    for scale in (0.0, -0.0, 0, False):
        assert_same(
            ex(Config(scale), ones(3)), jax.jit(fn, static_argnums=0)(Config(scale), ones(3))
        )
        jax.clear_caches()  # for which these are one


def test_texts_beside_ragged_arrays_are_constants():
    ex = sx.Exec(lambda d: d["x"].mean() if d["how"] == "mean" else d["x"].sum(), ("s",), buckets=P)
    for n in SIZES:
        assert ex({"x": ones(n), "how": "mean"}) == ones(n).mean()
        assert ex({"x": ones(n), "how": "sum"}) == ones(n).sum()
    assert (ex.cache_size, ex.stats.hits) == (2, 4)
    ex = sx.Exec(lambda d: d["x"].mean(), ({"x": "s", "how": None},), buckets=P)
    assert ex({"x": ones(3), "how": "mean"}) == 2


def test_a_text_is_no_ragged_argument():
    with refused(sx.SpecError, 'args[0] has the spec "s" but is not an array.', "pass an array"):
        sx.Exec(lambda x: x, ("s",), buckets=P)("text")


def test_what_is_no_array_can_be_planned_explained_and_warmed_up():
    ex = sx.Exec(scaled, (None, "s, 3"), buckets=P)
    settings = {
        "mode": "mean",
        "activation": jnp.tanh,
        "scale": jax.ShapeDtypeStruct((), "float32"),
    }
    x = jax.ShapeDtypeStruct((3, 3), jnp.float32)
    assert ex.plan(settings, x).buckets == {"s": 4}
    assert len(ex.explain(settings, x).added) == 1
    assert ex.warmup(settings, x, s=range(1, 9)) == 2
    ex.freeze()
    settings["scale"] = np.float32(2)
    assert_same(ex(settings, batch(5)), eqx.filter_jit(scaled)(settings, batch(5)))
    assert ex.warmup(s=7) == 0  # the last call is the example


def test_what_cannot_be_told_is_told_by_its_path_and_with_a_way_that_works():
    def count_of(view: Any, x: jax.Array) -> jax.Array:
        return len(view) * x

    ex = sx.Exec(lambda p, x: x * len(p["how"]), (None, "s"), buckets=P)
    view = memoryview(bytearray(b"ab"))
    what = "args[0]['how'] is a memoryview, which is neither an array nor hashable."
    with refused(sx.ConfigError, what, "a tuple, a frozen dataclass"):
        ex({"how": view}, ones(3))
    assert_same(ex({"how": ("a", "b")}, ones(3)), jnp.asarray(2 * ones(3)))
    with refused(sx.ConfigError, ".args[0] is a memoryview, which is neither", "a pytree"):
        sx.Exec(functools.partial(count_of, view), ("s",), buckets=P)(ones(3))


def test_a_set_is_a_constant_that_is_told_by_what_it_holds():
    ex = sx.Exec(lambda p, x: x * len(p["of"]), (None, "s"), buckets=P)
    of = {1, 2}
    assert ex({"of": of}, ones(1)) == 2
    of.add(3)
    assert ex({"of": of}, ones(1)) == 3


def test_an_object_is_told_by_its_attributes_as_they_are_at_each_call():
    class Config:
        def __init__(self) -> None:
            self.scale, self.offset, self.inner = 2, jnp.ones(()), None

    ex = sx.Exec(lambda c, x: x.sum() * c.scale + c.offset, (None, "s"), buckets=P)
    config = Config()
    config.inner = config  # an object may hold itself
    assert ex(config, ones(3)) == 13
    config.offset = jnp.float32(5)  # another value of the same type
    assert (ex(config, ones(3)), ex.cache_size) == (17, 1)
    config.scale = 3
    assert (ex(config, ones(3)), ex.cache_size) == (23, 2)


def test_what_a_function_assigns_to_an_object_is_an_error():
    class Counter:
        count = 0

    def fn(counter: Counter, x: jax.Array) -> jax.Array:
        counter.count += 1
        return x

    with refused(sx.ConfigError, "the function changes `count` of a Counter.", "return the new"):
        sx.Exec(fn, (None, "s"), buckets=P)(Counter(), ones(3))


class Config:
    pass


@pytest.mark.parametrize("make", [Config, lambda: lambda x: 2 * x], ids=["object", "function"])
def test_a_constant_is_not_kept_alive(make):
    ex = sx.Exec(lambda c, x: c[0](x) if callable(c[0]) else x, (None, "s"), buckets=P)
    config = make()
    for n in (3, 4):
        ex([config], ones(n))
    ex.map([config], [ones(3)])
    alive = weakref.ref(config)
    del config
    gc.collect()
    assert alive() is None


def test_an_example_that_is_gone_is_told():
    ex = sx.Exec(lambda c, x: c[0](x), (None, "s"), buckets=P)
    ex([lambda x: 2 * x], ones(3))
    gc.collect()
    with refused(
        sx.ConfigError, "the previous call held an object that is gone.", "example"
    ) as told:
        ex.warmup(s=8)
    assert told.value.got == "a function, which only that call kept alive"


def test_a_result_whose_constants_depend_on_a_size_is_right_and_told_in_words():
    class Sized(eqx.Module):
        x: Any
        n: int = eqx.field(static=True)

    ex = sx.Exec(lambda x: Sized(2 * x, x.shape[0]), ("s",), buckets=P)
    with pytest.warns(RuntimeWarning, match="holds beside arrays .* depends on a size") as caught:
        results = [ex(ones(3)), ex(ones(4))]
    assert [(result.n, len(result.x)) for result in results] == [(3, 3), (4, 4)]
    assert "0x" not in str(caught[0].message)
    assert "return a size as a separate result" in str(caught[0].message)


# nnx


class Net(nnx.Module):
    """Parameters, statistics, random state, a shared layer and a flag."""

    def __init__(self, seed: int) -> None:
        rngs = nnx.Rngs(seed)
        self.layer, self.norm = nnx.Linear(3, 3, rngs=rngs), nnx.BatchNorm(3, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.tied, self.calls = self.layer, nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x: jax.Array) -> jax.Array:
        self.calls[...] += 1
        return self.tied(self.dropout(self.norm(self.layer(x))))


def nnx_step(net: Net, optimizer: nnx.Optimizer, x: jax.Array) -> jax.Array:
    value, gradient = nnx.value_and_grad(lambda net: (net(x) ** 2).mean())(net)
    optimizer.update(net, gradient)
    return value


def assert_nets_agree(got: Any, want: Any) -> None:
    assert_close(nnx.state(got), nnx.state(want))


def test_an_nnx_module_is_trained_as_by_nnx_jit():
    ex, plain_step = sx.Exec(nnx_step, (None, None, "b, 3"), buckets=P), nnx.jit(nnx_step)
    net, plain = Net(0), Net(0)
    before = np.asarray(net.layer.kernel[...])
    kept = net.layer
    optimizer, other = (nnx.Optimizer(m, optax.adam(1e-2), wrt=nnx.Param) for m in (net, plain))
    for n in (*SIZES, 5):
        assert_same(ex(net, optimizer, batch(n)), plain_step(plain, other, batch(n)))
        assert_nets_agree(net, plain)
        assert_nets_agree(optimizer, other)
    assert net.calls[...] == 4
    assert net.layer is net.tied is kept  # the caller's own objects, as shared as before
    assert not np.allclose(before, net.layer.kernel[...])
    assert (ex.cache_size, ex.stats.hits) == (2, 2)


def test_the_random_state_of_an_nnx_module_moves_on():
    net, plain = Net(0), Net(0)
    ex, jitted = (
        sx.Exec(lambda net, x: net(x), (None, "b, 3"), buckets=P),
        nnx.jit(lambda net, x: net(x)),
    )
    seen = []
    for _ in range(3):
        seen.append(np.asarray(ex(net, batch(3))))
        assert_close(seen[-1], jitted(plain, batch(3)))
    assert not np.allclose(seen[0], seen[1])
    assert ex.cache_size == 1


def test_another_mode_of_an_nnx_module_is_another_graph():
    net, plain = Net(0), Net(0)
    ex = sx.Exec(lambda net, x: net(x), (None, "b, 3"), buckets=P)
    for mode in ("eval", "train", "eval"):
        getattr(net, mode)()
        getattr(plain, mode)()
        assert_close(ex(net, batch(3)), plain(batch(3)))
        assert_nets_agree(net, plain)
    assert ex.cache_size == 2


def test_what_a_function_attaches_and_returns_of_nnx_comes_back_as_the_objects_they_are():
    def fn(tree: Any, x: jax.Array) -> Any:
        net = tree["net"]
        net.extra = nnx.Intermediate(x.sum())
        net.dropout.deterministic = True
        return {"in": net.layer, "new": nnx.Linear(3, 2, rngs=nnx.Rngs(1)), "text": "done"}

    net = Net(0)
    ex = sx.Exec(fn, (None, "b, 3"), buckets=P)
    for n in SIZES:
        got = ex({"net": net}, batch(n))
        assert got["in"] is net.layer
        assert got["text"] == "done"
        assert got["new"](batch(2)).shape == (2, 2)
        assert_close(net.extra[...], batch(n).sum())
        assert net.dropout.deterministic


def test_an_nnx_module_that_examples_share_may_not_change():
    net = Net(0)
    with refused(sx.ConfigError, "map: the function changes a module of nnx.", "one per example"):
        sx.Exec(lambda net, x: net(x), (None, "s, 3"), buckets=P).map(net, [batch(3), batch(2)])
    ex = sx.Exec(lambda net, x: net.layer(x), (None, "s, 3"), buckets=P)
    for got, n in zip(ex.map(net, [batch(n) for n in SIZES]), SIZES, strict=True):
        assert_same(got, net.layer(batch(n)))


def test_validating_explaining_and_warming_up_train_nothing():
    net, same = Net(0), Net(0)
    ex = sx.Exec(lambda net, x: net(x), (None, "b, 3"), buckets=P)
    done = sx.validate(ex, net, batch(3), rounds=2, poisons=("nan",))
    assert (done.comparisons, done.skipped) == (4, ())
    ex.explain(net, batch(3))
    assert ex.warmup(net, batch(3), b=range(1, 9)) == 2
    assert_nets_agree(net, same)
    assert_same(ex(net, batch(7)), nnx.jit(lambda net, x: net(x))(same, batch(7)))


def test_nnx_state_passed_as_a_tree_is_what_it_was():
    graph, state = nnx.split(Net(0))

    def fn(state: Any, x: jax.Array) -> Any:
        net = nnx.merge(graph, state)
        return net(x), nnx.state(net)

    ex = sx.Exec(fn, (None, "b, 3"), buckets=P)
    for n in SIZES:
        (got, new), (want, changed) = ex(state, batch(n)), jax.jit(fn)(state, batch(n))
        assert_same(got, want)
        assert_nets_agree(new, changed)


def test_a_function_without_arrays_in_its_result_still_runs():
    ex = sx.Exec(lambda x: {"name": "sum", "none": None}, ("s",), buckets=P)
    assert ex(ones(3)) == {"name": "sum", "none": None}
    assert ex(ones(2)) == {"name": "sum", "none": None}


def test_a_size_that_is_returned_is_no_constant():
    ex = sx.Exec(
        lambda x: {"size": x.shape[0], "twice": 2 * x.shape[0], "name": "n"}, ("s",), buckets=P
    )
    for n in SIZES:
        got = ex(ones(n))
        assert (int(got["size"]), int(got["twice"])) == (n, 2 * n)
    assert ex.cache_size == 1


@pytest.mark.parametrize("fn", [jnp.sum, lambda x: x.sum()])
def test_the_name_of_a_function_stands_in_one_line(fn):
    assert "\n" not in repr(sx.Exec(fn, ("s",), buckets=P))


def test_the_name_of_a_module_stands_in_one_line():
    assert repr(sx.Exec(eqx.nn.MLP(3, 2, 4, 1, key=KEY), ("3",))) == "Exec(MLP, 0 graphs)"


# Variables of nnx outside of a module


def add_up(variables, x):
    for variable in jax.tree.leaves(variables, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)):
        variable[...] = variable[...] + x.sum()
    return x * 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: nnx.Param(jnp.zeros(2)),
        lambda: {"total": nnx.Variable(jnp.zeros(())), "many": [nnx.BatchStat(jnp.zeros(2))]},
    ],
    ids=["bare", "tree"],
)
def test_a_variable_is_changed_as_by_nnx_jit(make):
    ex, ours, plain = sx.Exec(add_up, (None, "s"), buckets=P), make(), make()
    for n in SIZES:
        assert_same(ex(ours, ones(n)), nnx.jit(add_up)(plain, ones(n)))
        assert_same(jax.tree.leaves(nnx.as_pure(ours)), jax.tree.leaves(nnx.as_pure(plain)))
    assert ex.cache_size == 1


def test_a_ragged_variable_keeps_its_size():
    def fn(variable, x):
        variable[...] = variable[...] * 2 + x
        return variable

    ex = sx.Exec(fn, ("s", "s"), buckets=P)
    for n in SIZES:
        variable = nnx.Param(jnp.asarray(ones(n)))
        assert ex(variable, ones(n)) is variable
        np.testing.assert_array_equal(variable[...], 3 * ones(n))
    assert ex.cache_size == 1


# Functions that are new at each call


@pytest.mark.parametrize("options", [{}, {"static_argnums": 0}], ids=["constant", "static"])
def test_a_function_that_is_new_at_each_call_is_warned_of_once(options, recwarn):
    ex = sx.Exec(lambda f, x: f(x), (None, "s"), buckets=P, **options)
    for k in range(12):
        np.testing.assert_array_equal(ex(lambda x, k=k: x * k, ones(3)), k * ones(3))
    told = [str(w.message) for w in recwarn if "different functions of one" in str(w.message)]
    assert len(told) == 1
    assert told[0].startswith("shapeexec: args[0] was 8 different functions of one")
    assert "Where: np.testing.assert_array_equal(ex(lambda x, k=k: x * k" in told[0]
    assert "pass changing values as arguments" in told[0]
    if not options:
        gc.collect()
        ex(jnp.sin, ones(3))
        assert ex.cache_size == 1  # nobody can ask for the graphs of the others


def test_functions_that_are_kept_are_no_matter(recwarn):
    ex = sx.Exec(lambda f, x: f(x), (None, "s"), buckets=P)
    kept = [lambda x, k=k: x * k for k in range(7)]
    for n in (3, 9, 17):
        for k, function in enumerate(kept):
            np.testing.assert_array_equal(ex(function, ones(n)), k * ones(n))
    assert ex.cache_size == 21
    assert not [warning for warning in recwarn if "different functions" in str(warning.message)]
