"""What the statistics count."""

import pytest

import shapeexec as sx
from tests.execution.support import ones

P = sx.Pow2()


def test_hits_misses_traces_and_compiles_are_counted():
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P)
    for n in (3, 4, 3, 5):
        ex(ones(n))
    stats = ex.stats
    assert (stats.hits, stats.misses, stats.traces, stats.compiles) == (2, 2, 1, 2)
    assert (stats.graphs, stats.evictions, stats.copy_compiles) == (2, 0, 0)
    assert stats.compile_seconds == pytest.approx(sum(row.seconds.compile for row in ex.graphs))


def test_waste_is_the_share_of_padding_in_what_ran():
    ex = sx.Exec(lambda x: x + 1, ("b, s",), buckets={"b": P, "s": sx.Linear(10)})
    ex(ones(3, 5))
    ex(ones(1, 10))
    assert ex.stats.waste == {"b": 1 - 4 / 5, "s": 1 - 15 / 20}


def test_a_size_of_0_wastes_nothing():
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P)
    ex(ones(0))
    assert ex.stats.waste == {"s": 0}
    assert "padding: s 0.0%" in str(ex.stats)


def test_a_snapshot_stays_as_it_was():
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P)
    ex(ones(3))
    before = ex.stats
    ex(ones(3))
    assert (before.hits, ex.stats.hits) == (0, 1)


def test_no_statistics_are_statistics():
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P)
    assert str(ex.stats).endswith("padding: none")
    assert ex.stats == sx.Stats()


def test_exact_calls_are_counted_by_symbol():
    def fn(x):
        return sum(x[:, i] for i in range(x.shape[1]))

    ex = sx.Exec(fn, ("b, s",), buckets=P, on_unsupported="exact")
    for n in (2, 3, 2):
        ex(ones(2, n))
    assert ex.stats.exact["s"] == 3


@pytest.mark.parametrize("value", [1, 2.0])
def test_device_bytes_are_told(value):
    ex = sx.Exec(lambda x: x + value, ("s",), buckets=P)
    ex(ones(3))
    held = [row.bytes for row in ex.graphs]
    assert ex.stats.device_bytes == sum(own.temporaries + own.code for own in held if own) >= 0
