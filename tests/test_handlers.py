"""Broad handlers and builtin errors give their reason in a comment; our errors hold a value.

Those that name an argument in their first line hold its name.
"""

import ast
import builtins
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.test_layers import FILES

BROAD = {"Exception", "BaseException"}
IMPORTS = {"ImportError", "ModuleNotFoundError"}


def is_broad(node: ast.AST) -> bool:
    """Whether a node is a handler of any exception, or drops one about an import."""
    if isinstance(node, ast.ExceptHandler):
        drops = all(isinstance(n, ast.Pass) for n in node.body)
        return node.type is None or names(node.type, BROAD | (IMPORTS if drops else set()))
    is_suppress = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress")
    return is_suppress and names(node, BROAD | IMPORTS)


def names(node: ast.AST, kinds: set[str]) -> bool:
    return any(isinstance(n, ast.Name) and n.id in kinds for n in ast.walk(node))


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
        is_raise = isinstance(node, ast.Raise) and is_builtin_raise(node)
        if not (is_raise or is_broad(node)):
            continue
        assert isinstance(node, ast.ExceptHandler | ast.Call | ast.Raise)
        before = lines[node.lineno - 2].strip()
        if "  # " not in lines[node.lineno - 1] and not (is_raise and before.startswith("# ")):
            yield node.lineno


def found_in_files(find: Callable[[str], Iterable[Any]]) -> dict[Path, list[Any]]:
    """What is found in the text of each file, for files with anything."""
    found = {path: list(find(path.read_text())) for path in FILES}
    return {path: places for path, places in found.items() if places}


def test_broad_handlers_and_builtin_errors_give_a_reason():
    assert found_in_files(unexplained) == {}


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("try:\n    f()\nexcept Exception:\n    pass", [3]),
        ("try:\n    f()\nexcept (OSError, BaseException) as error:\n    pass", [3]),
        ("try:\n    f()\nexcept:\n    pass", [3]),
        ("try:\n    f()\nexcept Exception:  # f is the user's\n    pass", []),
        ("try:\n    f()\nexcept OSError:\n    pass", []),
        ("try:\n    f()\nexcept ImportError:\n    pass", [3]),
        ("try:\n    f()\nexcept ImportError:\n    raise Ours from None", []),
        ("with contextlib.suppress(ModuleNotFoundError):\n    f()", [1]),
        ("with contextlib.suppress(Exception):\n    f()", [1]),
        ("with contextlib.suppress(OSError):\n    f()", []),
        ('raise ValueError("no")', [1]),
        ("raise TypeError", [1]),
        ("# as range() does\nraise TypeError", []),
        ('raise ConfigError("no")', []),
        ("try:\n    f()\nexcept OSError:\n    raise", []),
    ],
)
def test_what_needs_a_reason_is_found(source, lines):
    assert list(unexplained(source)) == lines


# Errors of ours that have neither a value nor a place to give, by their first words, and why.
WITHOUT_VALUE = {
    "sow_weights=True asks": "the first line holds the argument, and it has one value only",
    "attention cannot use an einsum": "the function that Flax hands over has no name of the user's",
    "mosaic_tpu cannot run this": "`why` names the part of the mask",
    "sizes is empty": "the value is empty",
    "buckets is empty": "the value is empty",
    "plot: there are no graphs": "the value is empty",
    "plot: no call had a size": "the value is empty",
    "plot: matplotlib is not": "a requirement is missing",
    "--plot needs matplotlib": "a requirement is missing",
    "warmup: the shapes and dtypes": "no argument was given",
    "UNKNOWN cannot be": "an unknown size has no value, and the operator is in the user's line",
}


def without_value(source: str) -> Iterator[str]:
    """The first words of errors of ours without `got=`, `where=`, or a value in the first line."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not {"fix"} <= {one.arg for one in node.keywords}:
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        if not name.endswith("Error") or {"got", "where"} & {one.arg for one in node.keywords}:
            continue
        text = node.args[0]  # a variable holds a string that is made elsewhere
        if isinstance(text, ast.Constant):
            yield str(text.value)


def test_an_error_of_ours_has_a_value_or_a_place():
    given = tuple(WITHOUT_VALUE)

    def others(text: str) -> list[str]:
        return [found for found in without_value(text) if not found.startswith(given)]

    assert found_in_files(others) == {}


def test_each_exception_is_in_use():
    found = [text for path in FILES for text in without_value(path.read_text())]
    assert all(any(text.startswith(words) for text in found) for words in WITHOUT_VALUE)


@pytest.mark.parametrize(
    ("raised", "has_none"),
    [
        ('ConfigError("no", fix="do")', True),
        ('_errors.SpecError("no", why="so", fix="do")', True),
        ('ConfigError("no", fix=f"do {x}")', True),
        ('ConfigError("no", got=f"{x}", fix="do")', False),
        ('ConfigError("no", where=line, fix="do")', False),
        ('ConfigError(f"no {x}", fix="do")', False),
        ("ConfigError(what, fix=what)", False),
        ('Problem("no", fix="do")', False),
    ],
)
def test_what_lacks_a_value_is_found(raised, has_none):
    assert list(without_value(f"raise {raised}")) == ["no"] * has_none


# What a first line names as `name=value`, or begins with: `grown: by=-1`, `key[0] is a list`.
NAMES_ARGUMENT = re.compile(r"\b[a-z]\w*(\[\S*\])?=(?!=)|^\{(path|place|where|name)\}")


def without_name(source: str) -> Iterator[str]:
    """The first lines of ConfigErrors and SpecErrors that name an argument, and do not hold it."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not {"fix"} <= {one.arg for one in node.keywords}:
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        field = {"ConfigError": "option", "SpecError": "path"}.get(name)
        if field is None or field in {one.arg for one in node.keywords}:
            continue
        text = template(node.args[0])
        if NAMES_ARGUMENT.search(text):
            yield text


def template(text: ast.expr) -> str:
    """A string with the sources of its values in braces, without their formats."""
    if isinstance(text, ast.JoinedStr):
        return "".join(map(template, text.values))
    if isinstance(text, ast.BinOp):
        return template(text.left) + template(text.right)
    if isinstance(text, ast.FormattedValue):
        return f"{{{ast.unparse(text.value)}}}"
    return str(text.value) if isinstance(text, ast.Constant) else ""


def test_an_error_of_ours_that_names_an_argument_holds_the_name():
    assert found_in_files(without_name) == {}


@pytest.mark.parametrize(
    ("raised", "found"),
    [
        ('ConfigError(f"pin={x!r:.80} is none.", fix="do")', ["pin={x} is none."]),
        ('SpecError(f"unpad: sizes={x} are none.", fix="do")', ["unpad: sizes={x} are none."]),
        ('SpecError(f"{path} is " + "none.", fix="do")', ["{path} is none."]),
        ('ConfigError(f"sizes[{x}]={y}.", fix="do")', ["sizes[{x}]={y}."]),
        ('ConfigError(f"pin={x!r:.80} is none.", option="pin", fix="do")', []),
        ('SpecError(f"{path} is none.", path=path, fix="do")', []),
        ('ConfigError(f"there is no {x}.", fix="do")', []),
        ('BackendError(f"mask={x}", fix="do")', []),
    ],
)
def test_what_lacks_a_name_is_found(raised, found):
    assert list(without_name(f"raise {raised}")) == found
