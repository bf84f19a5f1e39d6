"""The record of sizes: complete, bounded, and the same whatever the stream does."""

import collections

import pytest

from shapeexec.execution import _traffic
from shapeexec.execution._traffic import Traffic

HOUR = 3600.0


class Clock:
    """A clock that a test sets; both of its times pass alike."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def recorded(paddings, *, seconds=0.0):
    """The record of calls that follow each other every so many seconds."""
    clock = Clock()
    traffic = Traffic(clock)
    for padding in paddings:
        clock.now += seconds
        traffic.add((padding,), now=clock.now)
    return traffic.record()


def of(size, bucket=1 << 20):
    return (("s", size, bucket),)


def total(record):
    counts = sum((collections.Counter(w.counts) for w in record.windows), collections.Counter())
    return {padding[0][1]: count for padding, count in sorted(counts.items())}


def test_each_call_is_in_one_window_and_in_one_hour():
    record = recorded((of(1 + i % 7) for i in range(2000)), seconds=10.0)
    assert total(record) == {1 + i: len(range(i, 2000, 7)) for i in range(7)}
    by_hour = [sum(seen.counts.values()) for seen in record.hours.values()]
    assert sum(by_hour) == 2000
    assert list(record.hours) == [0, 1, 2, 3, 4, 5]
    assert all(abs(count - 360) <= 6 for count in by_hour[:5])  # 60 s are counted together


@pytest.mark.parametrize("calls", [1, 255, 256, 257, 33 * 256, 100_000])
def test_the_windows_are_few_and_of_one_length(calls):
    record = recorded(of(1 + i % 3) for i in range(calls))
    *full, last = [sum(window.counts.values()) for window in record.windows]
    assert len(record.windows) <= _traffic._WINDOWS
    assert len(set(full)) <= 1
    assert sum(full) + last == calls
    assert not full or last <= full[0]


def test_windows_keep_the_order_of_the_stream():
    record = recorded(of(1 + i // 1000) for i in range(50_000))
    means = [
        sum(padding[0][1] * count for padding, count in window.counts.items())
        / sum(window.counts.values())
        for window in record.windows
    ]
    assert means == sorted(means)


def test_too_many_sizes_are_rounded_up_and_none_is_lost():
    record = recorded(of(1 + i) for i in range(40_000))
    entries = sum(len(seen.counts) for seen in (*record.windows, *record.hours.values()))
    assert entries <= _traffic._ENTRIES
    step = record.steps["s"]
    assert record.left_out == 0
    assert step > 1
    assert total(record) == {
        size: len([n for n in range(size - step + 1, size + 1) if n <= 40_000])
        for size in range(step, 40_000 + step, step)
    }


def test_a_size_is_rounded_to_no_more_than_its_bucket():
    record = recorded(of(1 + i, bucket=-(-(1 + i) // 10) * 10) for i in range(30_000))
    assert all(size <= bucket for w in record.windows for ((_, size, bucket),) in w.counts)


def test_where_nothing_can_be_rounded_what_is_rare_is_left_out():
    often = [of(1, bucket=1)] * 50_000
    record = recorded([*often, *(of(2 + i, bucket=2 + i) for i in range(20_000))])
    assert total(record)[1] == 50_000
    assert record.left_out + sum(total(record).values()) == 70_000
    assert 0 < record.left_out < 20_000
