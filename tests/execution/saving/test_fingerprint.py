"""All that decides which program XLA makes is in a fingerprint; what differs is made anew."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import config as _config

import shapeexec as sx
from shapeexec.execution.saving import _fingerprint, _saved
from tests.execution.saving.support import SPECS, W, attend, data, parts, saved, told
from tests.tolerance import assert_close

X = data()
GUARDED = {"constraints": "s >= 2"}


def with_branch(w, x):
    return attend(w, x) * (2 if x.shape[1] > 4 else 3)


def donating(x):
    return x + 1


def host_number(x):
    return x.sum() / (x.shape[0] * (x.shape[0] - 1) / 2)


def other_host_number(x):
    return x.sum() / (x.shape[0] * (x.shape[0] - 1) / 4)


BASE = (attend, (W, X), SPECS, {})
DIFFERENT = {
    "another function": ({"function"}, BASE, (lambda w, x: attend(w, x) + 1, (W, X), SPECS, {})),
    "another outcome of a guard": (
        {"guards", "function"},
        (with_branch, (W, data(3, 5)), SPECS, {"buckets": {"s": sx.Ladder([8]), "b": 4}}),
        (with_branch, (W, data(3, 3)), SPECS, {"buckets": {"s": sx.Ladder([8]), "b": 4}}),
    ),
    "a constraint": ({"constraints"}, BASE, (attend, (W, X), SPECS, {"constraints": "s >= 2"})),
    "another bucket": ({"ranges", "arguments"}, BASE, (attend, (W, data(3, 9)), SPECS, {})),
    "the least size of a bucket": (
        {"ranges"},
        (attend, (W, X), SPECS, {"buckets": {"s": sx.Ladder([8]), "b": 4}}),
        (attend, (W, X), SPECS, {"buckets": {"s": sx.Ladder([2, 8]), "b": 4}}),
    ),
    "a dtype": (
        {"arguments", "function"},
        BASE,
        (attend, (W, X.astype(jnp.bfloat16)), SPECS, {}),
    ),
    "where an argument stands": (
        {"arguments"},
        BASE,
        (attend, (jax.device_put(W, jax.devices()[0]), X), SPECS, {}),
    ),
    "a donation": (
        {"arguments"},
        (donating, (X,), ("b, s, 4",), {}),
        (donating, (X,), ("b, s, 4",), {"donate_argnums": 0}),
    ),
    "poison": ({"poison"}, BASE, (attend, (W, X), SPECS, {"poison": "nan"})),
    "zeros behind results": (
        {"zero_results"},
        (donating, (X,), ("b, s, 4",), {}),
        (donating, (X,), ("b, s, 4",), {"returns": "padded"}),
    ),
    "an option of XLA": (
        {"options"},
        BASE,
        (
            attend,
            (W, X),
            SPECS,
            {"compiling": sx.Compiling(options={"xla_cpu_enable_fast_math": True})},
        ),
    ),
    "the name of a symbol": (
        {"symbols", "function", "ranges", "guards"},
        (donating, (X,), ("b, s, 4",), {}),
        (donating, (X,), ("b, t, 4",), {}),
    ),
    "a number of the host": (
        {"numbers", "function"},
        (host_number, (X[0, :, 0],), ("s",), {}),
        (other_host_number, (X[0, :, 0],), ("s",), {}),
    ),
}


def differing(one, other):
    """The names of the parts that differ, by group."""
    return {
        group: {
            name
            for name in one[group].keys() | other[group].keys()
            if one[group].get(name) != other[group].get(name)
        }
        for group in one
    }


def of(case):
    fn, args, specs, options = case
    return parts(fn, args, specs, **options)


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_tells_graphs_apart_is_in_their_parts(name):
    expected, one, other = DIFFERENT[name]
    found = differing(of(one), of(other))
    assert found["environment"] == found["settings"] == set()
    assert found["graph"] == expected
    assert _fingerprint.fingerprint(of(one)) == _fingerprint.fingerprint(of(one))


def test_each_part_of_a_graph_is_told_apart_by_a_case():
    seen = {name for expected, *_ in DIFFERENT.values() for name in expected}
    assert of(BASE)["graph"].keys() == seen | {"kind"}


def test_maps_are_told_apart_from_calls_and_from_each_other(tmp_path):
    def loss(w, x):
        return (jax.nn.softmax(x @ w)[:, None] * x).sum()

    examples = [data(1, s)[0] for s in (3, 5)]
    run = sx.Exec(loss, (None, "s, 4"))
    run(W, examples[0])
    run.map(W, examples)
    run.map(W, examples, reduce="sum")
    run.map(W, examples * 2)
    assert run.save(tmp_path) == 4
    assert len([*tmp_path.glob("*.graph")]) == 4


@pytest.mark.parametrize("name", [*_fingerprint.environment(jax.devices()[0])])
def test_another_environment_makes_graphs_anew_with_a_warning(tmp_path, monkeypatch, name):
    saved(tmp_path)
    own = {**_fingerprint.environment(jax.devices()[0])}
    monkeypatch.setattr(_fingerprint, "environment", lambda device: {**own, name: "another"})
    run = sx.load(tmp_path, attend, trusted=True)
    with told() as texts:
        assert_close(run(W, X), jax.jit(attend)(W, X))
    assert (run.stats.loads, run.stats.compiles) == (0, 1)
    (text,) = texts
    assert text.startswith(
        "shapeexec: saved graphs do not fit, and are compiled again: "
        f"{name} was {own[name] or 'empty'}, is another"
    )
    assert "Fix:   save() writes the new graphs" in text


SETTINGS = {
    "XLA_FLAGS": ("XLA_FLAGS was empty, is --xla_cpu_enable_fast_math", None),
    "jax_default_matmul_precision": (
        "jax_default_matmul_precision here was None, is 'highest'",
        lambda: jax.default_matmul_precision("highest"),
    ),
    "jax_enable_x64": ("jax_enable_x64 here was not set, is True", lambda: jax.enable_x64(True)),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_another_setting_makes_graphs_anew_with_a_warning(tmp_path, monkeypatch, name):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    saved(tmp_path)
    expected, context = SETTINGS[name]
    run = sx.load(tmp_path, attend, trusted=True)
    with told() as texts:
        if context is None:
            monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math")
            run(W, X)
        else:
            with context():
                run(W, X)
    assert (run.stats.loads, run.stats.compiles) == (0, 1)
    assert expected in texts[0]


def test_settings_of_a_thread_count():
    fn, args, specs, _ = BASE
    other = parts(fn, args, specs, config=jax.default_matmul_precision("highest"))
    assert "jax_default_matmul_precision here" in differing(of(BASE), other)["settings"]


KEPT = []  # JAX reads the value of a context that is no longer there
NAMES = (f"shapeexec_test_{number}" for number in itertools.count())


def test_a_setting_that_another_process_has_not_registered_counts_if_it_is_set():
    before = of(BASE)
    name = next(name for name in NAMES if name not in _config.config_states)
    state = _config.bool_state(name, default=False, help="", include_in_trace_context=True)
    context = jax.make_user_context(None)
    KEPT.append(context)
    assert of(BASE) == before
    fn, args, specs, _ = BASE
    for setting, value in ((state, True), (context, "set")):
        changed = parts(fn, args, specs, config=setting(value))
        assert differing(before, changed)["settings"]


CHANGED = {
    "function": ({"fn": lambda w, x: attend(w, x) * 2}, "another function"),
    "constraints": ({"constraints": "s >= 2"}, "other constraints"),
    "options": (
        {"compiling": sx.Compiling(options={"xla_cpu_enable_fast_math": True})},
        "other options of XLA",
    ),
    "poison": ({"poison": "nan"}, "other poison"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_function_or_option_makes_graphs_anew_with_a_warning(tmp_path, name):
    saved(tmp_path)
    given, expected = CHANGED[name]
    fn = given.get("fn", attend)
    with told():  # of the options that differ
        run = sx.load(tmp_path, trusted=True, **{"fn": fn, **given})
    with told() as texts:
        result = run(W, X)
        run(W, data(3, 9))
    assert_close(result, fn(W, X))
    assert (run.stats.loads, run.stats.compiles) == (0, 2)
    (text,) = texts  # one for all
    assert expected in text


def test_a_graph_that_was_never_saved_is_made_without_a_warning(tmp_path):
    saved(tmp_path)
    run = sx.load(tmp_path, attend, trusted=True)
    with told() as texts:
        run(W, data(3, 9))
        run(W, data(3, 9).astype(jnp.bfloat16))
    assert not texts
    assert (run.stats.loads, run.stats.compiles) == (0, 2)


def test_arrays_that_a_function_closes_over_may_change(tmp_path):
    def fn(w, x):
        return attend(w, x) * scale

    scale = np.float32(2) * np.ones(4, np.float32)
    saved(tmp_path, fn=fn)
    scale = np.float32(3) * np.ones(4, np.float32)
    run = sx.load(tmp_path, fn, trusted=True)
    assert_close(run(W, X), 3 * attend(W, X))
    assert (run.stats.loads, run.stats.compiles) == (1, 0)


def test_what_is_another_graph_is_no_difference():
    one = of(BASE)
    assert _saved.differs(one, of(DIFFERENT["another bucket"][2])) == []
    assert _saved.differs(one, of(DIFFERENT["another function"][2])) == ["another function"]
