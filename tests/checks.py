"""Assertions that several tests share."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

import shapeexec.masking  # noqa: F401 - registers the rules
from shapeexec.masking._masked import Masked
from shapeexec.shape._dim import evaluate
from shapeexec.shape._guards import Guard
from shapeexec.shape._trace import Leaf, trace
from tests.cases import Case


def pad_to(x: np.ndarray, shape: Sequence[int], value: Any = 0) -> np.ndarray:
    """`x` in the front corner of an array of `shape`."""
    out = np.full(tuple(shape), value, x.dtype)
    out[tuple(slice(0, n) for n in x.shape)] = x
    return out


def run_padded(
    case: Case,
    sizes: Mapping[str, int],
    buckets: Mapping[str, int],
    args: Sequence[np.ndarray],
    poison: str | None,
) -> list[np.ndarray]:
    """The case's flat results, run in `buckets` and cut to their valid lengths."""
    leaves = [Leaf(dims, dtype) for dims, dtype in zip(case.dims, case.arg_dtypes, strict=True)]
    traced = trace(case.fn, leaves, sizes)
    pins = [g for g in traced.guards if isinstance(g, Guard) and g.op == "=="]
    exact = {g.left for g in pins if g.right.isdigit()}
    buckets = {s: sizes[s] if s in exact else buckets[s] for s in sizes}
    padded = [
        pad_to(arg, [evaluate(dim, buckets) for dim in dims])
        for arg, dims in zip(args, case.dims, strict=True)
    ]
    ranges = {symbol: (1, bucket) for symbol, bucket in buckets.items()}
    masked = Masked(traced, ranges, poison, zero_padded=True)
    outs = jax.jit(masked)(dict(sizes), traced.jaxpr.consts, padded)
    own = traced.substitution.sizes(sizes)
    return [
        np.asarray(out)[tuple(slice(0, evaluate(d, own)) for d in var.aval.shape)]
        for out, var in zip(outs, traced.jaxpr.jaxpr.outvars, strict=True)
    ]


def assert_close(actual: Sequence[Any], expected: Sequence[Any], tolerance: float) -> None:
    """Equal shapes, dtypes and values, NaN equal to NaN."""
    assert len(actual) == len(expected)
    for got, want in zip(actual, expected, strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        wide = np.complex128 if np.iscomplexobj(want) else np.float64
        np.testing.assert_allclose(
            np.asarray(got).astype(wide), np.asarray(want).astype(wide), tolerance, tolerance
        )


def assert_pad_safe(
    case: Case,
    sizes: Mapping[str, int],
    slack: int,
    poison: str | None,
    seed: int = 0,
) -> None:
    """A run with poisoned padding equals the exact-shape run."""
    sizes = {symbol: sizes[symbol] for symbol in case.symbols}
    args = case.make_args(sizes, seed)
    expected = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(case.fn)(*args))]
    buckets = {symbol: size + slack for symbol, size in sizes.items()}
    assert_close(run_padded(case, sizes, buckets, args, poison), expected, case.tolerance)
