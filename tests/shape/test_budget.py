"""A search for facts of sizes ends, if not with what it takes then with what to write."""

import time

import numpy as np
import pytest

import shapeexec as sx
from shapeexec.shape import _budget
from shapeexec.shape._budget import Budget, SpentError
from shapeexec.shape._guards import Guard


def halves_of_many(*arrays):
    total = 0.0
    for x in arrays:
        total += (x[0::2] * x[1::2]).sum()  # fits if the size is even
    return total


def call(limit, monkeypatch, count=3, **options):
    monkeypatch.setattr(_budget, *limit)
    run = sx.Exec(halves_of_many, tuple("stuvwxyz"[:count]), buckets=sx.Pow2(), **options)
    return run, run(*[np.ones(6, np.float32)] * count)


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        (("MOST_FACTS", 2), "JAX needs 3 facts"),
        (("MOST_REMAINDERS", 1), "2 remainders make"),
        (("MOST_TRIES", 1), "1 traces did not show"),
        (("MOST_SECONDS", -1.0), "traces in 0 s did not show"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_past_its_bound_a_search_names_line_symbols_and_way_out(limit, why, monkeypatch):
    with pytest.raises(sx.InconclusiveShapeError) as caught:
        call(limit, monkeypatch)
    error = caught.value
    assert error.what == (
        "the function can only be traced with too many facts about `s` and `t` and `u`."
    )
    assert "x[0::2] * x[1::2]" in error.where
    assert why in error.why
    assert '"8*u"' in error.fix
    assert 'on_unsupported="exact"' in error.fix
    assert error.symbols == {"s", "t", "u"}


def test_past_its_bound_sizes_become_exact_if_they_may(monkeypatch):
    run, result = call(("MOST_TRIES", 1), monkeypatch, on_unsupported="exact")
    assert float(result) == 9.0
    assert run.stats.exact == dict.fromkeys("stu", 1)


def test_within_its_bound_a_search_finds_what_it_takes(monkeypatch):
    run, result = call(("MOST_TRIES", 48), monkeypatch)
    assert float(result) == 9.0
    assert run.stats.exact == {}


def test_a_machine_that_is_busy_with_else_gives_up_no_search(monkeypatch):
    budget = Budget()
    for clock in ("monotonic", "perf_counter", "time"):
        monkeypatch.setattr(time, clock, lambda: 1e12)
    budget.spend([])
    monkeypatch.setattr(time, "thread_time", lambda: 1e12)
    with pytest.raises(SpentError, match="1 traces in"):
        budget.spend([])


def test_nine_symbols_of_two_halves_are_too_many(monkeypatch):
    budget = Budget()
    facts = [Guard(f"mod(s{i}, 2)", "==", "0", splits=True) for i in range(9)]
    budget.spend(facts[:8])
    with pytest.raises(SpentError, match=r"9 remainders make 2\^9 graphs or more"):
        budget.spend(facts)
