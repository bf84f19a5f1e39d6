"""Assertions that several tests share."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec.masking  # noqa: F401 - registers the rules
from shapeexec.masking import POISONS, _poison
from shapeexec.masking._knowledge import FINITE, UNSPECIFIED
from shapeexec.masking._masked import Masked
from shapeexec.shape._dim import evaluate
from shapeexec.shape._guards import Guard
from shapeexec.shape._trace import Leaf, trace
from tests.cases import Case
from tests.tolerance import assert_close

EVERY = "every"
"""Each of `POISONS` in turn, in one compiled program that is given its number."""


_ORDINARY = ("bool", "int32", "uint32", "float16", "bfloat16", "float32", "complex64")
"""The dtypes whose poison `EVERY` is an operand of the program; of others it is looked up in it."""
_KNOWN = {"finite": FINITE, "anything": UNSPECIFIED}


def _operands(number: int) -> dict[str, dict[str, Any]]:
    """The poison of this number, a scalar of each ordinary dtype, by what is known of padding."""
    dtypes = [np.dtype(jnp.dtype(name)) for name in _ORDINARY]
    return {
        known: {d.name: _poison.poison_value(POISONS[number], d, padding=of) for d in dtypes}
        for known, of in _KNOWN.items()
    }


@contextlib.contextmanager
def _chosen_poison(number: jax.Array, operands: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """While a program is traced: `EVERY` is the poison of a number, i32[], and its `_operands`.

    Operands, for an operation at each fill would be a third of what such a program costs to make.
    """
    of_one = _poison.poison_value

    def value(poison: str, dtype: Any, *, padding: Any) -> Any:
        if poison != EVERY:
            return of_one(poison, dtype, padding=padding)
        known = "finite" if padding == FINITE else "anything"
        name = getattr(dtype, "name", "")
        if name in operands[known]:
            return operands[known][name]
        values = [of_one(name, dtype, padding=padding) for name in POISONS]
        return None if values[0] is None else jnp.stack(values)[number]

    with mock.patch.object(_poison, "poison_value", value):
        yield


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
        poison: One of `POISONS`, or `EVERY`; None: zeros, which inputs bring along, so that masks
            are spared.
    """

    slack: int
    poison: str | None


def run_padded(
    case: Case,
    sizes: Mapping[str, int],
    args: Sequence[np.ndarray],
    paddings: Sequence[Padding],
) -> Iterator[tuple[str, list[list[np.ndarray]]]]:
    """The case's flat results, cut to their valid lengths: by each padding under each poison.

    One program runs all paddings: most of the time goes into making programs.
    """
    leaves = [Leaf(dims, dtype) for dims, dtype in zip(case.dims, case.arg_dtypes, strict=True)]
    traced = trace(case.fn, leaves, sizes=sizes)
    pins = [g for g in traced.guards if isinstance(g, Guard) and g.op == "=="]
    exact = {g.left for g in pins if g.right.isdigit()}
    programs, padded = [], []
    for padding in paddings:
        buckets = {s: size if s in exact else size + padding.slack for s, size in sizes.items()}
        ranges = {symbol: (1, bucket) for symbol, bucket in buckets.items()}
        programs.append(Masked(traced, ranges, padding.poison, zero_padded=True))
        padded.append(_padded(case, args, buckets))

    @jax.jit
    def run(sizes: Any, consts: Any, padded: Any, number: jax.Array, operands: Any) -> Any:
        with _chosen_poison(number, operands):
            return [
                program(sizes, consts, leaves=args)
                for program, args in zip(programs, padded, strict=True)
            ]

    own = traced.substitution.sizes(sizes)
    valid = [
        tuple(slice(0, evaluate(d, own)) for d in var.aval.shape)
        for var in traced.jaxpr.jaxpr.outvars
    ]
    numbers = range(len(POISONS) if any(p.poison == EVERY for p in paddings) else 1)
    for number in numbers:
        results = run(dict(sizes), traced.jaxpr.consts, padded, np.int32(number), _operands(number))
        cut = [[np.asarray(x)[at] for x, at in zip(outs, valid, strict=True)] for outs in results]
        yield POISONS[number], cut


def _padded(case: Case, args: Sequence[np.ndarray], buckets: Mapping[str, int]) -> list[np.ndarray]:
    """The arguments of a case at capacity."""
    shapes = ([evaluate(dim, buckets) for dim in dims] for dims in case.dims)
    return list(map(pad_to, args, shapes))


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
    for every, results in run_padded(case, sizes, args, paddings):
        for padding, result in zip(paddings, results, strict=True):
            try:
                assert_close(result, expected, loose=case.loose)
            except AssertionError as error:
                error.add_note(f"under {padding}, of which `{EVERY}` is {every}")
                raise
