"""The public names: listed, sorted, and each with a docstring."""

import ast
import dataclasses
import doctest
import inspect
import re
import sys
import textwrap
import tomllib
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.execution._seen import Observed

MODULES = (sx, sx.attention, sx.bucketing, sx.masking, sx.shape)
NAMES = [(module, name) for module in (*MODULES, sx.tools) for name in module.__all__]
VALUES = {id(value): value for value in (getattr(module, name) for module, name in NAMES)}.values()
FUNCTIONS = [value for value in VALUES if inspect.isfunction(value)]
CLASSES = [value for value in VALUES if inspect.isclass(value)]


def visible(module: types.ModuleType) -> set[str]:
    return {name for name in dir(module) if not name.startswith("_")}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_all_lists_each_public_name_once_and_in_order(module):
    assert len(set(module.__all__)) == len(module.__all__)
    # As ruff sorts them: constants, then classes, then functions.
    rank = [(not name.isupper(), not name[0].isupper(), name) for name in module.__all__]
    assert rank == sorted(rank)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_what_is_visible_is_what_all_lists(module):
    assert visible(module) == set(module.__all__)


def test_the_version_is_visible():
    assert "__version__" in dir(sx)


@pytest.mark.parametrize(
    ("module", "name"), NAMES, ids=lambda part: getattr(part, "__name__", part)
)
def test_a_public_name_exists_and_says_what_it_is(module, name):
    value = getattr(module, name)
    if isinstance(value, tuple | str):
        return  # a constant says it in a string below it
    assert inspect.getdoc(value)


@pytest.mark.parametrize(
    "kind",
    [kind for kind in CLASSES if not issubclass(kind, Exception)],
    ids=lambda kind: kind.__name__,
)
def test_public_members_say_what_they_are(kind):
    for name, member in vars(kind).items():
        if not name.startswith("_") and (callable(member) or isinstance(member, property)):
            assert inspect.getdoc(member), name


@pytest.mark.parametrize(
    "kind", [kind for kind in vars(sx).values() if inspect.isclass(kind) and "Error" in str(kind)]
)
def test_errors_are_of_one_family_and_of_a_builtin_kind(kind):
    assert issubclass(kind, sx.ShapeExecError)
    assert kind is sx.ShapeExecError or any(
        base.__module__ == "builtins" for base in kind.__bases__
    )


def test_the_version_is_the_projects():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert sx.__version__ == project["version"]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_each_public_name_is_in_the_changelog(module):
    text = (Path(__file__).parents[1] / "CHANGELOG.md").read_text()
    assert [name for name in module.__all__ if not re.search(rf"\b{name}\b", text)] == []


# Docstrings

# What has no example, and why.
WITHOUT_EXAMPLE = {
    "fill": "it is called in rules, which docs/add_a_rule.md shows",
    "MaskNote": "the masking of a function makes it; `Explanation` has an example",
    "RuleContext": "the masking of a function makes it; docs/add_a_rule.md uses it",
    "register": "docs/add_a_rule.md registers a rule",
    "register_knowledge": "docs/add_a_rule.md registers a rule",
    "register_nested": "it needs a call-like primitive of the user's own",
    "zero": "its value is in its first line",
    "one": "its value is in its first line",
    "lowest": "its value is in its first line",
    "highest": "its value is in its first line",
    "checked_bucket": "callers have `Strategy.bucket`; this is for code that takes any strategy",
    "default_in_shapes": "it is for code that binds specs as `Exec` does",
    "default_kwarg_shapes": "it is for code that binds specs as `Exec` does",
}

ORDERS = """
    Append Apply Ask Attend Call Check Compare Compile Compute Convert Cut Double Draw Export
    Find Fit Forget Give Keep List Make Map Match Overwrite Pad Print Read Report Return Rewrite
    Run Say See Show Tell Wait Write
"""
"""The verbs with which docstrings of functions and methods begin."""
SECTIONS = ("Attributes", "Args", "Returns", "Raises", "Example")
"""The order of the sections."""


def sections(value: object) -> set[str]:
    """The sections of a docstring, such as `Args`."""
    lines = (inspect.getdoc(value) or "").splitlines()
    return {line.partition(":")[0] for line in lines if re.match(r"[A-Z]\w+:", line)}


