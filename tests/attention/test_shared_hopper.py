"""What one thread of a warpgroup does for all, lowered for CUDA and then run in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

if jax.__version_info__ < (0, 11):
    pytest.skip("jax < 0.11 cannot lower these kernels", allow_module_level=True)

from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import llvm

from shapeexec.attention.backends.mosaic_gpu import _threads
from shapeexec.attention.backends.mosaic_gpu._products import Products
from shapeexec.attention.backends.mosaic_gpu._schedule import take
from tests.attention import lockstep

BEFORE = 0x5A
NUMBER = plgpu.Layout.WG_SPLAT


def kernel_of(body, *inputs, made, scratch=(), programs=1, warpgroups=1):
    """The kernel body(*inputs, made, *scratch), lowered."""
    launch = plgpu.kernel(
        body,
        out_type=[jax.ShapeDtypeStruct(made, jnp.int32)],
        scratch_types=[plgpu.SMEM(shape, jnp.int32) for shape in scratch],
        grid=(programs,),
        grid_names=("program",),
        num_threads=warpgroups,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
    )
    return lockstep.kernel_of(launch, *inputs)


@pytest.mark.parametrize(
    ("shape", "place", "count"), [((2, 8), 0, 8), ((2, 8), 1, 8), ((3, 8), 1, 5), ((4,), 2, 1)]
)
def test_numbers_are_put_where_they_belong_and_nowhere_else(shape, place, count):
    def put(numbers, _, words):
        to = words.at[place] if len(shape) == 2 else words.at[pl.ds(place, 1)]
        Products().put(to, [numbers[i] for i in range(count)])

    numbers = np.arange(3, 3 + count, dtype=np.int32) * -7
    module = kernel_of(put, numbers, made=(1,), scratch=[shape])
    (left,) = lockstep.left_in_shared_memory(module, numbers, before=BEFORE)
    want = np.full(shape, int.from_bytes([BEFORE] * 4), np.int32)
    want.reshape(-1, *shape[1:])[place : place + 1].flat[:count] = numbers
    np.testing.assert_array_equal(left[: want.nbytes].view(np.int32).reshape(shape), want)
    assert (left[want.nbytes :] == BEFORE).all()


def test_a_count_goes_up_by_one_for_all_threads_of_a_warpgroup():
    def count_twice(counter, made, word):
        counts = take(counter, word), take(counter, word)

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), *[NUMBER] * 3))
        def show(_, made, *numbers):
            program, *counts = (_threads.Number(x.registers.item()) for x in numbers)
            with _threads.when(_threads.thread().equals(77)):
                for i, count in enumerate(counts):
                    _threads.store(made, count, program, i)

        show(made, lax.axis_index("program"), *counts)

    counter = np.zeros(2, np.int32)
    module = kernel_of(count_twice, counter, made=(3, 2), scratch=[(1,)], programs=3)
    (counts,) = lockstep.run(module, counter)
    np.testing.assert_array_equal(counts, [[0, 3], [1, 4], [2, 5]])


def test_one_thread_of_each_warpgroup_does_what_one_has_to_do():
    def count(counters, made):
        mine = pl.ds(lax.axis_index("warpgroup"), 1)

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.RefType()))
        def count_once(_, counter, made):
            one = mgpu.utils.c(1, ir.IntegerType.get_signless(32))
            address, relaxed = mgpu.utils.memref_ptr(counter), llvm.AtomicOrdering.monotonic
            with _threads.one_thread():
                before = llvm.atomicrmw(llvm.AtomicBinOp.add, address, one, relaxed)
                _threads.store(made, _threads.Number(before), 0)

        count_once(counters.at[mine], made.at[mine])

    counters = np.zeros(3, np.int32)
    module = kernel_of(count, counters, made=(3,), warpgroups=3)
    (before,) = lockstep.run(module, counters)
    np.testing.assert_array_equal(before, [0, 0, 0])
