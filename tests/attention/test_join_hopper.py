"""The Hopper kernel that joins parts of softmaxes, lowered for CUDA and then run in NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

if jax.__version_info__ < (0, 11):
    pytest.skip("jax < 0.11 cannot lower these kernels", allow_module_level=True)

from shapeexec.attention.backends import _device
from shapeexec.attention.backends.mosaic_gpu._join import joined, joined_output
from shapeexec.attention.backends.mosaic_gpu._packing import unpacked
from shapeexec.attention.backends.mosaic_gpu._shares import share
from shapeexec.attention.backends.mosaic_gpu._tiles import Packing
from shapeexec.attention.backends.mosaic_gpu._weights import BiasedWeights, Weights
from tests.attention import lockstep
from tests.tolerance import epsilon

FOUR = Packing(1, 4, 1)
WEIGHTS = Weights(1.0), BiasedWeights()


@dataclasses.dataclass(frozen=True)
class Case:
    """Parts of softmaxes.

    Attributes:
        counts: The tiles of the lists of each example, or of each list, which then differ by head.
        shift: A shift of the scores.
    """

    counts: tuple[int, ...]
    examples: int | None = None
    packing: Packing = FOUR
    heads: int = 8
    columns: int = 128
    programs: int = 5
    longest: int = 16
    weights: Weights | BiasedWeights = WEIGHTS[0]
    dtype: str = "bfloat16"
    shift: float = 0.0


CASES = {
    "one query": Case((9, 0, 2)),
    "an empty list at the end": Case((5, 0), programs=2),
    "nothing at all": Case((0, 0)),
    "more parts in a list than there are": Case((0,), heads=4, programs=2),
    "four queries": Case((3, 7), packing=Packing(4, 4, 8)),
    "rows that fill no warpgroup": Case((7, 3, 1), packing=Packing(3, 1, 3), heads=2),
    "a warp with few columns": Case((9, 4), columns=40),
    "columns beyond two warps": Case((9, 4), packing=Packing(2, 2, 2), heads=4, columns=72),
    "more parts than are read at a time": Case((60, 3), heads=4, programs=40, longest=64),
    "parts of many lists": Case((30, 3), programs=20, longest=64),
    "a bias": Case((9, 0, 2), weights=WEIGHTS[1]),
    "statistics far below 0": Case((9, 4, 2), programs=17, shift=-500.0),
    "largest scores far below 0": Case((9, 4, 2), programs=17, shift=-500.0, weights=WEIGHTS[1]),
    "lists of heads that differ": Case((17, 25), 1, Packing(1, 1, 1), heads=2, longest=32),
    "of heads and examples": Case((3, 0, 9, 1, 7, 2), 2, Packing(2, 1, 2), heads=3),
    "fp16": Case((9, 1), dtype="float16"),
}


@pytest.mark.parametrize("garbage", [np.nan, 7.0])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_kernel_joins_what_operations_join(case, garbage):
    shares, parts = shares_of(case)
    results = results_of(case, shares, garbage=garbage)
    got = run(case, shares, results, parts=parts)
    want, _ = joined(
        case.weights, shares, list(map(jnp.asarray, results)), parts=parts, rows=case.packing.rows
    )
    want = unpacked(case.packing, want[..., : case.columns], batch=examples_of(case))
    limit = epsilon(case.dtype) * max(1, np.abs(want).max())
    np.testing.assert_allclose(got, np.asarray(want).transpose(0, 2, 1, 3), atol=limit)


def test_the_kernel_joins_where_python_s_numbers_have_64_bits():
    with jax.enable_x64(True):
        test_the_kernel_joins_what_operations_join(CASES["of heads and examples"], np.nan)


@pytest.mark.parametrize("place", ["output", "statistics"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_nan_in_one_part_is_nan_in_its_row_alone(weights, place):
    case = Case((4,), packing=Packing(1, 2, 1), heads=2, programs=2, weights=weights)
    shares, parts = shares_of(case)
    out, *statistics = results_of(case, shares, garbage=0.0)
    for array in [out] if place == "output" else statistics:
        array[int(shares.parts_of(np.int32(0))[0]) + 1, 1] = np.nan
    got = run(case, shares, [out, *statistics], parts=parts)
    np.testing.assert_array_equal(np.isnan(got).all(-1), [[[False, True]]])
    assert not np.isnan(got[0, 0, 0]).any()


def examples_of(case):
    return case.examples or len(case.counts)


def shares_of(case):
    counts = jnp.asarray(case.counts, jnp.int32)  # as if they were traced
    alike = examples_of(case) * case.heads // case.packing.heads // len(case.counts)
    return share(counts, longest=case.longest, programs=case.programs, alike=alike)


def results_of(case, shares, *, garbage):
    """What the kernel of few queries stores, and garbage where no part is."""
    random = np.random.default_rng(0)
    rows, columns = case.packing.rows, -(-case.columns // 32) * 32
    given = [(rows, columns), *[(64,)] * len(case.weights.empty_statistics)]
    results = [np.full((shares.places, *x), garbage, np.float32) for x in given]
    for first, number in zip(*shares.parts_of(shares.all_lists), strict=True):
        for array in results:
            part = array[int(first) :][: int(number)]
            part[:] = abs(random.normal(size=part.shape)) * 3
    results[1] += np.float32(case.shift)
    # Rows that attend to nothing in a part, of values that may be NaN.
    results[0][::3, 0] = np.nan
    for array, empty in zip(results[1:], case.weights.empty_statistics, strict=True):
        array[::3, 0] = empty
    return results


def run(case, shares, results, *, parts):
    shape = examples_of(case), case.packing.queries, case.heads, case.columns
    made = jax.ShapeDtypeStruct(shape, case.dtype)

    def join(sums, *results):
        given = dataclasses.replace(shares, sums=sums)
        return joined_output(case.weights, case.packing, given, results, made=made, parts=parts)

    sums = np.asarray(shares.sums)
    with _device.assumed(_device.HOPPER):
        module = lockstep.kernel_of(join, sums, *results)
    (out,) = lockstep.run(module, sums, *results)
    return np.asarray(out.view(jnp.dtype(case.dtype)), np.float32)
