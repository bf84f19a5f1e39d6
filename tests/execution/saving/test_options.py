"""Options and statistics come from the directory, as data."""

import dataclasses
import json
from typing import NamedTuple

import pytest

import shapeexec as sx
from tests.execution.saving.support import SPECS, attend, saved, told

EVERY = {
    "in_shapes": ({"x": "b, s, 4"}, None, ("b, 2*s", None)),
    "buckets": {
        "b": sx.Pow2(minimum=2, maximum=64, beyond="exact"),
        "s": sx.Ladder([3, 9], beyond="linear:30"),
    },
    "kwarg_shapes": {"mask": "b, s"},
    "constraints": ("s >= 2", "b <= 8"),
    "on_unsupported": "exact",
    "static_argnums": (1,),
    "donate_argnums": (0,),
    "examples": sx.Geometric(1.5),
    "limits": sx.CacheLimits(graphs=7, device_bytes=10**9, pin=[{"b": 2}]),
    "check": "sizes",
    "missing": "larger",
    "compiling": sx.Compiling(first="quick", options={"xla_cpu_enable_fast_math": True}),
    "on_memory": "exact",
    "returns": "host",
    "poison": "nan",
}


def of_many(x, kind, pair, mask=None):
    return x


def test_options_that_are_data_come_from_the_directory(tmp_path):
    run = sx.Exec(of_many, **EVERY)
    run.save(tmp_path)
    again = sx.load(tmp_path, of_many)
    for field in dataclasses.fields(run.settings):
        assert getattr(again.settings, field.name) == getattr(run.settings, field.name), field.name
    assert again.variant(fn=of_many)._limits == run._limits


@pytest.mark.parametrize(
    "options",
    [
        {"buckets": sx.Aligned(8, sx.Geometric(1.5), maximum=512)},
        {"buckets": {"b": sx.MemoryOptimal(0.2), "s": sx.Hybrid(64, 32)}},
        {"buckets": sx.HardwareAware("bfloat16", device="gpu", minimum=8)},
        {"masking": False, "padding": {"x": "edge", 0: -1.5}},
    ],
    ids=str,
)
def test_options_of_one_kind_come_from_the_directory(tmp_path, options):
    run = sx.Exec(attend, SPECS, **options)
    run.save(tmp_path)
    again = sx.load(tmp_path, attend).settings
    assert (again.strategies, again.padding) == (run.settings.strategies, run.settings.padding)


class Pair(NamedTuple):
    one: str
    other: str


@pytest.mark.parametrize(
    ("option", "value"),
    [("in_shapes", (None, Pair("b, s, 4", "b"))), ("padding", float("nan"))],
    ids=str,
)
def test_data_that_would_be_read_as_another_value_has_to_be_given(tmp_path, option, value):
    options = {"in_shapes": SPECS, "masking": False, option: value}
    sx.Exec(attend, **options).save(tmp_path)
    with pytest.raises(sx.ConfigError, match=f"load: {option} could not be saved as data"):
        sx.load(tmp_path, attend)


def test_an_option_that_is_no_data_has_to_be_given(tmp_path):
    def even(size):
        return size + size % 2

    sx.Exec(attend, SPECS, buckets={"s": even, "b": 4}).save(tmp_path)
    with pytest.raises(sx.ConfigError, match="load: buckets could not be saved as data") as caught:
        sx.load(tmp_path, attend)
    assert caught.value.option == "buckets"
    assert "sx.load(directory, fn, buckets=...)" in str(caught.value)
    with told() as texts:
        run = sx.load(tmp_path, attend, buckets={"s": even, "b": 4})
    assert not texts
    assert run.settings.strategy("s").bucket(7) == 8


def test_options_that_differ_are_told(tmp_path):
    sx.Exec(attend, SPECS, buckets="pow2").save(tmp_path)
    with told() as texts:
        run = sx.load(tmp_path, attend, SPECS, buckets=sx.Linear(8))
    (text,) = texts
    assert text.startswith(
        "shapeexec: options differ from the saved ones: buckets was sx.Pow2(), is sx.Linear(8)"
    )
    assert "Fix:   leave them out to use the saved ones" in text
    assert run.settings.strategies == sx.Linear(8)


def test_statistics_are_kept_in_the_manifest(tmp_path):
    run = saved(tmp_path, (3, 5), (3, 5))
    content = json.loads((tmp_path / "manifest.json").read_text())["content"]
    assert content["statistics"]["hits"] == 1
    assert content["statistics"]["waste"] == run.stats.waste
    assert [graph["buckets"] for graph in content["graphs"]] == [{"b": 4, "s": 8}]
