"""Modules, functions and classes stay small, and lints are left out with a reason."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_layers import FILES, ROOT, module_of

MODULE, KERNEL, FUNCTION, CLASS = 400, 600, 40, 12
"""The most lines of a module, of one with kernels, of a function without its docstring; the most
public methods of a class."""

SIGNATURE = "its parameters fill the lines: those of the function that it stands for"
KERNELS = "one call of Pallas with all operands, specs and scratch of a kernel"
REASONS = {
    "shapeexec.attention._api.dot_product_attention": SIGNATURE,
    "shapeexec.execution._exec.Exec.__init__": SIGNATURE,
    "shapeexec.attention.backends.mosaic_gpu._of_queries.backward_of_queries": KERNELS,
    "shapeexec.attention.backends.mosaic_tpu._steps.launch": KERNELS,
    "shapeexec.attention._grid.TileGrid": "each method is one question of a mask about a tile",
    "shapeexec.attention.masks._base.Tiles": "each method is one question of a mask about a tile",
    "shapeexec.attention.masks._base.Positions": "each method is one question about a pair",
    "shapeexec.execution._exec.Exec": "the interface to users",
    "shapeexec.execution._runner.Runner": "a method for each method of `Exec` that runs or looks",
    "tests.attention.lockstep.Launch": "a method for each operation of MLIR, by its name",
}


def lines(node: ast.FunctionDef) -> int:
    """The lines of a function without its docstring."""
    first = node.body[0]
    is_told = isinstance(first, ast.Expr) and ast.get_docstring(node) is not None
    own = (first.end_lineno or 0) - first.lineno + 1 if is_told else 0
    return (node.end_lineno or 0) - node.lineno + 1 - own


def methods(node: ast.ClassDef) -> int:
    """How many public methods and properties a class has."""
    names = [inner.name for inner in node.body if isinstance(inner, ast.FunctionDef)]
    return sum(not name.startswith("_") for name in names)


def too_large(tree: ast.AST, where: str) -> Iterator[str]:
    """The names of the functions and classes that are too large, those inside of others too."""
    for node in ast.iter_child_nodes(tree):
        name = f"{where}.{node.name}" if isinstance(node, ast.FunctionDef | ast.ClassDef) else where
        if isinstance(node, ast.FunctionDef) and lines(node) > FUNCTION:
            yield name
        if isinstance(node, ast.ClassDef) and methods(node) > CLASS:
            yield name
        yield from too_large(node, name)


def test_a_module_is_short():
    def is_long(path: Path) -> bool:
        most = KERNEL if "backends" in path.parts else MODULE
        return len(path.read_text().splitlines()) > most

    assert [*filter(is_long, FILES)] == []


FOLDERS = ["shapeexec", "demo", "benchmarks", "docs", "examples", "tests"]


def test_functions_and_classes_are_small_or_have_a_reason():
    found = {
        name
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for name in too_large(ast.parse(path.read_text()), module_of(path))
    }
    assert found == REASONS.keys()


TESTS = sorted((ROOT / "tests").rglob("*.py"))


def test_a_module_of_tests_is_short_and_its_tolerances_have_names():
    texts = {path: path.read_text() for path in TESTS}
    assert [path for path, text in texts.items() if len(text.splitlines()) > MODULE] == []
    found = ((path, [*unnamed_tolerances(text)]) for path, text in texts.items())
    assert {path: calls for path, calls in found if calls} == {}


def test_the_name_of_a_test_needs_no_other_to_be_understood():
    leaning = re.compile(r"def (test_(?:it|its|so|they|their|these|this|that)_\w+)")
    assert [name for path in TESTS for name in leaning.findall(path.read_text())] == []


TOLERANCES = ("loose", "rtol", "atol")


def unnamed_tolerances(text: str) -> Iterator[str]:
    """Calls whose tolerance holds a literal, and `assert_allclose` with NumPy's own tolerance."""
    for call in ast.walk(ast.parse(text)):
        if not isinstance(call, ast.Call):
            continue
        name = ast.unparse(call.func).split(".")[-1]
        is_numpy = name in ("allclose", "assert_allclose")
        given = [keyword.value for keyword in call.keywords if keyword.arg in TOLERANCES]
        given += call.args[2:] if is_numpy else []
        literals = [
            node for one in given for node in ast.walk(one) if isinstance(node, ast.Constant)
        ]
        if literals or (name == "assert_allclose" and not given):
            yield ast.unparse(call)


@pytest.mark.parametrize(
    ("call", "is_found"),
    [
        ("assert_close(a, b, loose=10)", True),
        ("assert_close(a, b, loose=case.loose * 10)", True),
        ("np.allclose(a, b, rtol=1e-5)", True),
        ("np.testing.assert_allclose(a, b)", True),
        ("np.testing.assert_allclose(a, b, 1e-3)", True),
        ("np.testing.assert_allclose(a, b, atol=tolerance(dtype, loose=FEW))", False),
        ("assert_close(a, b, loose=case.loose * DERIVED)", False),
        ("assert_close(a, b)", False),
    ],
)
def test_a_tolerance_without_a_name_is_found(call: str, is_found: bool):
    assert len([*unnamed_tolerances(call)]) == is_found


def test_types_are_unknown_for_a_reason_that_is_true():
    def is_told(path: Path) -> bool:
        text = path.read_text()
        imports_kernels = re.search(r"^ *(?:from|import) .*(?:pallas|cudnn)", text, re.MULTILINE)
        if "# Pallas and cuDNN have" in text and not imports_kernels:
            return False
        turned_off = re.search(r"^# pyright: report", text, re.MULTILINE)
        reason = r"^# (?!pyright)[^\n]+\n# pyright: report"
        return not turned_off or re.search(reason, text, re.MULTILINE) is not None

    assert [path for path in FILES if not is_told(path)] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_a_line_leaves_out_of_lint_and_types_has_a_reason(folder: str):
    bare = re.compile(r"# (?:noqa: \w+(?:, \w+)*|pyright: ignore\[[\w, ]+\])\s*$|# type: ignor[e]")
    lines = [
        f"{path}: {line.strip()}"
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text().splitlines()
        if bare.search(line)
    ]
    assert lines == []
