"""Each example runs, gives the unpadded results, and compiles as few graphs as it says."""

import functools
import importlib.util
import pathlib
from typing import Any

import pytest

from tests.marks import marked_slow
from tests.tolerance import FEW, tolerance

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
GRAPHS = {
    "audio_strided": 1,
    "cnn": 5,
    "embedding": 2,
    "ragged_batch": 3,
    "resnet_mixed_sizes": 1,
    "state_space": 1,
    "train_bfloat16": 1,
    "train_last_batch": 1,
    "train_module": 2,
    "transformer": 3,
    "video_frames": 4,
    "watch_the_cache": 4,
}
SLOW = {"ragged_batch", "resnet_mixed_sizes", "state_space", "train_module", "transformer"}
MOST_LINES = 60


@functools.cache
def run(name: str) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main()


@pytest.mark.parametrize("name", marked_slow(GRAPHS, SLOW))
def test_an_example_is_exact_and_compiles_few_graphs(name: str) -> None:
    figures = run(name)
    assert figures["graphs"] == GRAPHS[name]
    assert figures["graphs"] < figures["sizes"]
    assert figures["error"] < tolerance(figures.get("dtype", "float32"), loose=FEW)


def test_zero_padding_without_masks_is_wrong_where_the_examples_say_so() -> None:
    assert run("train_last_batch")["naive_error"] > 0.1
    embedding = run("embedding")
    assert embedding["leak"] == 0
    assert embedding["naive_leak"] > 0.1


def test_no_call_of_a_warmed_example_misses() -> None:
    assert run("watch_the_cache")["misses"] == 0


@pytest.mark.parametrize("name", GRAPHS)
def test_an_example_is_short(name: str) -> None:
    lines = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MOST_LINES
