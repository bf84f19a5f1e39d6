"""The functions that rows about options run."""

from typing import Any

from tests.advice.row import somewhat

X = somewhat(5)


def double(x: Any) -> Any:
    return 2 * x


def flagged(x: Any, flag: Any = True, *, mask: Any = None) -> Any:
    return x if mask is None else x * mask
