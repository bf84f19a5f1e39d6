"""Each error, its first line and its way out."""

import math
from math import sqrt

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from tests.execution.support import assert_runs_as, identity, ones, refused

P = sx.Pow2()


@pytest.mark.parametrize(
    ("options", "what", "fix"),
    [
        ({"on_unsupported": "ignore"}, "on_unsupported='ignore' is not known.", '"exact"'),
        ({"poison": "bad"}, "poison='bad' is not known.", "one of nan"),
        ({"buckets": {1: P}}, "buckets: 1 is not a symbol.", "sx.Pow2()"),
        ({"buckets": {"b, s": P}}, "buckets: 'b, s' is not a symbol.", "sx.Pow2()"),
        ({"buckets": {"s": "pow3"}}, "buckets='pow3' is not a strategy.", '"pow2"'),
        ({"constraints": "s >> 2"}, "constraints: 's >> 2'", "write a comparison"),
        ({"constraints": ["s"]}, "constraints: 's' is not a comparison.", "write a comparison"),
        ({"constraints": [3]}, "constraints=[3] are not strings.", "constraints="),
        ({"constraints": 3}, "constraints=3 are not strings.", "constraints="),
        ({"static_argnames": 3}, "static_argnames=3 are not strings.", "static_argnames="),
        ({"buckets": 0}, "buckets=0 is not an integer of at least 1.", "pass buckets as an int"),
        ({"limits": 3}, "limits=3 is not a CacheLimits.", "sx.CacheLimits"),
        ({"kwarg_shapes": "s"}, "kwarg_shapes='s' is not a Mapping.", "kwarg_shapes={"),
        ({"constraints": ["s >= ?"]}, "constraints: 's >= ?'", "write a comparison"),
        ({"static_argnums": -1}, "static_argnums=-1 are not positions", "static_argnums=1"),
        ({"static_argnums": "x"}, "static_argnums='x' are not positions", "static_argnums=1"),
        ({"donate_argnums": True}, "donate_argnums=True are not", "donate_argnums=1"),
        ({"donate_argnums": 1}, "donate_argnums: the function has no argument 1.", "from 0"),
        ({"static_argnums": (0, 3)}, "static_argnums: the function has no argument 3.", "from 0"),
        ({"static_argnames": "n"}, "static_argnames: the function has no argument 'n'.", "from 0"),
        ({"kwarg_shapes": {"maks": "s"}}, "kwarg_shapes: the function has no", "one of these"),
    ],
    ids=str,
)
def test_an_option_that_cannot_work_is_an_error_at_once(options, what, fix):
    with refused(sx.ConfigError, what, fix) as told:
        sx.Exec(identity, ("s",), **options)
    assert told.value.option in options


def test_a_decorator_without_parentheses_is_an_error_at_once():
    with refused(sx.ConfigError, "bucketed is given a function, identity,", "@sx.bucketed(), with"):
        sx.bucketed(identity)
    assert_runs_as(identity, sx.bucketed()(identity), ones(3))


def test_what_is_no_function_is_an_error_at_once():
    with refused(sx.ConfigError, "fn=3 cannot be called.", "pass a function"):
        sx.Exec(3)


def test_specs_in_a_text_are_an_error_at_once():
    with refused(sx.SpecError, "in_shapes='b, s' is not a sequence", "in_shapes=('b, s',)"):
        sx.Exec(identity, "b, s")


def test_a_strategy_that_breaks_a_law_is_an_error_at_once():
    with pytest.raises(sx.StrategyError):
        sx.Exec(identity, ("s",), buckets={"s": lambda size: size - 1})


def test_a_strategy_that_breaks_a_law_between_the_sizes_that_were_tried_is_an_error_there():
    def bucket(size):  # right at all sizes that are tried when the Exec is made
        return 112 if 90 <= size <= 112 else 1 << (size - 1).bit_length()

    fn = lambda x: jnp.concatenate([x, x[::-1]])[: 128 - x.shape[0]]
    ex = sx.Exec(fn, ("s",), buckets=bucket)
    for size in (3, 64, 100, 112, 120):
        assert_runs_as(fn, ex, ones(size))
    for run in (ex, ex.plan, lambda x: ex.map([x])):
        with refused(sx.StrategyError, "is not monotone", "never get smaller") as caught:
            run(ones(70))
        assert "Got:   bucket(70) = 128, yet bucket(112) = 112" in str(caught.value)


def test_a_strategy_for_a_symbol_that_no_spec_has_is_an_error():
    with refused(sx.ConfigError, "buckets: no spec has a symbol `t`", "name a symbol"):
        sx.Exec(identity, ("s",), buckets={"t": P})


def test_a_malformed_spec_tells_where_it_is():
    with refused(sx.SpecError, "", "") as caught:
        sx.Exec(identity, ("s,, t",), buckets=P)(ones(3))
    assert "in_shapes[0]" in str(caught.value)


