"""How the threads of a warpgroup add up the rows of an accumulator, run in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

if jax.__version_info__ < (0, 11):
    pytest.skip("jax < 0.11 cannot lower these kernels", allow_module_level=True)

from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends.mosaic_gpu._products import Products, along_rows, load
from shapeexec.attention.backends.mosaic_gpu._tiles import ROWS
from tests.attention import lockstep

COLUMNS = 16


@pytest.mark.parametrize("columns", [16, 64, 128])
def test_shares_of_threads_are_joined_to_the_sums_of_rows(columns):
    random = np.random.default_rng(0)
    first, second = random.integers(-999, 999, (2, 2 * ROWS, columns)).astype(np.float32)
    factor = random.integers(1, 9, 2 * ROWS).astype(np.float32)
    sums = joined(first, second, factor)
    # Each of the four threads that hold a row stores some columns.
    wanted = first.sum(1) * factor + second.sum(1)
    np.testing.assert_array_equal(sums, np.broadcast_to(wanted[:, None], sums.shape))


def joined(*arrays):
    """The sums of one array's rows times numbers per row, plus those of another, f32[rows, 16]."""

    def kernel(*refs):
        rows = pl.ds(lax.axis_index("warpgroup") * ROWS, ROWS)
        kinds = zip(refs, ["pairs", "pairs", "rows"], strict=False)
        first, second, factor = (load(ref.at[rows], of=kind, where="device") for ref, kind in kinds)
        products = Products()
        shares = products.shares_of_sums(first) * factor + products.shares_of_sums(second)
        sums = along_rows(products.joined(shares), (ROWS, COLUMNS))
        products.store_rows(lambda row: row < 2 * ROWS, rows.start, refs[3:], [sums])

    launch = plgpu.kernel(
        kernel,
        out_type=[jax.ShapeDtypeStruct((2 * ROWS, COLUMNS), jnp.float32)],
        num_threads=2,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
    )
    (sums,) = lockstep.run(lockstep.kernel_of(launch, *arrays), *arrays)
    return sums
