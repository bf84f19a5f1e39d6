"""Whether a size divides evenly is decided at the sizes of the call, and guarded."""

import numpy as np
import pytest

import shapeexec as sx


def test_a_reshape_to_minus_one_becomes_a_guard():
    sums = sx.Exec(lambda x: x.reshape(-1, 4).sum(1), ("s",))
    for size in (8, 12, 16):
        x = np.arange(size, dtype=np.float32)
        np.testing.assert_array_equal(sums(x), x.reshape(-1, 4).sum(1))
    assert sums.stats.traces == 1
    assert sums.cache_size == 2


def test_a_size_that_does_not_divide_is_the_functions_own_error():
    sums = sx.Exec(lambda x: x.reshape(-1, 4).sum(1), ("s",))
    with pytest.raises(TypeError, match="does not evenly divide 7"):
        sums(np.ones(7, np.float32))
