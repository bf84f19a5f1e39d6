"""Masks by functions of a user's own, in kernels: what back ends refuse, and what they lower."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.attention.backends import _device
from shapeexec.attention.backends._registry import load
from tests.attention.lowering import lowered
from tests.attention.test_choose import CALL

TABLE, LIMIT = jnp.arange(64) % 3 > 0, jnp.int32(9)
RULES = {
    "elementwise": (lambda b, h, q, k: (q // 3 - k % 7 > h) | (abs(q - k) ** 2 < b), None),
    "table": (lambda b, h, q, k: TABLE[q // 64] & (k >= 0), "closes over an array"),
    "number": (lambda b, h, q, k: (q < LIMIT) & (k >= 0), "closes over an array"),
    "order": (lambda b, h, q, k: jnp.cumsum(q + k, 0) > 4, "inside a tile it knows no cumsum"),
}


@pytest.mark.parametrize("case", RULES)
@pytest.mark.parametrize(("name", "platform"), [("triton", "cuda"), ("mosaic_tpu", "tpu")])
def test_a_function_that_a_kernel_cannot_run_is_refused(name, platform, case):
    function, why = RULES[case]
    mask = sx.MaskFunction(function) | sx.Documents(np.zeros((1, 256), np.int32))
    signature = dataclasses.replace(CALL, query_size=256, key_size=256)
    told = load(name).refuses(signature, mask, platform=platform)
    assert told is None if why is None else why in told


@pytest.mark.parametrize("case", ["table", "number", "order"])
def test_a_function_that_a_hopper_kernel_cannot_run_is_refused(device, case):
    device(_device.HOPPER)
    function, why = RULES[case]
    told = load("mosaic_gpu").refuses(CALL, sx.MaskFunction(function), platform="cuda")
    assert why in told


@pytest.mark.parametrize(("name", "platform"), [("triton", "cuda"), ("mosaic_tpu", "tpu")])
def test_what_is_not_refused_of_functions_is_lowered(name, platform):
    def rule(b, h, q, k):
        x = jnp.where(q > k, q, -k).astype(np.float32) / 7
        y = jnp.exp(x) + jnp.log(abs(x) + 1) + jnp.sqrt(abs(x)) + jnp.sin(x) * jnp.tanh(x)
        z = jnp.floor(x) ** 3 + jnp.sign(x) * jnp.clip(y, -1, 1) + jnp.exp2(x)
        return (y < z) ^ ((q << 1 | k >> 1) & 4 == h % 2)

    x = jnp.zeros((1, 100, 2, 64), jnp.bfloat16)

    def attend(x):
        mask = sx.MaskFunction(rule)
        return sx.dot_product_attention(x, x, x, mask=mask, implementation=name)

    assert lowered(attend, x, platform=platform).count("custom_call @")
