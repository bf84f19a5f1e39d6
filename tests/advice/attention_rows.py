"""Rows of attention that an error refuses."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import shapeexec as sx
from tests.advice.row import Advice, option, somewhat

Q = somewhat(2, 5, 4, 8)
KEEP = np.tril(np.ones((5, 5), bool))


def attend(query: Any = Q, key: Any = Q, value: Any = Q, **options: Any) -> Any:
    return sx.dot_product_attention(query, key, value, **options)


def plain(**options: Any) -> Any:
    return jax.nn.dot_product_attention(Q, Q, Q, **options)


def told(fix: str, *names: str, **given: Any) -> dict[str, Any]:
    """The arguments that a Fix line tells, by name."""
    return {name: option(fix, name, **given) for name in names}


def replaced(
    name: str,
    kind: str,
    wrong: dict[str, Any],
    fix: str,
    right: Callable[[str], dict[str, Any]],
    expected: Callable[[], Any],
) -> Advice:
    """Arguments that are refused, and those that the Fix line tells in their place."""
    return Advice(
        name,
        kind,
        sx.ConfigError,
        lambda: attend(**wrong),
        fix,
        lambda line: attend(**wrong | right(line)),
        expected,
    )
