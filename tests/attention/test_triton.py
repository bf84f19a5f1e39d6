"""The Triton kernels, in Pallas' interpreter, and as far as they can be lowered without a GPU."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import shapeexec as sx
from shapeexec.attention.backends.triton import _Triton, backend
from tests.attention.kernels import (
    CASES,
    Case,
    check,
    check_in_shard_map,
    check_lists,
    relative,
    signature_of,
    window,
)
from tests.attention.lowering import all_in_one, arguments, layers, lowered

KERNEL = "@__gpu$xla.gpu.triton("
OWN = (
    Case("float16, few key heads", (1, 20, 20, 4, 1, 40, 40), "float16", window(9, 9)),
    Case("bias by distance", (1, 20, 30, 2, 1, 40, 40), bias=relative),
)


@pytest.mark.parametrize("case", CASES + OWN, ids=lambda case: case.name)
def test_results_and_gradients_are_those_of_formulas(case):
    check(_Triton(interpret=True), case, bias_gradient=True)


LARGE = (
    Case("three tiles", (2, 190, 330, 4, 2, 128, 128), "bfloat16", window(150, 3)),
    Case("f32, large heads", (1, 100, 90, 2, 1, 256, 200), mask=window(50, 3)),
    Case("small heads", (1, 300, 300, 4, 1, 40, 72), "float16", window(99, 9)),
)


@pytest.mark.gpu
@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")
@pytest.mark.parametrize("case", CASES + OWN + LARGE, ids=lambda case: case.name)
def test_on_a_device_in_tiles_of_its_choice_they_are_the_same(case):
    tile = backend.tile(signature_of(case, None), sx.Full())
    check(backend, dataclasses.replace(case, tile=tile), bias_gradient=True)


def test_tiles_that_are_not_listed_are_skipped_and_full_ones_not_masked():
    check_lists(_Triton(interpret=True))


def test_inside_of_shard_map_it_runs_as_well(monkeypatch):
    check_in_shard_map(_Triton(interpret=True), "triton", monkeypatch)


def test_more_layers_hold_no_more_kernels():
    x = jnp.zeros((1, 40, 2, 64), jnp.bfloat16)
    two, four = (lowered(layers(n, "triton"), x, platform="cuda").count(KERNEL) for n in (2, 4))
    assert two == four > 0


def test_any_mask_is_lowered_with_the_gradient_of_a_bias():
    program = lowered(all_in_one("triton", of_bias=True), *arguments(), platform="cuda")
    # Forward, its statistics again, and gradients by query, by key and by pair.
    assert program.count(KERNEL) == 5


@pytest.mark.parametrize(
    ("change", "platform", "reason"),
    [
        ({}, "cpu", "it is made for GPUs, not for cpu"),
        ({"dtype": "float64"}, "cuda", "and not in float64"),
        ({"value_size": 257}, "cuda", "tiles of head size 257 do not fit"),
        ({"bias": sx.ALiBi, "bias_gradient": True}, "cuda", "no gradient of the arrays in ALiBi"),
    ],
)
def test_what_it_cannot_run_it_refuses_in_words(change, platform, reason):
    signature = dataclasses.replace(signature_of(CASES[0], None), **change)
    assert reason in backend.refuses(signature, sx.Full(), platform=platform)
    assert backend.refuses(signature_of(CASES[0], None), sx.Full(), platform="cuda") is None


@pytest.mark.parametrize(
    ("size", "dtype", "side"), [(40, "bfloat16", 64), (256, "bfloat16", 32), (200, "float32", 16)]
)
def test_tiles_are_as_large_as_shared_memory_allows(size, dtype, side):
    case = Case("", (1, 300, 9, 1, 1, size, 40), dtype)
    assert backend.tile(signature_of(case, None), sx.Full()) == (side, 16)
