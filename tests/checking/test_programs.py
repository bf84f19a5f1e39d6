"""A trace that is right is never told to be another program: a false difference costs a graph."""

import pytest

from shapeexec.checking import examine
from shapeexec.shape._trace import Leaf, trace
from tests.cases import ALL, control_flow, windows
from tests.marks import by_name

PROGRAMS = {case.name: case for each in ALL for case in (each, each.gradient()) if case is not None}
# Whose equations depend on sizes most: those of loops' bodies, and transposes of windows.
TOLD_APART = {f"gradient of {case.name}" for case in (*control_flow.CASES, *windows.CASES)}
SLOW = {name for name in PROGRAMS if name.startswith("gradient of ")} - TOLD_APART


@pytest.mark.parametrize("case", by_name(PROGRAMS, SLOW))
def test_a_right_trace_is_the_plain_program_at_every_size(case):
    leaves = [Leaf(dims, dtype) for dims, dtype in zip(case.dims, case.arg_dtypes, strict=True)]
    sizes = {symbol: case.sizes[symbol] for symbol in case.symbols}
    traced = trace(case.fn, leaves, sizes=sizes)
    for least in (0, 1, 7):  # its own sizes, the smallest, and larger ones
        others = {s: max(least, case.least.get(s, 1)) if least else sizes[s] for s in sizes}
        if traced.admits(others):
            assert examine(traced, case.fn, leaves=leaves, sizes=others).difference is None
