"""How a warpgroup clears parts of shared memory, lowered for CUDA and then run in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

if jax.__version_info__ < (0, 11):
    pytest.skip("jax < 0.11 cannot lower these kernels", allow_module_level=True)

from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends.mosaic_gpu import _threads
from shapeexec.attention.backends.mosaic_gpu._products import Products
from shapeexec.attention.backends.mosaic_gpu._scratch import WIDE
from tests.attention import lockstep

BEFORE = 0x5A
WARPGROUPS = 3
TILES = [  # the shape of the scratch, the place that the tile is in, and its rows
    ((1, 64, 64), 0, slice(0, 64)),
    ((3, 128, 128), 1, slice(0, 128)),
    ((2, 64, 192), 1, slice(0, 64)),
    ((2, 128, 64), 0, slice(0, 128)),
    ((2, 128, 64), 1, slice(64, 128)),
    ((2, 128, 192), 1, slice(0, 64)),
    ((1, 128, 128), 0, slice(64, 128)),
]


def cleared(shape, place, rows, dtype):
    """The kernel in which one warpgroup clears a tile, from a row on; it is given both numbers."""

    def kernel(caller, first, _, tiles):
        @pl.when(lax.axis_index("warpgroup") == caller[0])
        def _():
            products, size = Products(), rows.stop - rows.start
            part = None if size == shape[1] else pl.ds(rows.start, size)
            tile = products.part(tiles, place, part)
            # Else JAX would move the index, by traces that take a tenth of the time to lower.
            assert isinstance(tile.transforms[0], type(tiles.ref.at[0].transforms[0]))
            products.clear(tile, first[0])

    launch = plgpu.kernel(
        kernel,
        out_type=[jax.ShapeDtypeStruct((1,), jnp.int32)],
        scratch_types=[plgpu.SMEM(shape, dtype, transforms=WIDE.to_pallas())],
        num_threads=WARPGROUPS,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
    )
    return lockstep.kernel_of(launch, *[np.zeros(1, np.int32)] * 2)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize(("shape", "place", "rows"), TILES)
def test_any_warpgroup_clears_all_rows_from_one_on_and_nothing_else(shape, place, rows, dtype):
    module = cleared(shape, place, rows, dtype)
    count, (places, height, columns) = rows.stop - rows.start, shape
    # Wherever in 64 columns of a row an element is: all of them are cleared, or none is.
    row = np.arange(height).reshape(-1, 1, 8, 1) + np.zeros((columns // 64, 1, 128), int)
    for first in (-5, 0, 1, 7, 8, 63, count, count + 9):
        want = np.full((places, *row.shape), BEFORE, np.uint8)
        want[place][(row >= rows.start + max(first, 0)) & (row < rows.stop)] = 0
        for caller in range(WARPGROUPS):
            given = (np.full(1, x, np.int32) for x in (caller, first))
            (left,) = lockstep.left_in_shared_memory(module, *given, before=BEFORE)
            np.testing.assert_array_equal(left[: want.size], want.ravel())
            assert (left[want.size :] == BEFORE).all()


@pytest.mark.parametrize("meets", [True, False])
def test_threads_that_meet_see_what_each_of_them_has_stored(meets):
    def kernel(given, seen, shared):
        products = Products()

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.RefType()))
        def store_own(_, given, shared):
            thread = _threads.thread()
            _threads.store(shared, _threads.load(given, thread), thread)

        store_own(given, shared)
        if meets:
            products.meet()
        products.put(seen, products.numbers(shared, 3))

    launch = plgpu.kernel(
        kernel,
        out_type=[jax.ShapeDtypeStruct((3,), jnp.int32)],
        scratch_types=[plgpu.SMEM((_threads.WARPGROUP,), jnp.int32)],
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
    )
    given = np.arange(_threads.WARPGROUP, dtype=np.int32) * 5
    module = lockstep.kernel_of(launch, given)
    if not meets:
        with pytest.raises(AssertionError, match="no barrier lies between"):
            lockstep.run(module, given, unwritten=-1)
        return
    (seen,) = lockstep.run(module, given, unwritten=-1)
    np.testing.assert_array_equal(seen, given[:3])
