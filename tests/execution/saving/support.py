"""What tests of saving share: a function, a directory with its graph, and the parts of a graph."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

import shapeexec as sx
from shapeexec.execution._function import runner_of
from shapeexec.execution._planner import outlined
from shapeexec.execution.saving._fingerprint import parts_of

SPECS = (None, "b, s, 4")
W = np.linspace(-1, 1, 4, dtype=np.float32)


def attend(w, x):  # x: f32[b, s, 4]
    """Weights along a ragged axis, which masks have to protect."""
    return (jax.nn.softmax(x @ w, axis=1)[..., None] * x).sum(axis=1)


def data(b: int = 3, s: int = 5) -> np.ndarray:
    """f32[b, s, 4]."""
    return np.random.default_rng(s).normal(size=(b, s, 4)).astype(np.float32)


def saved(directory: Path, *sizes: tuple[int, int], fn=attend, specs=SPECS, **options) -> sx.Exec:
    """Save the graphs of some sizes; the Exec that made them."""
    run = sx.Exec(fn, specs, **options)
    for size in sizes or ((3, 5),):
        run(W, data(*size))
    assert run.save(directory) == run.cache_size
    return run


def parts(fn, args, specs, *, config=None, **options):
    """The parts of the graph of a call."""
    run = sx.Exec(fn, specs, check="off", **options)
    runner = runner_of(run)
    with config or contextlib.nullcontext():
        call = runner.bind((args, {}))
        outline = outlined(runner.planner.draft(call), call)
    settings = runner.settings
    return parts_of(outline, settings.compiling.options, constraints=settings.constraints)


@contextlib.contextmanager
def told() -> Iterator[list[str]]:
    """The strings of the warnings within the block."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    texts += [str(warning.message) for warning in caught]
