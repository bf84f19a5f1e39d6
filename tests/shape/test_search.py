"""The smallest part of many facts that still works."""

from hypothesis import given
from hypothesis import strategies as st

from shapeexec.shape._search import needed


@given(st.integers(0, 12), st.data())
def test_what_is_needed_is_found_in_order(count, data):
    wanted = {n for n in range(count) if data.draw(st.booleans())}
    assert needed(range(count), lambda part: wanted <= set(part)) == sorted(wanted)


def test_what_stands_first_is_taken_rather():
    assert needed("abcd", lambda part: "b" in part or "d" in part) == ["b"]


def test_a_part_is_tried_in_the_order_of_all():
    parts = []
    needed("abcdef", lambda part: parts.append(part) or {"b", "e"} <= set(part))
    assert all(part == sorted(part) for part in parts)


def test_few_of_many_take_few_tries():
    tries = []
    assert needed(range(64), lambda part: tries.append(part) or 40 in part) == [40]
    assert len(tries) <= 14
