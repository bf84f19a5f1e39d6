"""The public names: listed, sorted, and each with a docstring."""

import inspect
import tomllib
import types
from pathlib import Path

import pytest

import shapeexec as sx

MODULES = (sx, sx.masking, sx.bucketing, sx.shape)
NAMES = [(module, name) for module in MODULES for name in module.__all__]


def visible(module: types.ModuleType) -> set[str]:
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not (inspect.ismodule(value) and not value.__name__.startswith("shapeexec"))
    }


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_all_lists_each_public_name_once_and_in_order(module):
    assert len(set(module.__all__)) == len(module.__all__)
    # As ruff sorts them: constants, then classes, then functions.
    rank = [(not name.isupper(), not name[0].isupper(), name) for name in module.__all__]
    assert rank == sorted(rank)


def test_what_is_visible_is_listed_but_for_rooms_that_are_not_public():
    assert visible(sx) - {"checking", "execution", "program", "tools"} == set(sx.__all__)


@pytest.mark.parametrize(
    ("module", "name"), NAMES, ids=lambda part: getattr(part, "__name__", part)
)
def test_a_public_name_exists_and_says_what_it_is(module, name):
    value = getattr(module, name)
    if isinstance(value, tuple | str):
        return  # a constant says it in a text below it
    assert inspect.getdoc(value)


@pytest.mark.parametrize(
    "kind",
    [
        sx.Exec,
        sx.Plan,
        sx.Stats,
        sx.Explanation,
        sx.Program,
        sx.Equation,
        sx.Graphs,
        sx.GraphRow,
        sx.WhyNew,
        sx.CacheLimits,
        sx.Strategy,
        sx.Validation,
    ],
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
    builtin = ValueError | TypeError | NotImplementedError | RuntimeError | AssertionError
    assert kind is sx.ShapeExecError or issubclass(kind, builtin)


def test_the_version_is_the_projects():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert sx.__version__ == project["version"]
