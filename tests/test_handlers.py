"""Broad handlers and raises of builtin errors give their reason in a comment."""

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_layers import FILES, module_of

BROAD = {"Exception", "BaseException"}


def is_broad(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    return any(isinstance(n, ast.Name) and n.id in BROAD for n in ast.walk(handler.type))


def is_builtin_raise(node: ast.Raise) -> bool:
    raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    if not isinstance(raised, ast.Name):
        return False
    kind = getattr(builtins, raised.id, None)
    return isinstance(kind, type) and issubclass(kind, BaseException)


def unexplained(source: str) -> Iterator[int]:
    """The lines of handlers and raises without a comment on the line or on the one before."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        is_broad_handler = isinstance(node, ast.ExceptHandler) and is_broad(node)
        is_raise = isinstance(node, ast.Raise) and is_builtin_raise(node)
        if not (is_broad_handler or is_raise):
            continue
        before = lines[node.lineno - 2].strip()
        if "  # " not in lines[node.lineno - 1] and not (is_raise and before.startswith("# ")):
            yield node.lineno


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_broad_handlers_and_builtin_errors_give_a_reason(path: Path):
    assert not list(unexplained(path.read_text()))


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("try:\n    f()\nexcept Exception:\n    pass", [3]),
        ("try:\n    f()\nexcept (OSError, BaseException) as error:\n    pass", [3]),
        ("try:\n    f()\nexcept:\n    pass", [3]),
        ("try:\n    f()\nexcept Exception:  # f is the user's\n    pass", []),
        ("try:\n    f()\nexcept OSError:\n    pass", []),
        ('raise ValueError("no")', [1]),
        ("raise TypeError", [1]),
        ("# as range() does\nraise TypeError", []),
        ('raise ConfigError("no")', []),
        ("try:\n    f()\nexcept OSError:\n    raise", []),
    ],
)
def test_what_needs_a_reason_is_found(source, lines):
    assert list(unexplained(source)) == lines
