"""Advice on maps of short examples: rows of several, told apart by document ids."""

import jax
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.execution.analysis import _of_program
from shapeexec.execution.analysis._facts import Facts
from tests.execution.support import ones
from tests.execution.test_advise import SPEED, attend
from tests.tolerance import assert_close

LENGTHS = np.random.default_rng(0).integers(5, 20, size=8).tolist()
ROW = 64


def kernel(x):  # x: f32[s, 2, 4]
    return sx.dot_product_attention(x[None], x[None], x[None])[0]


def written(x):
    return attend(x[None], x[None], x[None])[0]


def in_a_loop(x):
    return jax.lax.scan(lambda y, _: (kernel(y), None), x, None, length=2)[0]


def pointwise(x):
    return x * 2


def several(x, ids):  # x: f32[b, s, 2, 4], ids: i32[b, s]
    return sx.dot_product_attention(x, x, x, mask=sx.Documents(ids))


def examples():
    return [ones(n, 2, 4) / 1000 for n in LENGTHS]


def mapped(fn, buckets=ROW):
    run = sx.Exec(fn, ("s, 2, 4",), buckets=buckets)
    return run, run.map(examples())


def told(run, platform="gpu"):
    facts = Facts(
        settings=run.settings,
        limits=run._limits,
        analysis=run.analysis(),
        rows=run.graphs.rows,
        model=None,
        speed=SPEED,
        platform=platform,
    )
    return [*_of_program.packed(facts)]


def rows_of(lengths):
    """The numbers of examples that fit into one row each, in order."""
    rows, held = [[]], 0
    for number, n in enumerate(lengths):
        if held + n > ROW:
            rows, held = [*rows, []], 0
        rows[-1].append(number)
        held += n
    return rows


def test_rows_of_several_examples_spare_the_padding_that_was_said_and_are_exact():
    run, results = mapped(kernel)
    (line,) = told(run)
    assert line.change.startswith("sx.dot_product_attention(q, k, v, mask=sx.Documents(ids))")
    assert "85% of what maps run is padding" in line.observation
    other = sx.Exec(several, ("b, s, 2, 4", "b, s"), buckets={"s": ROW})
    for numbers in rows_of(LENGTHS):
        x = np.concatenate([examples()[number] for number in numbers])
        ids = np.repeat(np.arange(len(numbers), dtype=np.int32), [LENGTHS[n] for n in numbers])
        (out,) = other(x[None], ids[None])
        bounds = np.cumsum([LENGTHS[n] for n in numbers])[:-1]
        for number, own in zip(numbers, np.split(np.asarray(out), bounds), strict=True):
            assert_close(own, np.asarray(results[number]))
    spared = run.stats.padded_bytes - other.stats.padded_bytes
    assert line.saves == {"padded_bytes": line.bytes}
    assert line.bytes / 2 <= spared <= 2 * line.bytes


@pytest.mark.parametrize(
    ("fn", "buckets", "platform", "is_told"),
    [
        (kernel, ROW, "gpu", True),
        (written, ROW, "gpu", True),
        (in_a_loop, ROW, "gpu", True),
        (pointwise, ROW, "gpu", False),  # in general nothing tells examples of one row apart
        (kernel, 4, "gpu", False),  # half would not be spared
        (kernel, ROW, "cpu", False),  # there a row is computed whole
    ],
    ids=("kernel", "written out", "in a loop", "no attention", "little padding", "cpu"),
)
def test_packing_is_advised_where_attention_could_tell_examples_apart(
    fn, buckets, platform, is_told
):
    run, _ = mapped(fn, buckets)
    assert bool(told(run, platform)) == is_told


def test_calls_that_are_no_maps_are_not_packed():
    run = sx.Exec(kernel, ("s, 2, 4",), buckets=ROW)
    run(ones(5, 2, 4) / 1000)
    assert told(run) == []
    assert run.graphs[0].waste > 0.5
