"""The Triton kernels, in Pallas' interpreter, and as far as they can be lowered without a GPU."""

import pytest

from shapeexec.attention.backends.triton import _Triton
from tests.attention.kernels import CASES, Case, check, check_lists, relative, window

OWN = (
    Case("float16, few key heads", (1, 20, 20, 4, 1, 40, 40), "float16", window(9, 9)),
    Case("bias by distance", (1, 20, 30, 2, 1, 40, 40), bias=relative),
)


@pytest.mark.parametrize("case", CASES + OWN, ids=lambda case: case.name)
def test_results_and_gradients_are_those_of_formulas(case):
    check(_Triton(interpret=True), case, bias_gradient=True)


def test_tiles_that_are_not_listed_are_skipped_and_full_ones_not_masked():
    check_lists(_Triton(interpret=True))
