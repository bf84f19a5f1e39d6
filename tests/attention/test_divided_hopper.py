"""Quotients by numbers known later: of arrays, and by threads, whose code runs in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

if jax.__version_info__ < (0, 11):
    pytest.skip("jax < 0.11 cannot lower these kernels", allow_module_level=True)

from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends.mosaic_gpu._divided import (
    QUOTIENTS,
    divided,
    divided_by_threads,
)
from shapeexec.attention.backends.mosaic_gpu._products import Products
from tests.attention import lockstep

DIVISORS = [1, 2, 3, 5, 7, 127, 128, 129, 300, 2047, 2048, 4095, 65_537, 2**20 + 1, 2**31 - 1]


@pytest.mark.parametrize("how", ["arrays", "jit", "threads"])
def test_quotients_are_exact_near_each_multiple(how):
    random = np.random.default_rng(0)
    pairs = []
    for by in DIVISORS:
        most = min(QUOTIENTS * by, 2**31) - 1
        multiples = np.append(random.integers(0, most + 1, 40), most) // by * by
        near = (multiples[:, None] + [-1, 0, 1, by - 1, by]).reshape(-1)
        pairs += [(number, by) for number in np.unique(near[(near >= 0) & (near <= most)])]
    numbers, divisors = np.array(pairs, np.int32).T
    ways = {"arrays": divided, "jit": jax.jit(divided), "threads": by_threads}
    given = (numbers, divisors) if how == "threads" else map(jnp.asarray, (numbers, divisors))
    quotients, rests = ways[how](*given)
    np.testing.assert_array_equal(quotients, numbers // divisors)
    np.testing.assert_array_equal(rests, numbers % divisors)


def by_threads(numbers, divisors):
    """Quotients and rests, each by a program of its own."""

    def kernel(number, by, *results):
        program = lax.axis_index("program")
        made = divided_by_threads(number[program], by[program])
        for ref, value in zip(results, made, strict=True):
            Products().put(ref.at[pl.ds(program, 1)], [value])

    result = jax.ShapeDtypeStruct(numbers.shape, jnp.int32)
    launch = plgpu.kernel(
        kernel,
        out_type=[result, result],
        grid=(len(numbers),),
        grid_names=("program",),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
    )
    module = lockstep.kernel_of(launch, numbers, divisors)
    return lockstep.run(module, numbers, divisors, unwritten=-1)
