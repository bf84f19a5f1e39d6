"""Assertions that several tests share."""

import dataclasses
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


@dataclasses.dataclass(frozen=True)
class Padding:
    """How a program is padded.

    Attributes:
        slack: How far each symbol's bucket is past its size.
        poison: What padding holds; None: zeros, which inputs bring along, so that masks are spared.
    """

    slack: int
    poison: str | None


def run_padded(
    case: Case,
    sizes: Mapping[str, int],
    args: Sequence[np.ndarray],
    paddings: Sequence[Padding],
) -> list[list[np.ndarray]]:
    """The case's flat results under each padding, cut to their valid lengths.

    One program runs them all: most of the time goes into making programs.
    """
    leaves = [Leaf(dims, dtype) for dims, dtype in zip(case.dims, case.arg_dtypes, strict=True)]
    traced = trace(case.fn, leaves, sizes)
    pins = [g for g in traced.guards if isinstance(g, Guard) and g.op == "=="]
    exact = {g.left for g in pins if g.right.isdigit()}
    programs, padded = [], []
    for padding in paddings:
        buckets = {s: size if s in exact else size + padding.slack for s, size in sizes.items()}
        ranges = {symbol: (1, bucket) for symbol, bucket in buckets.items()}
        programs.append(Masked(traced, ranges, padding.poison, zero_padded=True))
        padded.append(
            [
                pad_to(arg, [evaluate(dim, buckets) for dim in dims])
                for arg, dims in zip(args, case.dims, strict=True)
            ]
        )

    @jax.jit
    def run(sizes: Any, consts: Any, padded: Any) -> Any:
        return [
            program(sizes, consts, args) for program, args in zip(programs, padded, strict=True)
        ]

    own = traced.substitution.sizes(sizes)
    valid = [
        tuple(slice(0, evaluate(d, own)) for d in var.aval.shape)
        for var in traced.jaxpr.jaxpr.outvars
    ]
    return [
        [np.asarray(out)[part] for out, part in zip(outs, valid, strict=True)]
        for outs in run(dict(sizes), traced.jaxpr.consts, padded)
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
    assert_all_pad_safe(case, sizes, [Padding(slack, poison)], seed)


def assert_all_pad_safe(
    case: Case, sizes: Mapping[str, int], paddings: Sequence[Padding], seed: int = 0
) -> None:
    """Runs with paddings of several kinds equal the exact-shape run."""
    sizes = {symbol: sizes[symbol] for symbol in case.symbols}
    args = case.make_args(sizes, seed)
    expected = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(case.fn)(*args))]
    results = run_padded(case, sizes, args, paddings)
    for padding, result in zip(paddings, results, strict=True):
        try:
            assert_close(result, expected, case.tolerance)
        except AssertionError as error:
            error.add_note(f"under {padding}")
            raise
