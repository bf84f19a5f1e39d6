"""How warpgroups store rows from their registers, lowered for CUDA and then run in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

if jax.__version_info__ < (0, 11):
    pytest.skip("jax < 0.11 cannot lower these kernels", allow_module_level=True)

from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends.mosaic_gpu import _totals
from shapeexec.attention.backends.mosaic_gpu._products import Products, load
from shapeexec.attention.backends.mosaic_gpu._scratch import WIDE
from shapeexec.attention.backends.mosaic_gpu._tiles import ROWS, Packing
from tests.attention import lockstep

PACKINGS = [
    Packing(1, 4, 1),
    Packing(1, 1, 1),
    Packing(4, 4, 8),
    Packing(3, 3, 3),
    Packing(16, 4, 16),
    Packing(12, 8, 16),
    Packing(16, 8, 16),
]


@pytest.mark.parametrize("columns", [(64, 16), (64, 64), (128, 80), (128, 128)])
@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_rows_that_hold_a_query_are_stored_and_no_others(packing, columns):
    held, stored = columns
    groups = -(-packing.rows // ROWS)
    rows = groups * min(packing.rows, ROWS)
    values = np.random.default_rng(0).normal(size=(groups * ROWS, held)).astype(np.float32)
    numbers = [values[:, 1] * 2, values[:, 2] * 3]
    module = store(packing, values, *numbers, rows=rows, columns=stored)
    got = lockstep.run(module, values, *numbers, unwritten=np.nan)
    number = np.arange(rows)
    holds_query = (number < packing.rows) & (number % packing.pitch < packing.queries)
    assert holds_query.sum() == packing.heads * packing.queries
    for result, given in zip(got, (values[:, :stored], *numbers), strict=True):
        shown = holds_query.reshape(-1, *[1] * (given.ndim - 1))
        np.testing.assert_array_equal(result[1], np.where(shown, given[:rows], np.nan))
        assert np.isnan(result[0]).all()


@pytest.mark.parametrize("columns", [64, 128])
def test_parts_that_are_stored_as_threads_hold_them_come_in_order(columns):
    # Two pieces of two heads, of which each warpgroup stores a part at a time.
    pieces, heads, parts = 2, 2, columns // ROWS
    given = np.random.default_rng(0).normal(size=(1, pieces * ROWS, heads, columns))
    given = given.astype(np.float32)
    of_parts = given.reshape(pieces, ROWS, heads, parts, ROWS).transpose(0, 2, 3, 1, 4)
    held = store_as_held(of_parts.reshape(-1, ROWS), columns)
    assert (np.sort(held, axis=None) == np.sort(given, axis=None)).all()
    # The rows of a piece in device memory, which the parts of a head take one after the other.
    total = held.reshape(pieces, heads, ROWS, columns).swapaxes(1, 2).reshape(given.shape)
    np.testing.assert_array_equal(_totals._in_given_order(total), given)


@pytest.mark.parametrize("columns", [64, 128, 192])
@pytest.mark.parametrize("warpgroups", [1, 2])
def test_a_tile_is_stored_as_products_read_it(columns, warpgroups):
    rows, places = warpgroups * ROWS, 3
    given = np.random.default_rng(0).integers(1, 2**15, (rows, columns)).astype(np.uint16)

    def kernel(ref, _, tiles):
        mine = pl.ds(lax.axis_index("warpgroup") * ROWS, ROWS)
        value = plgpu.load(ref.at[mine], layout=plgpu.Layout.WGMMA, optimized=False)
        products = Products()
        products.store(products.part(tiles, 1, mine), value)

    tiles = plgpu.SMEM((places, rows, columns), jnp.bfloat16, transforms=WIDE.to_pallas())
    unused = [jax.ShapeDtypeStruct((1,), jnp.int32)]
    launch = launched(kernel, unused, warpgroups=warpgroups, scratch=[tiles])
    module = lockstep.kernel_of(launch, jnp.zeros(given.shape, jnp.bfloat16))
    (left,) = lockstep.left_in_shared_memory(module, given, before=0)
    stored = left[: places * given.nbytes].view(np.uint16).reshape(places, -1)
    row, column = np.indices(given.shape)
    # Groups of 8 columns lie in rows of 64, in the order of their number by xor with the row's.
    place = (row // 8 * (columns // 64) + column // 64) * 512 + row % 8 * 64
    place += (column // 8 % 8 ^ row % 8) * 8 + column % 8
    np.testing.assert_array_equal(stored[1][place], given)
    assert (stored[[0, 2]] == 0).all()


def store_as_held(parts, columns):
    """Parts f32[parts * 64, 64] as warpgroups store them, f32[rows, columns]."""
    rows = ROWS * ROWS // columns

    def kernel(ref, stored):
        warpgroup = lax.axis_index("warpgroup")
        part = load(ref.at[pl.ds(warpgroup * ROWS, ROWS)], of="pairs", where="device")
        _totals._store_as_held(stored.at[pl.ds(warpgroup * rows, rows)], part)

    result = jax.ShapeDtypeStruct((parts.size // columns, columns), jnp.float32)
    launch = launched(kernel, [result], warpgroups=len(parts) // ROWS)
    (held,) = lockstep.run(lockstep.kernel_of(launch, parts), parts, unwritten=np.nan)
    return held


def store(packing, *arrays, rows, columns):
    """The kernel that stores arrays in the second of two places."""

    def kernel(*refs):
        first = lax.axis_index("warpgroup") * ROWS
        given, places = refs[: len(arrays)], refs[len(arrays) :]
        kinds = ["pairs", *["rows"] * (len(arrays) - 1)]
        loaded = [
            load(ref.at[pl.ds(first, ROWS)], of=kind, where="device")
            for ref, kind in zip(given, kinds, strict=True)
        ]
        Products().store_rows(packing.holds_query, first, [ref.at[1] for ref in places], loaded)

    shapes = [(2, rows, *[columns] * (x.ndim - 1)) for x in arrays]
    results = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    launch = launched(kernel, results, warpgroups=len(arrays[0]) // ROWS)
    return lockstep.kernel_of(launch, *arrays)


def launched(kernel, results, *, warpgroups, scratch=()):
    return plgpu.kernel(
        kernel,
        out_type=results,
        scratch_types=list(scratch),
        num_threads=warpgroups,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
    )
