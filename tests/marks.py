"""Marks that several tables of cases share."""

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
