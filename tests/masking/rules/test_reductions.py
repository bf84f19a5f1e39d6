"""Reductions along padding read rows: their operand is laid out so on one GPU, and nowhere else."""

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shapeexec._compat import row_major
from shapeexec.bucketing import Pow2
from shapeexec.execution import Exec

CONSTRAINT = "LayoutConstraint"


def lowered(fn, *args, platform):
    return jax.jit(fn).trace(*args).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize(("platform", "count"), [("cuda", 1), ("rocm", 1), ("cpu", 0), ("tpu", 0)])
def test_an_operand_is_laid_out_in_rows_on_a_gpu_alone(platform, count):
    text = lowered(row_major, np.ones((2, 3, 4), np.float32), platform=platform)
    assert text.count(CONSTRAINT) == count


def test_an_operand_on_several_devices_is_left_to_xla():
    mesh = AbstractMesh((2,), ("x",))
    sharded = jax.ShapeDtypeStruct((2, 3, 4), np.float32, sharding=NamedSharding(mesh, P("x")))
    text = lowered(lambda x: row_major(x).sum(1), sharded, platform="cuda")
    assert "num_partitions = 2" in text
    assert CONSTRAINT not in text


def test_a_mapped_operand_has_its_new_axis_in_front():
    x = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)

    def fn(x):
        return jax.vmap(lambda x: row_major(x).sum(0), in_axes=1)(x)

    np.testing.assert_array_equal(jax.jit(fn)(x), x.sum(0))
    text = lowered(fn, x, platform="cuda")
    assert text.count(CONSTRAINT) == 1
    assert "dense<[2, 1, 0]>" in text[text.index(CONSTRAINT) :].split("\n")[0]


@pytest.mark.parametrize(
    ("fn", "count"),
    [
        (lambda x: x.mean(1), 1),
        (lambda x: (x.max(0), x.sum((0, 1))), 2),
        (lambda x: x.sum(2), 0),  # of an axis without padding
        (lambda x: x.sum(), 0),  # of rows
    ],
)
def test_a_graph_lays_out_what_is_reduced_along_padding(fn, count):
    run = Exec(fn, in_shapes=("b, s, 4",), buckets=Pow2())
    x = np.ones((3, 5, 4), np.float32)
    plan = run.plan(x)
    body = plan.recipe.body
    structs = [jax.ShapeDtypeStruct(shape, np.float32) for shape in plan.in_capacities]
    text = lowered(body, plan.size_vector, (), {}, *structs, platform="cuda")
    assert text.count(CONSTRAINT) == count
