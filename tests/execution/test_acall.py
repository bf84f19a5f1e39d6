"""Calls for asyncio: the loop goes on, results and errors come back, nothing is lost."""

import asyncio
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from tests.execution.support import wait_for


def ones(*shape):
    return np.ones(shape, np.float32)


def total(x):
    return x.sum() * 2


def test_many_calls_at_once_are_right_and_share_graphs():
    run = sx.Exec(total, ("s",))

    async def serve():
        return await asyncio.gather(*(run.acall(ones(size)) for size in range(1, 33)))

    assert [float(x) for x in asyncio.run(serve())] == [2.0 * size for size in range(1, 33)]
    assert run.stats.compiles == 6
    assert run.stats.hits + run.stats.misses == 32


def test_the_loop_goes_on_while_a_graph_is_made():
    ticks, may_end = [], threading.Event()

    def slow(x):
        wait_for(may_end)  # while it is traced
        return x + 1

    run = sx.Exec(slow, ("s",), check="off")

    async def tick():
        ticks.append(1)
        may_end.set()

    async def serve():
        call = asyncio.create_task(run.acall(ones(5)))
        await asyncio.sleep(0)
        await tick()
        return await call

    np.testing.assert_array_equal(asyncio.run(serve()), ones(5) + 1)
    assert ticks == [1]


def test_an_error_comes_back_and_the_next_call_runs():
    run = sx.Exec(total, ("s, 4",))

    async def serve():
        with pytest.raises(sx.SpecError):
            await run.acall(ones(3, 5))
        return await run.acall(ones(3, 4))

    assert asyncio.run(serve()) == 24


def test_a_task_that_is_cancelled_leaves_no_cache_broken():
    reached, opened = threading.Event(), threading.Event()

    def slow(x):
        reached.set()
        wait_for(opened)
        return x * 2

    run = sx.Exec(slow, ("s",), check="off")

    async def serve():
        task = asyncio.create_task(run.acall(ones(5)))
        await asyncio.to_thread(reached.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        opened.set()
        return await run.acall(ones(6))

    np.testing.assert_array_equal(asyncio.run(serve()), 2 * ones(6))
    assert run.cache_size == 1


def test_a_setting_of_the_loops_thread_is_heeded():
    run = sx.Exec(lambda x: jnp.asarray(x, float), ("s",))

    async def serve():
        with jax.enable_x64(True):
            wide = await run.acall(ones(5))
        return wide.dtype, (await run.acall(ones(5))).dtype

    assert asyncio.run(serve()) == (np.float64, np.float32)


def test_a_method_is_called_with_its_instance():
    class Model:
        def __init__(self, scale):
            self.scale = jnp.float32(scale)

        @sx.bucketed(("s",))
        def apply(self, x):
            return x.sum() * self.scale

    model = Model(3.0)

    async def serve():
        return await model.apply.acall(ones(5)), await Model.apply.acall(model, ones(5))

    assert asyncio.run(serve()) == (15, 15)


def test_within_a_trace_the_plain_function_runs():
    run = sx.Exec(total, ("s",))

    @jax.jit
    def outer(x):
        return asyncio.run(run.acall(x))

    with pytest.warns(RuntimeWarning, match="called inside a transformation"):
        assert outer(ones(5)) == 10


def test_handles_come_back_too():
    run = sx.Exec(lambda x: x + 1, ("s",), returns="padded")
    handle = asyncio.run(run.acall(ones(5)))
    np.testing.assert_array_equal(np.asarray(handle), ones(5) + 1)
