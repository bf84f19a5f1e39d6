"""`masking=False`: the function runs as it is at its buckets, and results are cut."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shapeexec as sx
from tests.execution.support import assert_runs_as, assert_same, counted, ones, refused
from tests.tolerance import FEW, assert_close

B = sx.Pow2(minimum=8)


def by_tokens(tokens, x):
    mask = tokens != 0
    held = jnp.where(mask[..., None], x, 0)
    return held.sum(1) / jnp.maximum(mask.sum(1), 1)[:, None], held * 2


def by_mask(mask, x):
    scores = jnp.where(mask, x.sum(-1), -1e9)
    return jax.nn.softmax(scores, axis=1)


def by_position(x):
    return jnp.cumsum(x, axis=1)


def by_loop(x):
    return sum(x[:, i] * (i == 0) for i in range(x.shape[1]))


def by_place(x):
    return {"first": x[:, 0], "even": x[:, ::2], "merged": (x * 2).reshape(-1).reshape(x.shape)}


TOKENS, MASK = "tokens", "mask"
MAKES: dict[str, Callable[[int, int], Any]] = {
    TOKENS: lambda b, s: np.arange(1, 1 + b * s, dtype=np.int32).reshape(b, s),
    MASK: lambda b, s: np.ones((b, s), bool),
    "x": lambda b, s: np.random.default_rng(s).normal(size=(b, s, 3)).astype(np.float32),
}
SPECS = {TOKENS: "b, s", MASK: "b, s", "x": "b, s, 3"}


@dataclasses.dataclass(frozen=True)
class Row:
    """A function that masks for itself, with the arguments that it takes."""

    fn: Callable[..., Any]
    takes: tuple[str, ...]
    padding: Any = "zeros"

    def args(self, b: int, s: int) -> list[Any]:
        return [MAKES[name](b, s) for name in self.takes]

    def run(self, **options: Any) -> sx.Exec:
        specs = tuple(SPECS[name] for name in self.takes)
        return sx.Exec(
            self.fn, specs, **{"masking": False, "padding": self.padding, "buckets": B} | options
        )


HOLDS = [
    Row(by_tokens, (TOKENS, "x")),
    Row(by_tokens, (TOKENS, "x"), padding={"tokens": 0, "x": "edge"}),
    Row(by_tokens, (TOKENS, "x"), padding="adaptive"),
    Row(by_mask, (MASK, "x")),
    Row(by_mask, (MASK, "x"), padding={"mask": False, "x": "wrap"}),
    Row(by_position, ("x",), padding="reflect"),
    Row(by_loop, ("x",)),
    Row(by_place, ("x",), padding=-3.5),
    Row(lambda x: x.max(axis=1), ("x",), padding="edge"),
    Row(lambda x: x.max(axis=1), ("x",), padding=-np.inf),
    Row(lambda x: x.min(axis=(1, 2)), ("x",), padding="wrap"),
]


@pytest.mark.parametrize("row", HOLDS, ids=lambda row: f"{row.fn.__name__} {row.padding}")
def test_a_function_whose_masks_hold_returns_what_it_returns_unpadded(row):
    run = row.run()
    for sizes in [(1, 1), (2, 3), (3, 8), (8, 8), (9, 5)]:
        assert_runs_as(row.fn, run, *row.args(*sizes))
    assert run.stats.graphs == run.stats.compiles == 2


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from(HOLDS[:4]))
def test_masks_of_the_function_hold_at_all_sizes(b, s, row):
    assert_runs_as(row.fn, row.run(), *row.args(b, s))


@pytest.mark.parametrize(
    ("padding", "want"),
    [("zeros", 6 / 8), ("edge", 21 / 8), ("reflect", 16 / 8), ("wrap", 15 / 8), (2, 16 / 8)],
)
def test_a_function_without_masks_reads_the_padding_and_the_bucket(padding, want):
    run = sx.Exec(jnp.mean, ("s",), masking=False, padding=padding, buckets=B)
    assert float(run(ones(3))) == want


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.complex64, jnp.bfloat16])
def test_arguments_of_each_dtype_are_padded_in_their_mode(dtype):
    run = sx.Exec(lambda x: (x[-1], x), ("s",), masking=False, padding="wrap", buckets=B)
    x = np.array([1, 0, 1]).astype(dtype)
    last, whole = run(x)
    assert last == x[1]
    assert_same(whole, jnp.asarray(x))


def test_typed_keys_go_through():
    keys = jax.random.split(jax.random.key(0), 3)
    run = sx.Exec(jax.vmap(jax.random.uniform), ("s",), masking=False, padding=4)
    np.testing.assert_array_equal(run(keys), jax.vmap(jax.random.uniform)(keys))


def sized(x):
    return (x if x.shape[0] > 6 else -x) * x.shape[0]


def test_branches_and_sizes_are_those_of_the_bucket():
    run = sx.Exec(sized, ("s",), masking=False, buckets=B)
    np.testing.assert_array_equal(run(ones(3)), ones(3) * 8)
    np.testing.assert_array_equal(run(ones(7)), ones(7) * 8)
    assert run.stats.compiles == 1
    assert run.plan(ones(3)).guards == ()


def test_a_branch_on_the_very_bucket_does_not_stop_the_cut():
    run = sx.Exec(lambda x: x + 1 if x.shape[0] == 8 else x, ("s",), masking=False, buckets=B)
    np.testing.assert_array_equal(run(ones(3)), ones(3) + 1)
    assert run.stats.waste["s"] == 5 / 8


def test_numbers_that_python_computes_from_sizes_are_those_of_the_bucket():
    run = sx.Exec(lambda x: x.sum() / (x.shape[0] ** 0.5), ("s",), masking=False, buckets=B)
    assert_close(run(ones(3)), jnp.float32(6 / 8**0.5), loose=FEW)


def test_a_constraint_is_of_the_call_and_decides_nothing_at_the_bucket():
    fn = lambda x: x if x.shape[0] <= 5 else -x
    run = sx.Exec(fn, ("s",), masking=False, buckets=B, constraints="s <= 5")
    np.testing.assert_array_equal(run(ones(3)), -ones(3))
    with pytest.raises(sx.ConstraintError, match="s <= 5"):
        run(ones(6))


def test_nothing_is_padded_at_sizes_that_are_exact():
    run = sx.Exec(jnp.sum, ("s",), masking=False, padding=1, buckets=sx.Exact())
    assert float(run(ones(3))) == 6
    assert float(sx.Exec(jnp.sum, ("s",), masking=False, padding=1)(np.zeros(0))) == 0


@pytest.mark.parametrize(
    ("fn", "spec", "what", "got"),
    [
        (lambda x: jnp.zeros(20 - x.shape[0]), "s", "a result", "[17] of the call, [12] at"),
        (lambda x: x.sum(), "20 - s", "an argument", "[17] of the call, [12] at"),
        (lambda x: x if x.shape[0] < 8 else x[None], "s", "a result", "[3] of the call, [1, 8] at"),
        (lambda x: x if x.shape[0] < 8 else (x, x), "s", "a result", "trees of other structures"),
    ],
)
def test_what_is_no_corner_of_the_bucket_is_refused(fn, spec, what, got):
    run = sx.Exec(fn, (spec, "s") if "20" in spec else (spec,), masking=False, buckets=B)
    if "20" in spec:
        run = sx.Exec(lambda x, y: fn(x), (spec, "s"), masking=False, buckets=B)
    args = (ones(17), ones(3)) if "20" in spec else (ones(3),)
    text = f"masking=False: {what} of the unpadded call does not fit"
    with refused(sx.ConfigError, text, '"s": sx.Exact() in buckets=') as caught:
        run(*args)
    assert f"{got}" in str(caught.value)
    assert "s=3 in bucket 8" in str(caught.value)


def test_the_functions_own_error_names_the_sizes_at_which_it_comes():
    def pick(x):
        return x.reshape(3, -1)

    run = sx.Exec(pick, ("s",), masking=False, buckets=B)
    with pytest.raises(TypeError) as caught:
        run(ones(3))
    assert "raises this at s=8" in caught.value.__notes__[-1]


OPTIONS = [
    ({"padding": "edge"}, "padding='edge' with masking=True.", "masking=False if the function"),
    ({"padding": {"x": 0}}, "padding={'x': 0} with masking=True.", "leave padding= out"),
    (
        {"masking": False, "on_unsupported": "exact"},
        'on_unsupported="exact" with masking=False.',
        "leave on_unsupported= out, or masking=True",
    ),
    (
        {"masking": False, "missing": "larger"},
        'missing="larger" with masking=False.',
        "leave missing= out, or masking=True",
    ),
    (
        {"masking": False, "padding": {"x": "adaptive"}, "donate_argnums": 0},
        'padding="adaptive" and donate_argnums with masking=False.',
        "leave padding= out, or masking=True",
    ),
    ({"masking": 0}, "masking=0 is not a bool.", "masking=False"),
    (
        {"masking": False, "padding": {0: "edge", "x": 0}},
        "padding names one argument twice: 0 and 'x'.",
        "its position or its name",
    ),
]


@pytest.mark.parametrize(("options", "what", "fix"), OPTIONS)
def test_options_that_contradict_each_other_are_refused(options, what, fix):
    with refused(sx.ConfigError, what, fix):
        sx.Exec(lambda x: x, ("s",), **options)
    plain = sx.Exec(lambda x: x, ("s",))
    with refused(sx.ConfigError, what, fix):
        plain.variant(**options)


@pytest.mark.parametrize("reduce", [None, "sum"])
def test_maps_are_refused(reduce):
    run = sx.Exec(jnp.sum, ("s",), masking=False)
    for call in (run.map, run.map.plan, run.map.explain):
        with refused(sx.ConfigError, "map with masking=False.", "masking=True"):
            call([ones(3), ones(4)], reduce=reduce)


def test_masks_stay_where_they_are_by_default():
    run = sx.Exec(jnp.mean, ("s",), buckets=B)
    assert run.settings.masking
    assert run.plan(ones(3)).fillings == ()
    assert float(run.variant(masking=False)(ones(3))) == 6 / 8
    assert float(run.variant(masking=False).variant(masking=True)(ones(3))) == 2


def test_handles_go_in_and_come_out(place):
    run = sx.Exec(lambda x: x + 1, ("s",), masking=False, padding="edge", buckets=B)
    handle = run.padded(ones(3))
    assert isinstance(handle, sx.Padded)
    np.testing.assert_array_equal(handle, ones(3) + 1)
    np.testing.assert_array_equal(run(handle), ones(3) + 2)
    ending = sx.Exec(lambda x: x[-1], ("s",), masking=False, padding="edge", buckets=B)
    assert float(ending(handle)) == 4
    zeros = sx.Exec(lambda x: x * 2, ("s",), buckets=B).padded(ones(3))
    assert float(ending(zeros)) == 6
    assert_close(sx.Exec(jnp.mean, ("s",), buckets=B)(handle), jnp.float32(3), loose=FEW)


@pytest.mark.parametrize("returns", ["device", "padded", "host"])
def test_results_come_as_asked(returns):
    run = sx.Exec(by_position, ("b, s, 3",), masking=False, returns=returns, buckets=B)
    x = MAKES["x"](2, 3)
    assert_close(np.asarray(run(x)), np.asarray(jnp.cumsum(x, axis=1)), loose=FEW)


def test_donated_arguments_are_taken():
    run = sx.Exec(lambda x: x * 2, ("s",), masking=False, donate_argnums=0, buckets=B)
    x = jnp.asarray(ones(8))
    np.testing.assert_array_equal(run(x), ones(8) * 2)
    assert x.is_deleted()


def test_another_size_of_a_bucket_compiles_nothing():
    run = sx.Exec(by_position, ("b, s, 3",), masking=False, padding="wrap", buckets=B)
    run(MAKES["x"](2, 3))
    with counted() as count:
        run(MAKES["x"](3, 5))
        run(MAKES["x"](3, 5))
    assert count.compilations == 0
    assert run.stats.hits == 2
    assert run.stats.misses == 1


def test_what_a_call_runs_is_told():
    run = sx.Exec(by_tokens, ("b, s", "b, s, 3"), masking=False, padding={"x": "edge"})
    told = str(run.explain(*HOLDS[0].args(2, 3)))
    assert "masking=False: the function masks for itself, and reads the buckets" in told
    assert "  padding of args[0]: zeros\n  padding of args[1]: edge" in told
    assert "0 masks, 0 spared" in told
    program = run.trace(*HOLDS[0].args(2, 3))
    assert "tokens i32[2,4]" in str(program)
    assert "s = 3 of 4" in str(program)


def test_saved_graphs_serve_the_same_masking_only(tmp_path):
    run = sx.Exec(jnp.mean, ("s",), masking=False, padding={0: "edge"}, buckets=B)
    run(ones(3))
    assert run.save(tmp_path) == 1
    again = sx.load(tmp_path, jnp.mean, trusted=True)
    assert again.settings == run.settings
    assert float(again(ones(3))) == 21 / 8
    assert (again.stats.loads, again.stats.compiles) == (1, 0)
    masked = again.variant(masking=True, padding="zeros")
    assert float(masked(ones(3))) == 2
    assert masked.stats.loads == 0


def test_what_a_call_costs_does_not_depend_on_masks():
    x = MAKES["x"](2, 3)
    costs = [
        run.cost_model(x)
        for run in (sx.Exec(by_position, ("b, s, 3",)), HOLDS[5].run(buckets=sx.Pow2()))
    ]
    assert str(costs[0]) == str(costs[1])


def test_poison_takes_the_place_of_padding_that_is_not_named():
    def last(x, y, n):
        return x[-1], y[-1], n[-1]

    args = (ones(3), ones(3), np.ones(3, np.int32))
    run = sx.Exec(
        last, ("s", "s", "s"), masking=False, poison="nan", padding={"y": "edge"}, buckets=B
    )
    x, y, n = run(*args)
    assert np.isnan(x)
    assert (float(y), int(n)) == (3, 0)
    assert "args[0]: nan (poison nan)" in str(run.explain(*args))


def test_adaptive_keeps_the_mode_that_is_nearest_to_the_unpadded_call():
    run = sx.Exec(lambda x: x.max(axis=1), ("b, s",), masking=False, padding="adaptive", buckets=B)
    x = -ones(2, 5)
    assert "args[0]: zeros (adaptive: not measured yet)" in str(run.explain(x))
    np.testing.assert_array_equal(run(x), [-1, -6])
    told = "args[0]: edge (adaptive, by differences: zeros 1, edge 0, reflect 0, wrap 0)"
    assert told in str(run.explain(x))
    traces, compiles = run.stats.traces, run.stats.compiles
    assert float(run(ones(1, 4))[0]) == 4
    assert run.plan(ones(1, 4)).fillings[0].mode == "edge"
    assert (run.stats.traces, run.stats.compiles) == (traces, compiles)


def test_adaptive_measures_where_a_call_pads_and_once():
    seen = []

    def noted(x):
        jax.debug.callback(lambda: seen.append(1))
        return x.sum()

    run = sx.Exec(noted, ("s",), masking=False, padding="adaptive", buckets=B)
    for size, runs in [(8, 1), (3, 1 + 5 + 1), (4, 8)]:
        run(ones(size))
        jax.effects_barrier()
        assert len(seen) == runs


def test_adaptive_is_for_each_argument_and_kind_of_dtype():
    def fn(tree, low, flag):
        return tree["x"].max(), (tree["t"] != 0).sum(), low.min(), flag.sum()

    specs = ({"x": "s", "t": "s"}, "s", "s")
    run = sx.Exec(fn, specs, masking=False, padding="adaptive", buckets=B)
    tree = {"x": -ones(3), "t": np.arange(1, 4, dtype=np.int32)}
    assert_runs_as(fn, run, tree, ones(3), np.ones(3, bool))
    told = {f.path: f.mode for f in run.plan(tree, ones(3), np.ones(3, bool)).fillings}
    assert told == {
        "args[0]['t']": "zeros",
        "args[0]['x']": "edge",
        "args[1]": "edge",
        "args[2]": "zeros",
    }


def test_adaptive_measures_a_function_whose_callback_calls_it_again():
    asked = []

    def call_again(x):
        if not asked:
            asked.append(1)
            run(-ones(3))
        return x

    def fn(x):
        return jax.pure_callback(call_again, jax.ShapeDtypeStruct(x.shape, x.dtype), x).max()

    run = sx.Exec(fn, ("s",), masking=False, padding="adaptive")
    assert_close(run(-ones(5)), np.float32(-1))
    assert asked