def test_an_argument_of_the_wrong_rank_is_told_by_its_path():
    ex = sx.Exec(lambda x: x["a"], ({"a": "b, s"},), buckets=P)
    with refused(sx.SpecError, "args[0]['a'] has rank 1", "pass an array of rank 2") as told:
        ex({"a": ones(3)})
    assert told.value.path == "args[0]['a']"


def test_a_size_past_the_ladder_names_the_ladder():
    ex = sx.Exec(identity, ("s",), buckets={"s": sx.Ladder([2, 4])})
    with pytest.raises(sx.BucketOverflowError) as caught:
        ex(ones(5))
    assert (caught.value.size, caught.value.ladder) == (5, (2, 4))
    assert caught.value.symbol == "s"
    assert caught.value.what == "`s`: size=5 is past the last bucket of Ladder: 2, 4."


def test_a_static_argument_that_does_not_hash_is_an_error():
    ex = sx.Exec(lambda x, n: x, ("s", None), buckets=P, static_argnums=1)
    with refused(sx.ConfigError, "static argument args[1] cannot be hashed: list.", "a tuple"):
        ex(ones(3), [1])
    held = sx.Padded(jax.numpy.ones(3), (2,))  # is hashed by identity, but its array is not
    with refused(sx.ConfigError, "static argument args[1] cannot be hashed: Padded.", "static"):
        ex(ones(3), held)


def test_an_array_that_jax_does_not_know_is_told_by_its_path():
    ex = sx.Exec(lambda p, x: x, (None, "s"), buckets=P)
    with refused(sx.ConfigError, "args[0]['mode'] is an array of dtype <U5", "positions in a"):
        ex({"mode": np.array(["train"])}, ones(3))
    np.testing.assert_array_equal(ex({"mode": ("train",)}, ones(3)), ones(3))


def test_a_ragged_argument_that_is_no_array_is_an_error():
    with refused(sx.SpecError, 'args[0] has the spec "s" but is not an array.', "pass an array"):
        sx.Exec(identity, ("s",), buckets=P)(3.0)


def test_too_many_arguments_are_an_error():
    with refused(sx.SpecError, "in_shapes has 1 spec for 2 arguments.", "in_shapes=('s', None)"):
        sx.Exec(lambda x, y: x, ("s",), buckets=P)(ones(3), 2.0)


def test_a_broken_constraint_tells_the_sizes():
    ex = sx.Exec(identity, ("s",), buckets=P, constraints=("mod(s, 2) == 0", "s >= 2"))
    assert_runs_as(identity, ex, ones(4))
    with refused(sx.ConstraintError, "the constraint `mod(s, 2) == 0`: s=3.", "plain") as caught:
        ex(ones(3))
    assert caught.value.sizes == {"s": 3}


def test_a_constraint_decides_a_question():
    def fn(x):
        return x.reshape(-1, 2).sum(1) if x.shape[0] >= 2 else x

    ex = sx.Exec(fn, ("s",), buckets=P, constraints=("mod(s, 2) == 0", "s >= 2"))
    for n in (2, 4, 6):
        assert_runs_as(fn, ex, ones(n))


def test_what_cannot_be_padded_names_the_primitive_and_the_line():
    def fn(x):
        return jax.new_ref(x)[...]

    ex = sx.Exec(fn, ("s",), buckets=P)
    with refused(sx.UnsupportedPrimitiveError, "`new_ref`", 'on_unsupported="exact"') as caught:
        ex(ones(3))
    assert caught.value.primitive == "new_ref"
    assert caught.value.symbols == {"s"}
    assert "jax.new_ref(x)[...]" in str(caught.value)


