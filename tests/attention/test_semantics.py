"""Every Hopper kernel lowers by lane, too; on a GPU a session runs all tests so by one variable."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.attention.backends import _device
from shapeexec.attention.masks import ALiBi
from tests.attention.lowering import hopper_kernels, lowered
from tests.execution.support import refused

if jax.__version_info__ < (0, 11):
    pytest.skip("jax < 0.11 cannot lower these kernels", allow_module_level=True)

from shapeexec.attention.backends.mosaic_gpu import _semantics

IDS = np.arange(512, dtype=np.int32)[None] // 100


def gradient(size, *, bias=None, **options):
    """A gradient at heads of this size: the kernels of both passes."""

    def loss(x):
        return sx.dot_product_attention(
            *(x, x, x, bias, sx.Causal() & sx.Documents(IDS)),
            implementation="mosaic_gpu",
            **options,
        ).sum()

    return jax.grad(loss), (jax.ShapeDtypeStruct((1, 512, 2, size), jnp.bfloat16),)


def at_once(size):
    """All gradients in one kernel, where rows are long."""

    def loss(x):
        options = {"implementation": "mosaic_gpu", "deterministic": False}
        return sx.dot_product_attention(x, x, x, **options).sum()

    return jax.grad(loss), (jax.ShapeDtypeStruct((1, 2048, 1, size), jnp.bfloat16),)


def few(page_rows=None):
    """Few queries against a cache, in pages maybe."""

    def attend(q, k, v, lengths, pages):
        return sx.dot_product_attention(
            *(q, k, v),
            mask=sx.Causal(align="end"),
            key_value_seq_lengths=lengths,
            pages=pages,
            implementation="mosaic_gpu",
        )

    cache = (2, 1024) if page_rows is None else (32, page_rows)
    q, k = (jax.ShapeDtypeStruct((*lead, 2, 64), jnp.bfloat16) for lead in ((2, 4), cache))
    numbers = jax.ShapeDtypeStruct((2, 1024 // (page_rows or 1)), jnp.int32)
    lengths = jax.ShapeDtypeStruct((2,), jnp.int32)
    return attend, (q, k, k, lengths, None if page_rows is None else numbers)


def lowered_by(semantics, program):
    function, arguments = program
    jax.clear_caches()
    with _device.assumed(_device.HOPPER), _semantics.using(semantics):
        text = lowered(function, *arguments, platform="cuda")
    jax.clear_caches()
    return text


@pytest.mark.parametrize(
    ("program", "kernels"),
    [
        pytest.param(gradient(64), 3, id="heads of 64"),
        pytest.param(at_once(128), 2, id="at once"),
        pytest.param(at_once(64), 2, id="at once, heads of 64"),
        pytest.param(few(), 1, id="few queries"),
        pytest.param(few(64), 1, id="pages"),
        pytest.param(
            gradient(128, bias=ALiBi.for_heads(2)), 4, id="a bias", marks=pytest.mark.slow
        ),
        pytest.param(gradient(256), 3, id="heads of 256", marks=pytest.mark.slow),
    ],
)
def test_each_kernel_lowers_by_lane(program, kernels):
    assert hopper_kernels(lowered_by("lane", program)) == kernels


def test_by_lane_is_another_program():
    assert lowered_by("lane", few()) != lowered_by("warpgroup", few())


def test_a_variable_sets_the_semantics_of_a_process(monkeypatch):
    assert _semantics.semantics() == "warpgroup"
    monkeypatch.setenv(_semantics.VARIABLE, "lane")
    assert _semantics.semantics() == "lane"
    with _semantics.using("warpgroup"):
        assert _semantics.semantics() == "warpgroup"


def test_a_variable_that_names_no_semantics_is_refused(monkeypatch):
    monkeypatch.setenv(_semantics.VARIABLE, "warp")
    what = "SHAPEEXEC_MOSAIC_GPU_SEMANTICS='warp' is not the name of a way to lower kernels"
    with refused(sx.ConfigError, what, "SHAPEEXEC_MOSAIC_GPU_SEMANTICS=lane") as caught:
        _semantics.semantics()
    assert caught.value.option == _semantics.VARIABLE
