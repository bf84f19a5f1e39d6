"""Marks that several tables of cases share."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def marked_slow(values: Iterable[Any], slow: Collection[Any]) -> list[Any]:
    """The values of a table, those of `slow` with the mark that leaves them out of `make test`."""
    return [pytest.param(v, marks=pytest.mark.slow) if v in slow else v for v in values]
