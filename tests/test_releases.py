"""What releases promise is one text: versions, types for users, and what the wheel holds."""

import importlib.util
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from types import ModuleType

import pytest

from shapeexec._compat.private import VERSIONS

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CLIENT = ROOT / "tests" / "typed_client.py"


def versions(kind: str) -> str:
    """What pyproject.toml says of Python, jax or NumPy, as pages say it."""
    if kind == "Python":
        prefix = "Programming Language :: Python :: "
        found = [line.removeprefix(prefix) for line in PROJECT["classifiers"] if prefix in line]
        assert PROJECT["requires-python"] == f">={found[0]}"
        return f"{found[0]} to {found[-1]}"
    need = next(need for need in PROJECT["dependencies"] if need.startswith(kind))
    if "<" not in need:
        return f"{need.partition('>=')[2]} and later"
    first, end = re.fullmatch(r"\w+>=([\d.]+),<0\.(\d+)", need).groups()
    return f"{first} to 0.{int(end) - 1}"


@pytest.mark.parametrize("kind", ["Python", "jax", "numpy"])
def test_the_table_of_versions_is_that_of_the_project(kind):
    page = (ROOT / "docs" / "releases.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| (\w+) \| (.+) \|$", page, re.MULTILINE))
    assert rows["NumPy" if kind == "numpy" else kind] == versions(kind)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_pages_say_the_same_versions(page):
    text = " ".join((ROOT / page).read_text("utf-8").split())
    assert versions("jax") in text
    first, last = versions("Python").split(" to ")
    assert f"{first} to {last}" in text or f"{first}, 3.12 or {last}" in text


def test_private_names_are_known_for_each_supported_jax():
    first, last = versions("jax").split(" to ")
    known = {version for each in VERSIONS.values() for version in each}
    numbers = range(int(first.split(".")[1]), int(last.split(".")[1]) + 1)
    assert known == {f"0.{number}" for number in numbers}


def test_the_citation_has_the_version():
    assert f"version: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text("utf-8")


# Types


def checked(*command: str) -> str:
    command = (sys.executable, "-m", *command)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_a_client_is_typed_under_pyright_strict(tmp_path):
    shutil.copy(CLIENT, tmp_path)
    config = tmp_path / "pyrightconfig.json"
    config.write_text(json.dumps({"typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}))
    told = checked("pyright", "-p", str(config), "--pythonpath", sys.executable)
    assert "0 errors, 0 warnings" in told, told


@pytest.mark.slow
def test_a_client_is_typed_under_mypy_strict():
    silent = "--follow-imports=silent"  # as for an installed package: what the client says is told
    told = checked("mypy", "--strict", silent, "--cache-dir=/dev/null", str(CLIENT))
    assert "Success" in told, told


@pytest.mark.slow
def test_the_client_runs():
    told = checked("tests.typed_client").splitlines()
    assert told[-2:] == ["FrozenError True", "3.0 f32[b,s,2,4]"]


# The wheel


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_wheel_with_too_few_or_other_files_is_told(tmp_path):
    own = {str(p.relative_to(ROOT)) for p in (ROOT / "shapeexec").rglob("*.py")}
    held = {*own, "shapeexec/py.typed"}
    wheel = script("wheel")
    cases = {
        "": held | {"shapeexec-0.dist-info/METADATA"},
        "shapeexec/py.typed is missing": held - {"shapeexec/py.typed"},
        "tests/marks.py does not belong there": held | {"tests/marks.py"},
    }
    for wrong, names in cases.items():
        with zipfile.ZipFile(tmp_path / "one.whl", "w") as archive:
            for name in sorted(names):
                archive.writestr(name, "")
        assert "\n".join(wheel.missing_in(tmp_path / "one.whl")) == wrong
