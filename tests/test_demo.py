"""The demo keeps its word: the unpadded answers, and a plot of times."""

import pytest

import shapeexec as sx
from demo.__main__ import main
from tests.tolerance import SUMS, tolerance


@pytest.mark.slow
def test_the_demo_is_exact_and_draws(tmp_path):
    plot = tmp_path / "plot.png"
    options = ["--requests", "3", "--sample", "3", "--layers", "1"]
    exact, *bucketed = main([str(plot), *options])
    assert exact.is_extrapolated
    assert [run.name for run in bucketed] == [
        "sx.Exec, Pow2",
        "sx.Exec, Linear(128)",
        "sx.Exec, Ladder.fit",
    ]
    assert all(run.difference < tolerance("float32", loose=SUMS) for run in bucketed)
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_quick_demo_compares_what_it_is_told_to(tmp_path):
    call = ["--quick", "--requests", "2", "--compare", "fit:2,linear:64", "--device", "cpu"]
    exact, *bucketed = main([str(tmp_path / "plot.png"), *call])
    assert [run.name for run in bucketed] == ["sx.Exec, fit:2", "sx.Exec, linear:64"]
    assert len(exact.graphs) == 2
    assert all(run.difference < tolerance("float32", loose=SUMS) for run in bucketed)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ("--compare pow3", "compare='pow3' is not a strategy."),
        ("--compare fit", "compare='fit' is not a fitted ladder."),
        ("--requests 0", "--requests 0 is none."),
        ("--device abacus", "--device abacus: there is no such device."),
    ],
)
def test_what_the_demo_cannot_do_is_refused_at_once(options, what):
    with pytest.raises(sx.ConfigError) as caught:
        main(options.split())
    assert caught.value.what == what
