"""The TPU kernels, in Pallas' interpreter, and as far as they can be lowered without a TPU."""

import pytest

from shapeexec.attention.backends.mosaic_tpu import _MosaicTpu
from tests.attention.kernels import CASES, check, check_lists


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_and_gradients_are_those_of_formulas(case):
    check(_MosaicTpu(interpret=True), case, bias_gradient=False)


def test_tiles_that_are_not_listed_are_skipped_and_full_ones_not_masked():
    check_lists(_MosaicTpu(interpret=True))
