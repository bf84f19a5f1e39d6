"""Variants: settings that are changed are checked as those of a new Exec."""

import numpy as np
import pytest

import shapeexec as sx
from tests.execution.support import assert_runs_as, counted, ones, refused


def total(x):
    return x.sum(axis=1)


def scaled(x, factor, *, mode="sum"):
    return x.sum() * factor if mode == "sum" else x.max() * factor


def made():
    return sx.Exec(total, ("b, s, 4",), buckets={"b": "pow2", "s": 8})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("pow2", (4, 8)),
        (6, (6, 6)),
        ([4, 5], (4, 5)),
        (lambda size: size + size % 2, (4, 6)),
        ({sx.SEQ_LEN: sx.Linear(6)}, (3, 6)),
        ({"b": [4], sx.Dim("s"): "linear:7"}, (4, 7)),
        (sx.Linear(10), (10, 10)),
    ],
    ids=["text", "step", "list", "function", "by symbol", "by dims", "strategy"],
)
@pytest.mark.parametrize("name", ["strategies", "buckets"])
def test_strategies_are_of_each_form_that_an_exec_takes(name, given, expected):
    other = made().variant(**{name: given})
    assert tuple(other.plan(ones(3, 5, 4)).buckets.values()) == expected
    assert_runs_as(total, other, ones(3, 5, 4))


@pytest.mark.parametrize(
    ("changes", "what", "fix"),
    [
        ({"strategies": {"typo": sx.Pow2()}}, "no spec has a symbol `typo`", "buckets=sx.Pow2()"),
        ({"strategies": {sx.BATCH: 8, "b": 4}}, "`b` has two strategies", "name each symbol once"),
        ({"strategies": "pow3"}, "buckets='pow3' is not a strategy", '"linear:8"'),
        ({"in_shapes": ("n, m, 4",)}, "no spec has a symbol `b`", "name a symbol"),
        ({"check": "sizs"}, "check='sizs' is not known.", '"sizes"'),
        ({"on_unsupported": "exakt"}, "on_unsupported='exakt' is not known.", '"exact"'),
        ({"poison": "nann"}, "poison='nann' is not known.", "nan"),
        ({"constraints": ("s",)}, "'s' is not a comparison", "s >= 2"),
        ({"constraints": 8}, "constraints=8 are not strings", 'constraints="s >= 2"'),
        ({"fn": 3}, "fn=3 cannot be called.", "function"),
        ({"static_argnums": 1}, "static_argnums: the function has no argument 1.", "name one of"),
        ({"static_argnames": "mode"}, "the function has no argument 'mode'", "name one of"),
        ({"donate_argnums": -1}, "donate_argnums=-1 are not positions", "donate_argnums=1"),
        ({"kwarg_shapes": ["s"]}, "kwarg_shapes=['s'] is not a Mapping.", "kwarg_shapes={"),
        ({"examples": "pow3"}, "examples='pow3' is not a strategy", ""),
        ({"bucket": "pow2"}, "variant: bucket='pow2' changes no setting.", "strategies"),
        ({"limits": 3}, "limits=3 is not a CacheLimits.", "limits=sx.CacheLimits(graphs=256)"),
        ({"buckets": 8, "strategies": 8}, "variant: buckets=8 changes no setting.", "strategies="),
    ],
    ids=str,
)
def test_what_an_exec_refuses_a_variant_refuses(changes, what, fix):
    with refused(sx.ConfigError, what, fix):
        made().variant(**changes)


def test_a_law_that_a_strategy_breaks_and_a_malformed_spec_are_told():
    with refused(sx.StrategyError, "", ""):
        made().variant(strategies=lambda size: size - 1)
    with refused(sx.SpecError, "not a dimension", ""):
        made().variant(in_shapes=("b, s!, 4",))


def test_constraints_are_texts_or_what_was_read_of_them():
    run = sx.Exec(total, ("b, s, 4",), constraints="s >= 2")
    other = run.variant(constraints=(*run.settings.constraints, "s <= 9"))
    assert list(map(str, other.settings.constraints)) == ["s >= 2", "s <= 9"]
    assert run.variant(constraints=run.settings.constraints).settings == run.settings
    with refused(sx.ConstraintError, "s <= 9", ""):
        other(ones(3, 10, 4))


def test_settings_make_the_exec_that_they_are_of():
    run = made()
    fields = {name: getattr(run.settings, name) for name in run.settings.__dataclass_fields__}
    assert run.variant(**fields).settings == run.settings == run.variant().settings


def test_static_arguments_are_those_that_are_named_now():
    run = sx.Exec(scaled, ("s", None), buckets=8, static_argnums=1, static_argnames="mode")
    assert (run.settings.static_argnums, run.settings.static_argnames) == ((1,), ("factor", "mode"))
    other = run.variant(static_argnums=())
    assert (other.settings.static_argnums, other.settings.static_argnames) == ((), ("mode",))
    other = other.variant(static_argnames=("factor", "mode"))
    assert other.settings == run.settings
    other = run.variant(static_argnames="mode")
    assert (other.settings.static_argnums, other.settings.static_argnames) == ((), ("mode",))


def test_a_function_of_any_arguments_may_take_the_place_of_another():
    run = sx.Exec(scaled, ("s", None), buckets=8, static_argnums=1)
    other = run.variant(fn=lambda *args: args[0].max() * args[1])
    assert float(other(ones(5), 2.0)) == 10.0


def test_a_variant_asks_no_strategy_for_its_laws_again():
    asked = []

    def bucket(size):
        asked.append(size)
        return size

    run = sx.Exec(total, ("b, s, 4",), buckets=bucket)
    asked.clear()
    run.variant(poison="nan", check="sizes")
    assert asked == []


def test_a_variant_has_graphs_of_its_own():
    run, x = made(), ones(3, 5, 4)
    run(x)
    with counted() as count:
        np.testing.assert_array_equal(run.variant(strategies="exact")(x), total(x))
    assert (count.compilations, run.cache_size) == (1, 1)