def wanted(function: Callable[..., Any]) -> set[str]:
    """The sections that a function must have, by its signature and its body.

    What takes no arguments says in its first line what it returns; a docstring that points at
    another one by "see" leaves arguments and results to that.
    """
    signature = inspect.signature(function)
    raises = any(isinstance(node, ast.Raise) for node in ast.walk(body_of(function)))
    told = {"Raises"} if raises else set[str]()
    is_elsewhere = re.search(r"[Ss]ee `", inspect.getdoc(function) or "")
    if is_elsewhere or not signature.parameters.keys() - {"self", "cls"}:
        return told
    return told | {"Args"} | (set() if is_bare(signature.return_annotation) else {"Returns"})


def is_bare(returned: Any) -> bool:
    """Whether a function returns nothing, or a decorator that returns what it is given."""
    return returned is None or str(returned).startswith("collections.abc.Callable[[collections.abc")


def body_of(value: object) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(value)))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_public_function_has_all_sections(function):
    example = set() if function.__name__ in WITHOUT_EXAMPLE else {"Example"}
    assert (wanted(function) | example) - sections(function) == set()


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_public_class_tells_its_fields_and_has_an_example(kind):
    # Errors are caught, and never made by callers.
    if not issubclass(kind, Exception) and kind.__name__ not in WITHOUT_EXAMPLE:
        assert "Example" in sections(kind)
    if dataclasses.is_dataclass(kind) and any(f.init for f in dataclasses.fields(kind)):
        assert {"Attributes", "Args"} & sections(kind)


@pytest.mark.parametrize(
    "name",
    "map padded variant on_event why_new plan explain trace warmup advise".split(),
)
def test_a_method_of_exec_that_takes_arguments_says_what_it_returns_and_raises(name):
    assert {"Returns", "Raises"} <= sections(getattr(sx.Exec, name))


def methods_of(kind: type) -> list[Callable[..., Any]]:
    """The public methods that a class has, without properties: `Observed` is a part of `Exec`."""
    held = {
        n: m for base in kind.__mro__ if base in (kind, Observed) for n, m in vars(base).items()
    }
    members = {name: getattr(member, "__func__", member) for name, member in held.items()}
    return [
        member
        for name, member in members.items()
        if inspect.isfunction(member) and (name == "__call__" or not name.startswith("_"))
    ]


METHODS = list(dict.fromkeys(method for kind in CLASSES for method in methods_of(kind)))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__qualname__)
def test_a_public_method_has_all_sections(method):
    assert wanted(method) - sections(method) == set()


@pytest.mark.parametrize("function", [*FUNCTIONS, *METHODS], ids=lambda value: value.__qualname__)
def test_a_public_function_or_method_says_what_it_does_as_an_order(function):
    assert (inspect.getdoc(function) or "").split()[0] in ORDERS.split()


@pytest.mark.parametrize(
    "value", [*FUNCTIONS, *METHODS, *CLASSES], ids=lambda value: value.__qualname__
)
def test_sections_have_one_order_and_nothing_follows_them(value):
    parts = (inspect.getdoc(value) or "").split("\n\n")
    titles = [part.partition(":")[0] if re.match(r"[A-Z]\w+:\n", part) else "" for part in parts]
    told = [title for title in titles if title in SECTIONS]
    assert told == sorted(told, key=SECTIONS.index)
    first = titles.index(told[0]) if told else len(parts)
    behind = [part for part in parts[first:] if not part.startswith((" ", "Source: "))]
    assert len(behind) == len(told)


def examples() -> list[doctest.DocTest]:
    names = {"sx": sx, "jax": jax, "jnp": jnp, "np": np, **vars(sx)}
    found: list[doctest.DocTest] = []
    for value in (*FUNCTIONS, *CLASSES):
        own = {**names, **vars(sys.modules[value.__module__])}
        found += doctest.DocTestFinder().find(value, value.__name__, globs=own)
    return [test for test in found if test.examples]


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_the_examples_in_docstrings_run_as_printed(example):
    assert doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF).run(example).failed == 0


def test_what_has_no_example_is_public():
    assert WITHOUT_EXAMPLE.keys() <= {value.__name__ for value in (*FUNCTIONS, *CLASSES)}
