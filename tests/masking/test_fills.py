"""Where padding is filled is found once a trace: each bucket's graph is as if it were the first."""

import jax
import numpy as np
import pytest
from jax import lax

from shapeexec.masking import _masked
from shapeexec.masking._masked import Masked
from shapeexec.masking._typed import TypedResults
from shapeexec.shape._dim import evaluate
from shapeexec.shape._trace import Leaf, trace
from tests import cases
from tests.cases import Case

NAMES = """
    attention; branch on data; convolutional network, dynamic batch; interp; loss of a block;
    recurrence over s; softmax over s; static loop over ragged state; transformer block;
    while on a ragged state
"""
BY_NAME = {case.name: case for case in cases.ALL}
CASES = [BY_NAME[" ".join(name.split())] for name in NAMES.split(";")]
WITH_GRADIENTS = [*CASES, *(case.gradient() for case in CASES if case.gradient())]


def traced(case: Case):
    leaves = [Leaf(dims, dtype) for dims, dtype in zip(case.dims, case.arg_dtypes, strict=True)]
    return trace(case.fn, leaves, sizes={symbol: case.sizes[symbol] for symbol in case.symbols})


def program(case: Case, trace, *, slack: int, least: int | None = 1) -> str:
    """The program with its masks, at buckets so much beyond the sizes of the case."""
    buckets = {symbol: case.sizes[symbol] + slack for symbol in case.symbols}
    ranges = {s: (bucket if least is None else least, bucket) for s, bucket in buckets.items()}
    masked = Masked(trace, ranges, zero_padded=True)
    leaves = [
        np.zeros([evaluate(dim, buckets) for dim in dims], dtype)
        for dims, dtype in zip(case.dims, case.arg_dtypes, strict=True)
    ]
    sizes = {symbol: np.int32(case.sizes[symbol]) for symbol in case.symbols}
    run = masked.__call__  # make_jaxpr would take its `trace` for that of a jitted function
    return str(jax.make_jaxpr(run)(sizes, trace.jaxpr.consts, leaves=leaves))


@pytest.mark.parametrize("case", WITH_GRADIENTS, ids=lambda case: case.name)
def test_the_second_bucket_is_as_if_it_were_the_first(case):
    own = traced(case)
    assert program(case, own, slack=3) != program(case, own, slack=20)
    assert program(case, own, slack=20) == program(case, traced(case), slack=20)


def test_a_bucket_of_one_size_is_no_other_ones_example():
    case = BY_NAME["softmax over s"]
    own = traced(case)
    program(case, own, slack=1, least=None)
    assert program(case, own, slack=20) == program(case, traced(case), slack=20)


@pytest.mark.parametrize("case", WITH_GRADIENTS, ids=lambda case: case.name)
def test_a_pass_by_types_finds_the_fills_that_a_pass_over_values_does(case, monkeypatch):
    by_types = program(case, traced(case), slack=3)
    monkeypatch.setattr(_masked, "TypedResults", lambda: None)
    assert program(case, traced(case), slack=3) == by_types


def test_a_pass_by_types_binds_each_kind_of_operation_once():
    def fn(x, y, z):
        typed = TypedResults()
        sines = [typed.bind(lax.sin_p, [one], params={"accuracy": None}) for one in (x, y, z)]
        assert sines[0][0] is sines[1][0]
        assert sines[2][0] is not sines[0][0]
        return sines[1], sines[2]

    row, column = np.zeros(3, np.float32), np.zeros((3, 1), np.float32)
    assert str(jax.make_jaxpr(fn)(row, row, column)).count("sin ") == 2


def test_a_pass_by_types_has_no_list_in_common_with_a_rule_that_changes_its_own():
    typed, params = TypedResults(), {"dimension": 0, "is_stable": True, "num_keys": 1}
    rows = [np.zeros(3, np.float32), np.zeros(3, np.int32)]
    typed.bind(lax.sort_p, rows, params=params).pop()
    assert len(typed.bind(lax.sort_p, rows, params=params)) == 2


LOOPS = [BY_NAME[name] for name in ("recurrence over s", "while on a ragged state")]


@pytest.mark.parametrize("case", LOOPS, ids=lambda case: case.name)
def test_no_pass_holds_the_arrays_of_a_body_that_was_left(case):
    with jax.checking_leaks():
        assert program(case, traced(case), slack=3)


def test_the_first_pass_binds_once_what_repeats(monkeypatch):
    case, bound = Case("sines", lambda x: lax.sin(lax.sin(lax.sin(x))).sum(1), ("b, s",)), []
    own, bind = traced(case), lax.sin_p.bind

    def bind_it(*operands, **params):
        bound.append(operands)
        return bind(*operands, **params)

    monkeypatch.setattr(lax.sin_p, "bind", bind_it)
    program(case, own, slack=3)
    assert len(bound) == 1 + 3  # the second pass makes the program
    program(case, own, slack=20)
    assert len(bound) == 1 + 3 + 3


def test_a_second_bucket_takes_one_pass(monkeypatch):
    case, passes = BY_NAME["transformer block"], []
    own = traced(case)
    run = _masked.Masked._run
    monkeypatch.setattr(
        Masked, "_run", lambda *args, **given: passes.append(1) or run(*args, **given)
    )
    program(case, own, slack=3)
    assert len(passes) == 2
    program(case, own, slack=20)
    assert len(passes) == 3
