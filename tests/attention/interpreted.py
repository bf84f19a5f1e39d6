"""Runs the kernels for Hopper in Pallas' interpreter, which needs jax 0.11."""

import dataclasses

import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends import mosaic_gpu
from shapeexec.attention.backends._base import Residuals
from tests.attention.hopper import Case
from tests.tolerance import FEW, epsilon, tolerance


class AtOnce(mosaic_gpu.MosaicGpu):
    """Makes all gradients in one kernel, whether that is faster or not."""

    def passes(self, prepared, *, deterministic):
        assert not deterministic
        assert max(prepared.config.columns) <= 128
        return "at once"


def interpreted(
    case: Case, *, detect_races: bool = False, at_once: bool = False
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Out, logsumexp, dq, dk, dv, with NaN behind the valid lengths, and what is expected."""
    parameters = plgpu.InterpretGPUParams(detect_races=detect_races)
    backend = (AtOnce if at_once else mosaic_gpu.MosaicGpu)(parameters)
    q, k, v, d_out = case.with_nan_behind()
    work, signature, bias = case.work(), case.signature, case.poisoned_bias()
    out, logsumexp = backend.forward(signature, work, q=q, k=k, v=v, bias=bias)
    residuals = Residuals(q, k, v, bias, out, logsumexp)
    *gradients, _ = backend.backward(
        dataclasses.replace(signature, is_backward=True),
        work,
        residuals=residuals,
        d_out=d_out,
        d_logsumexp=None,
        deterministic=not at_once,
    )
    want = case.reference()
    d_out = np.where(case.valid[0][:, :, None, None], case.operands()[3], 0)
    expected = [want.out, want.logsumexp.transpose(0, 2, 1), *want.gradients(d_out)[:3]]
    return [np.asarray(x, np.float64) for x in (out, logsumexp, *gradients)], expected


def assert_forward_is_right(case):
    """Run the forward pass, and look for races, too."""
    backend = mosaic_gpu.MosaicGpu(plgpu.InterpretGPUParams(detect_races=True))
    q, k, v, _ = case.with_nan_behind()
    bias = case.poisoned_bias()
    out, logsumexp = backend.forward(case.signature, case.work(), q=q, k=k, v=v, bias=bias)
    want = case.reference()
    results = [np.asarray(x, np.float64) for x in (out, logsumexp)]
    assert_as_formulas(case, results, [want.out, want.logsumexp.transpose(0, 2, 1)])


def assert_as_formulas(case, results, expected):
    (out, logsumexp, *gradients), (want_out, want_logsumexp, *want) = results, expected
    np.testing.assert_allclose(logsumexp, want_logsumexp, atol=tolerance(np.float32, loose=FEW))
    alive = [case.reference().allowed.any(axis) for axis in (-1, -2)]
    sides = (0, 0, 1, 1)[: 1 + len(want)]
    for one, other, side in zip((out, *gradients), (want_out, *want), sides, strict=True):
        assert one.shape == other.shape
        limit = epsilon(case.dtype) * max(1, np.abs(other).max())
        np.testing.assert_allclose(one, other, atol=limit)
        lonely = ~alive[side].any(1)  # in any head
        assert not one[lonely].any(), "what meets nothing is 0, padding too"
