"""Sizes of 0 are counted too."""

import numpy as np

import shapeexec as sx


def test_only_empty_inputs_waste_nothing():
    total = sx.Exec(lambda x: x.sum(), ("s",))
    assert total(np.ones(0, np.float32)) == 0
    assert total.stats.waste == {"s": 0.0}
