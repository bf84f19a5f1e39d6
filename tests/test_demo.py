"""The demo keeps its word: the unpadded answers, and a plot of times."""

import pytest

from demo.__main__ import main
from tests.tolerance import SUMS, tolerance


@pytest.mark.slow
def test_the_demo_is_exact_and_draws(tmp_path):
    plot = tmp_path / "plot.png"
    options = ["--requests", "3", "--sample", "3", "--layers", "1"]
    exact, *bucketed = main([str(plot), *options])
    assert exact.is_extrapolated
    assert len(bucketed) == 3
    assert all(run.difference < tolerance("float32", loose=SUMS) for run in bucketed)
    assert plot.read_bytes().startswith(b"\x89PNG")
