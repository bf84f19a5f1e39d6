"""Rooms import downward only, and importing the library costs no more than JAX."""

import ast
import functools
import graphlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "shapeexec"

TABLE = (ROOT / "docs" / "architecture.md").read_text()


def rooms_of(table: str) -> dict[str, set[str]]:
    """Each room, and the rooms that it may import, from the rows of a page's table of rooms."""
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", table, flags=re.MULTILINE)
    return {room: set(re.findall(r"`(\w+)`", allowed)) for room, allowed in rows}


MAY_IMPORT = rooms_of(TABLE)
ABOVE = {"__init__", "__main__", "tools"}  # these may import any room
NOT_AT_IMPORT = ("matplotlib", "rich", "flax", "equinox", "optax", "jax.experimental.pallas")

FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def room_of(module: str) -> str:
    return [*module.split("."), "__init__"][1]


@functools.cache
def imports(path: Path) -> tuple[str, ...]:
    """Every module that a file imports, wherever in the file, by its full name."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_a_room_imports_those_below_it_only():
    def above(path):
        room = room_of(module_of(path))
        used = {room_of(name) for name in imports(path) if name.startswith("shapeexec.")}
        return set() if room in ABOVE else used - {room} - MAY_IMPORT[room]

    assert {path: rooms for path in FILES if (rooms := above(path))} == {}


def test_every_room_has_its_row():
    assert {room_of(module_of(path)) for path in FILES} == MAY_IMPORT.keys() | ABOVE


@pytest.mark.parametrize(
    "path", sorted((PACKAGE / "masking" / "rules").glob("*.py")), ids=lambda path: path.stem
)
def test_families_of_rules_do_not_know_each_other(path):
    if path.stem != "__init__":
        assert not [name for name in imports(path) if name.startswith("shapeexec.masking.rules")]


def test_only_compat_names_what_jax_keeps_to_itself():
    def private(path):
        return [name for name in imports(path) if name.startswith(("jax._src", "jax.extend"))]

    others = [path for path in FILES if room_of(module_of(path)) != "_compat"]
    assert [path for path in others if private(path)] == []


def test_a_module_says_what_it_knows_and_what_it_leaves_to_others():
    def sentences(path):
        told = ast.get_docstring(ast.parse(path.read_text())) or ""
        return len(re.findall(r"[.!?:](?=\s|$)", told))

    assert [path for path in FILES if sentences(path) < 2] == []


# Imports inside of a function that close a circle, each with its reason.
LATE = {
    # A string such as "pow2" stands for a ladder, and ladders take one for `beyond=`.
    ("shapeexec.bucketing._bounded", "shapeexec.bucketing._custom"),
}


def imported_modules() -> dict[str, set[str]]:
    """By module those that it imports, wherever in the file; a package is its `__init__`."""
    modules = {module_of(path).removesuffix(".__init__"): path for path in FILES}

    def module_in(name: str) -> str:
        while name not in modules:
            name = name.rpartition(".")[0]
        return name

    own = {
        module: {module_in(name) for name in imports(path) if name.startswith("shapeexec.")}
        for module, path in modules.items()
    }
    return {module: names - {module} for module, names in own.items()}


def test_modules_import_in_one_direction():
    below = imported_modules()
    for importer, imported in LATE:
        below[importer].remove(imported)  # raises where there is no such import any more
    assert below["shapeexec._compat.dims.exchange"] >= {"shapeexec._compat.dims.methods"}
    assert below["shapeexec.attention.masks._joined"] >= {"shapeexec.attention.masks._base"}
    graphlib.TopologicalSorter(below).prepare()  # raises where there is a circle


@pytest.mark.parametrize("path", sorted((PACKAGE / "bucketing").rglob("*.py")), ids=module_of)
def test_buckets_know_nothing_of_jax(path):
    assert not [name for name in imports(path) if name.split(".")[0] in ("jax", "jaxlib")]


# By room, the private modules that `tools` may import, to print, compare and time what an `Exec`
# does inside, which no user needs. A further one is a decision, and so a line here.
DOORS = {
    "attention": """
        _call_lists _early backends._base backends._device backends._kept backends._registry
        backends._tuning
    """,
    "bucketing": "_checks _fit _fit_joint _fitted _improve _laws _requests",
    "execution": """
        _bind _cache _compile _drawing _function _handle _inference _placement _plan _planner _ready
        _row _settings _signature _split _stats _store _table saving._files
    """,
    "masking": "_context _extents _poison _registry _values",
    "program": "_html",
    "shape": "_dim _inferred _spec _trace",
}


def doors_of_tools() -> set[str]:
    """The private modules of other rooms that `tools` imports; `_code` and such are whole rooms."""
    used = {
        name
        for module, names in imported_modules().items()
        if room_of(module) == "tools"
        for name in names
        if room_of(name) != "tools"
    }
    return {name for name in used if any(part.startswith("_") for part in name.split(".")[2:])}


def test_tools_open_no_other_door():
    listed = {f"shapeexec.{room}.{name}" for room in DOORS for name in DOORS[room].split()}
    opened = doors_of_tools()
    assert sorted(opened - listed) == []
    assert sorted(listed - opened) == []  # a door that nobody opens any more is shut


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    return done.stdout.strip()


def test_importing_starts_no_back_end():
    code = "import shapeexec; from jax._src import xla_bridge; print(xla_bridge._backends)"
    assert run(code) == "{}"


def test_importing_imports_jax_and_numpy_alone():
    code = f"import sys, shapeexec; print([m for m in {NOT_AT_IMPORT} if m in sys.modules])"
    assert run(code) == "[]"


def test_the_library_needs_jax_and_numpy_alone():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {requirement.split(">")[0] for requirement in project["dependencies"]}
    assert needed == {"jax", "numpy"}
    assert project["requires-python"] == ">=3.11"
