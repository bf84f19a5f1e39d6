"""Marks that several tables of cases share."""

import dis
import linecache
import types
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import hypothesis
import pytest

COMPILES = hypothesis.settings(max_examples=hypothesis.settings.default.max_examples // 12)
"""For tests that compile a program for each example: fewer of them."""


def marked_slow(values: Iterable[Any], slow: Collection[Any]) -> list[Any]:
    """The values of a table, those of `slow` with the mark that leaves them out of `make test`."""
    return [pytest.param(v, marks=_marks(v, slow)) for v in values]


def by_name(cases: Mapping[str, Any], slow: Collection[str]) -> list[Any]:
    """The cases of a table, each with its name as id; those named in `slow` likewise marked."""
    unknown = set(slow) - set(cases)
    assert not unknown, f"no cases: {unknown}"
    return [pytest.param(case, marks=_marks(name, slow), id=name) for name, case in cases.items()]


def _marks(value: Any, slow: Collection[Any]) -> Any:
    return pytest.mark.slow if value in slow else ()


def written(value: Any) -> str | None:
    """The id of a row: the body of a lambda as it is written, or the name of another function.

    None, which leaves the id to pytest: it is neither, or cannot be told.
    """
    if not isinstance(value, types.FunctionType):
        return None
    if value.__name__ != "<lambda>":
        return value.__name__
    places = [
        place
        for step in dis.get_instructions(value)
        if (place := step.positions) and place.end_col_offset  # it has code of its own
    ]
    if not places:  # Python 3.12 gives a constant no place
        return None
    start = min((place.lineno or 0, place.col_offset or 0) for place in places)
    end = max((place.end_lineno or 0, place.end_col_offset or 0) for place in places)
    code = linecache.getline(value.__code__.co_filename, start[0])[start[1] :]
    return (code[: end[1] - start[1]] if start[0] == end[0] else code.strip()) or None
