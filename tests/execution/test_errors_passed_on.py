"""Errors of the function itself, of tracers and of callbacks: they come through, with a way out."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.execution._compile import Graph
from tests.execution.support import assert_runs_as, identity, ones, refused

P = sx.Pow2()


def test_an_error_of_the_function_itself_comes_through():
    def fn(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        sx.Exec(fn, ("s",), buckets=P)(ones(3))


def test_an_error_that_the_sizes_cause_is_the_plain_functions():
    def fn(x, y):
        return x + y

    ex = sx.Exec(fn, ("s", "t"), buckets=P)
    with pytest.raises(TypeError, match="incompatible shapes"):
        ex(ones(3), ones(4))


def test_an_error_leaves_the_exec_as_it_was():
    ex = sx.Exec(lambda x: x if x.shape[0] < 3 else jax.new_ref(x)[...], ("s",), buckets=P)
    assert_runs_as(identity, ex, ones(2))
    with pytest.raises(sx.UnsupportedPrimitiveError):
        ex(ones(3))
    assert_runs_as(identity, ex, ones(2))


def test_a_result_that_is_no_array_is_told():
    ex = sx.Exec(lambda x: (jax.lax.create_token(x), x.sum()), ("s",), buckets=sx.Pow2())
    with pytest.raises(
        sx.ConfigError, match="of type AbstractToken, which is not an array"
    ) as caught:
        ex(np.ones(3, np.float32))
    assert caught.value.option == "fn"
    assert caught.value.where == "result[0]"
    assert caught.value.fix == "return arrays only"


@pytest.mark.parametrize(
    ("fn", "what", "fix"),
    [
        (lambda x: x * np.arange(x.shape[0]), "`np.arange(x.shape[0])`", "write `jnp.arange`:"),
        (lambda x: x * np.tri(x.shape[0]), "`np.tri(x.shape[0])`", "write `jnp.tri`:"),
        (lambda x: x * len(x), "`len(x)`", "write `x.shape[0]`, which keeps"),
        (lambda x: x[: len(x.T) // 2], "`len(x.T)`", "write `x.T.shape[0]`"),
        (lambda x: x * sum(range(x.shape[0])), "(a loop over it,", "jax.lax.fori_loop"),
    ],
    ids=["np.arange", "np.tri", "len", "len of an expression", "range"],
)
def test_numpy_and_len_of_a_size_are_told_by_the_call_and_the_way_out(fn, what, fix):
    with refused(sx.InconclusiveShapeError, what, fix) as caught:
        sx.Exec(fn, ("s",), buckets=P)(ones(5))
    assert "(test_errors_passed_on.py:" in caught.value.where


@pytest.mark.parametrize(
    ("array", "dtype", "fix"),
    [
        (np.array([1, None]), "object", "x.astype(np.float32)"),
        (np.array(["a"]), "<U1", "in the place of strings"),
        (np.array([b"a"]), "|S1", "np.frombuffer(x, np.uint8)"),
        (np.array(["2020-01-01"], "M8[D]"), "datetime64[D]", "x.astype(np.int64)"),
        (np.array([3], "m8[s]"), "timedelta64[s]", "x.astype(np.int64)"),
        (np.ones(3, ">f4"), ">f4", "x.astype(x.dtype.newbyteorder('='))"),
        (np.ones(3, np.longdouble), "float", "x.astype(np.float64)"),
        (np.zeros(3, [("a", np.int32)]), "[('a', '<i4')]", "{name: x[name] for name in"),
    ],
    ids=lambda part: str(getattr(part, "dtype", "")),
)
@pytest.mark.parametrize("spec", ["s", None], ids=["ragged", "static"])
def test_an_array_of_a_dtype_that_jax_lacks_is_told_what_to_pass(array, dtype, fix, spec):
    ex = sx.Exec(lambda x, y: x, ("t", {"a": spec}), buckets=P)
    with refused(sx.ConfigError, "args[1]['a'] is an array of dtype ", fix) as caught:
        ex(ones(3), {"a": array})
    assert dtype in caught.value.what


def test_a_shape_in_the_place_of_an_array_is_told_which_methods_take_it():
    ex, shape = sx.Exec(identity, ("s",), buckets=P), jax.ShapeDtypeStruct((5,), np.float32)
    for call in (ex, lambda x: ex.map([x])):
        with refused(sx.ConfigError, "a call takes arrays", "`plan`, `explain` and `warmup`"):
            call(shape)


def test_a_strategy_that_raises_is_named_with_its_symbol_and_the_size():
    def five(size):
        if size == 70:
            raise KeyError("seventy")
        return size

    ex = sx.Exec(identity, ("s",), buckets={"s": five})
    with refused(sx.StrategyError, "the strategy of `s` raised KeyError: 'seventy'", "") as caught:
        ex(ones(70))
    assert isinstance(caught.value.__cause__, KeyError)
    assert "asked by shapeexec for the bucket of size 70" in caught.value.where
    assert (caught.value.size, caught.value.bucket) == (70, None)


def test_a_strategy_that_raises_when_its_laws_are_checked_is_named_at_once():
    with refused(sx.StrategyError, "the strategy of `s` raised KeyError: 1", "Ladder") as caught:
        sx.Exec(identity, ("s",), buckets={"s": lambda size: {8: 8}[size]})
    assert "for the bucket of size 1" in caught.value.where


def converted_to_bool(x):
    return x if x.sum() > 0 else -x


def converted_to_int(x):
    return x[: int(x[0])]


def converted_to_numpy(x):
    return np.asarray(x) + 1


class WithState:
    def __call__(self, x):
        return converted_to_int(x)


@pytest.mark.parametrize(
    ("fn", "kind", "name"),
    [
        (converted_to_bool, jax.errors.TracerBoolConversionError, "converted_to_bool"),
        (converted_to_int, jax.errors.ConcretizationTypeError, "converted_to_int"),
        (converted_to_numpy, jax.errors.TracerArrayConversionError, "converted_to_numpy"),
        (jax.jit(converted_to_int), jax.errors.ConcretizationTypeError, "converted_to_int"),
        (functools.partial(converted_to_int), jax.errors.ConcretizationTypeError, "converted_to"),
        (WithState(), jax.errors.ConcretizationTypeError, ""),
    ],
    ids=["bool", "int", "array", "jitted", "partial", "object"],
)
@pytest.mark.parametrize("spec", ["s", "5"], ids=["ragged", "static"])
def test_an_error_of_a_tracer_names_the_users_function_and_file(fn, kind, name, spec):
    with pytest.raises(kind) as caught:
        sx.Exec(fn, (spec,), buckets=P)(ones(5))
    if name:
        assert f"function {name}" in str(caught.value)
        assert "test_errors_passed_on.py:" in str(caught.value)
        assert "_planner.py" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "note"),
    [
        (
            lambda x: sx.Exec(lambda x, p, flag: x if flag else -x, ("s", None, None))(x, {}, True),
            "is args[2] (`flag`). Numbers and arrays are data, whose values are not known while "
            "tracing. If it is a setting, make it a constant: static_argnames='flag', and pass",
        ),
        (
            lambda x: sx.Exec(lambda x, p: x if p["a"] > 0 else -x, ("s", None))(x, {"a": 1}),
            "is args[1]['a'] (`p`).",
        ),
        (
            lambda x: sx.Exec(lambda x, *, flag: x if flag else -x, ("s",))(x, flag=True),
            "is kwargs['flag']. Numbers and arrays are data, whose values are not known while "
            "tracing. If it is a setting, make it a constant: static_argnames='flag'",
        ),
        (
            lambda x: sx.Exec(lambda *all_: all_[0] if all_[1] else 0, ("s", None))(x, True),
            "make it a constant: static_argnums=1",
        ),
    ],
    ids=["position", "tree", "keyword", "variable"],
)
def test_an_argument_whose_value_is_asked_is_named_with_the_way_out(call, note):
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        call(np.ones(3, np.float32))
    assert [told for told in caught.value.__notes__ if note in told]


def test_the_way_out_for_an_argument_whose_value_is_asked_works():
    ex = sx.Exec(lambda x, flag: x if flag else -x, ("s",), static_argnames="flag")
    assert ex(np.ones(3, np.float32), flag=False).sum() == -3


class Flaky:
    """A callback that fails at its second call."""

    calls = 0

    def __call__(self, x):
        self.calls += 1
        if self.calls > 1:
            raise TypeError("of the callback")
        return np.asarray(x)


@pytest.mark.parametrize("run", [lambda ex: ex(ones(3)), lambda ex: ex.map([ones(3)])])
def test_a_type_error_of_a_callback_is_raised_and_its_effect_happens_once(run):
    callback = Flaky()

    def total(x):
        return jax.pure_callback(callback, jax.ShapeDtypeStruct((), x.dtype), x.sum())

    ex = sx.Exec(total, ("s",))
    assert jax.tree.leaves(run(ex)) == [6]
    with pytest.raises(Exception, match="of the callback"):
        jax.block_until_ready(run(ex))
    assert callback.calls == 2


@pytest.mark.parametrize("run", [lambda ex: ex(ones(3)), lambda ex: ex.map([ones(3)])])
def test_a_type_error_of_a_graph_is_raised_and_the_graph_runs_once(run, monkeypatch):
    ex = sx.Exec(jnp.sum, ("s",))
    run(ex)
    calls = []

    def fail(graph, *_, **__):
        calls.append(graph)
        raise TypeError("of the graph")

    monkeypatch.setattr(Graph, "__call__", fail)
    with pytest.raises(TypeError, match="of the graph"):
        run(ex)
    assert len(calls) == 1
