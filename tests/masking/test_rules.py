"""Every program of the table, at every padding: the exact answer, whatever the padding holds."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shapeexec as sx
from shapeexec.masking import POISONS
from shapeexec.shape._dim import evaluate
from shapeexec.shape._trace import Leaf, trace
from tests import cases
from tests.cases import Case
from tests.checks import EVERY, Padding, assert_all_pad_safe, assert_pad_safe, pad_to
from tests.marks import COMPILES, by_name
from tests.tolerance import assert_close

GRADIENTS = [gradient for case in cases.ALL if (gradient := case.gradient())]


def named(case: Case) -> str:
    return case.name


ALL = {case.name: case for case in cases.ALL}


@pytest.mark.parametrize("case", by_name(ALL, {"bisections within bisections"}))
def test_padding_never_changes_a_result(case: Case) -> None:
    poisoned = [Padding(slack, EVERY) for slack in (0, 1, 6)]
    assert_all_pad_safe(case, case.sizes, [*poisoned, Padding(3, None)])


@pytest.mark.parametrize("case", GRADIENTS, ids=named)
def test_padding_never_changes_a_gradient(case: Case) -> None:
    assert_all_pad_safe(case, case.sizes, [Padding(3, None), Padding(3, EVERY)])


@pytest.mark.parametrize("case", [c for c in cases.ALL if c.no_gradient], ids=named)
def test_a_case_without_a_gradient_is_one_that_jax_has_none_of(case: Case) -> None:
    gradient = case.gradient_if_any()
    assert gradient is not None
    leaves = [Leaf(dims, dtype) for dims, dtype in zip(case.dims, case.arg_dtypes, strict=True)]
    with pytest.raises((ValueError, NotImplementedError, sx.InconclusiveShapeError)):
        trace(gradient.fn, leaves, sizes={symbol: case.sizes[symbol] for symbol in case.symbols})


@pytest.mark.slow
@pytest.mark.parametrize("case", [*cases.ALL, *GRADIENTS], ids=named)
@COMPILES
@given(data=st.data())
def test_padding_never_changes_a_result_at_random_sizes(case: Case, data: st.DataObject) -> None:
    sizes = {s: data.draw(st.integers(case.least.get(s, 1), 7), label=s) for s in case.symbols}
    slack = data.draw(st.integers(0, 4), label="slack")
    poison = data.draw(st.sampled_from(POISONS), label="poison")
    assert_pad_safe(case, sizes, slack, poison, seed=data.draw(st.integers(0, 99), label="seed"))


NAIVE = {case.name: case for case in cases.ALL if case.naive != "never ends"}
FEW = {"circular and hyperbolic functions", "mean", "sort", "softmax", "transformer block"}


@pytest.mark.parametrize("case", by_name(NAIVE, NAIVE.keys() - FEW))
def test_zero_padding_without_masks_is_as_wrong_as_the_table_says(case: Case) -> None:
    sizes = {symbol: case.sizes[symbol] for symbol in case.symbols}
    args = case.make_args(sizes)
    buckets = {symbol: size + 3 for symbol, size in sizes.items()}
    padded = [
        pad_to(arg, [evaluate(dim, buckets) for dim in dims])
        for arg, dims in zip(args, case.dims, strict=True)
    ]
    expected = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(case.fn)(*args))]
    naive = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(case.fn)(*padded))]
    cut = [
        out[tuple(slice(0, n) for n in want.shape)]
        for out, want in zip(naive, expected, strict=True)
    ]

    def agrees() -> bool:
        try:
            assert_close(cut, expected, loose=case.loose)
        except AssertionError:
            return False
        return True

    assert agrees() == (case.naive == "agrees")