@pytest.mark.parametrize(
    ("fn", "what"),
    [
        (lambda x: sum(x[i] for i in range(x.shape[0])), "needs the size as a Python int"),
        (lambda x: x * float(x.shape[0]), "needs the size as a Python float"),
        (lambda x: x * np.zeros(x.shape), "needs the size as a Python int"),
        (lambda x: x * np.arange(x.shape[0]), "a Python int for `np.arange(x.shape[0])`: `s`."),
        (lambda x: jnp.pad(x, 2, mode="wrap"), ": `s`."),
        (lambda x: jnp.partition(x, x.shape[0] // 2), ": `s`."),  # would split s without end
    ],
    ids=["range", "float", "np.zeros", "np.arange", "wrap", "partition"],
)
def test_what_cannot_be_traced_tells_what_it_needs(fn, what):
    with refused(sx.InconclusiveShapeError, what, 'on_unsupported="exact"'):
        sx.Exec(fn, ("s",), buckets=P)(ones(8))


@pytest.mark.parametrize(
    ("fn", "what", "fix", "mended"),
    [
        (
            lambda x: x[: int(x.shape[0] / 2)],
            "needs a number that is computed from the size as a Python int: `s`.",
            "`n // 2` for `int(n / 2)`",
            lambda x: x[: x.shape[0] // 2],
        ),
        (
            lambda x: x[: round(0.9 * x.shape[0])],
            "needs a number that is computed from the size as a Python int: `s`.",
            "`n * 9 // 10` for `int(0.9 * n)`",
            lambda x: x[: x.shape[0] * 9 // 10],
        ),
        (
            lambda x: x[: int(np.ceil(x.shape[0] / 2))],
            "needs a number that is computed from the size as a Python int: `s`.",
            "`math.ceil(n / 2)`",
            lambda x: x[: math.ceil(x.shape[0] / 2)],
        ),
        (
            lambda x: x * float(x.shape[0]),
            "needs the size as a Python float",
            "write `1.0 * x.shape[0]`, which",
            lambda x: x * (1.0 * x.shape[0]),
        ),
        (
            lambda x: x / sqrt(x.shape[0]),
            "needs the size as a Python float",
            "write `math.sqrt(x.shape[0])`: by that name",
            lambda x: x / math.sqrt(x.shape[0]),
        ),
    ],
    ids=["int", "round", "np.ceil", "float", "sqrt"],
)
def test_a_number_of_python_that_is_wanted_has_a_way_out_that_works(fn, what, fix, mended):
    with refused(sx.InconclusiveShapeError, what, fix) as caught:
        sx.Exec(fn, ("s",), buckets=P)(ones(7))
    assert "(test_errors.py:" in caught.value.where
    ex = sx.Exec(mended, ("s",), buckets=P)
    assert_runs_as(fn, ex, ones(7))
    assert_runs_as(fn, ex, ones(5))
    assert ex.stats.compiles == 1


def test_a_shard_map_over_a_ragged_axis_is_told_with_a_way_out_that_works():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    over = jax.sharding.PartitionSpec("d")

    @jax.jit
    def inner(x):
        mapped = jax.shard_map(lambda x: x * 2, mesh=mesh, in_specs=over, out_specs=over)
        return mapped(x)

    fn = lambda x: inner(x) + 1
    with refused(sx.UnsupportedPrimitiveError, "`shard_map` over padded `s`", "exact") as caught:
        sx.Exec(fn, ("4, s",), buckets=P)(ones(4, 5))
    assert caught.value.where.startswith("return mapped(x)  (test_errors.py:")
    assert_runs_as(fn, sx.Exec(fn, ("4, s",), buckets=P, on_unsupported="exact"), ones(4, 5))


def test_a_line_of_a_library_is_told_behind_the_users_own():
    key = jax.random.key(0, impl="rbg")
    drop = eqx.nn.Dropout(0.5)

    def fn(x):
        return drop(x, key=key) + 1

    with refused(sx.UnsupportedPrimitiveError, "`random_bits`", "threefry2x32") as caught:
        sx.Exec(fn, ("s",), buckets=P)(ones(7))
    own, through = caught.value.where.split(", through ")
    assert own.startswith("return drop(x, key=key) + 1  (test_errors.py:")
    assert through.startswith("mask = ")
    assert "(_dropout.py:" in through


def test_a_function_that_takes_any_argument_may_have_any_option():
    fn = lambda *args, **kwargs: args[0]
    options = {"static_argnames": "n", "kwarg_shapes": {"mask": "s"}, "donate_argnums": 3}
    np.testing.assert_array_equal(sx.Exec(fn, ("s",), buckets=P, **options)(ones(3)), ones(3))


def test_fewer_arguments_than_specs_are_an_error():
    with refused(sx.SpecError, "in_shapes has 2 specs for 1 argument.", "in_shapes=('s',)"):
        sx.Exec(lambda x, y: x * y, ("s", None), buckets=P)(ones(3))


def test_a_frozen_exec_tells_what_arguments_it_has_no_graph_for():
    ex = sx.Exec(identity, ("s",), buckets=P)
    ex(ones(3))
    ex.freeze()
    with refused(sx.FrozenError, "no graph is compiled for s=3", "warm up") as caught:
        ex(ones(3).astype(np.int32))
    assert "Got:   arguments i32[s]" in str(caught.value)
    assert caught.value.graph.startswith("s=3 in bucket 4 (25% padding)")
    assert (caught.value.where or "").startswith("ex(ones(3).astype(np.int32))  (test_errors.py:")


def test_what_cannot_be_traced_tells_the_line_the_shapes_and_the_fewest_symbols():
    def fn(x):
        return x * int(x.shape[1])

    with refused(sx.InconclusiveShapeError, "a Python int", "make `s` exact:") as caught:
        sx.Exec(fn, ("b, s",), buckets=P)(ones(3, 5))
    assert caught.value.symbols == {"s"}
    assert "Where: return x * int(x.shape[1])  (test_errors.py:" in str(caught.value)
    assert "Got:   arguments f32[b,s] at b=3, s=5" in str(caught.value)


def test_what_jit_cannot_trace_either_says_so():
    ex = sx.Exec(lambda x: x[x > 0], ("s",), buckets=P)
    with pytest.raises(jax.errors.NonConcreteBooleanIndexError) as caught:
        ex(ones(3))
    (note,) = [n for n in caught.value.__notes__ if "shapeexec" in n]
    assert note == "shapeexec: jax.jit of the plain function raises this at s=3, too."
