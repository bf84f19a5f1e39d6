"""The pages: their Python runs and prints what they show, links resolve, made pages are fresh."""

import importlib.util
import inspect
import os
import pathlib
import re
from collections.abc import Iterator
from types import ModuleType

import pytest

import shapeexec as sx
from shapeexec.masking import _registry
from tests.marks import marked_slow

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
SLOW = {
    DOCS / f"{name}.md"
    for name in ("attention", "buckets", "libraries", "padding_modes", "tutorial")
}
_LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)")
_IMAGE = re.compile(r"\!\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def load(script: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{script}", DOCS / f"{script}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run_pages, make_reference = load("run_pages"), load("make_reference")
make_pictures = load("make_pictures")


def named(page: pathlib.Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def own_registry() -> Iterator[None]:
    """Rules that a page registers are gone afterwards."""
    tables = (_registry.RULES, _registry.NESTED, _registry.KNOWLEDGE)
    before = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize(
    "page",
    marked_slow([page for page in PAGES if "```python" in page.read_text("utf-8")], SLOW),
    ids=named,
)
def test_the_python_of_a_page_prints_what_the_page_shows(page: pathlib.Path) -> None:
    missing = set[str]()
    for block, printed in run_pages.run(page):
        assert not run_pages.differs(block[2] or "", printed), f"{block[1]}\nprints\n{printed}"
        missing |= {printed} if isinstance(printed, run_pages.Missing) else set()
    if missing:
        pytest.skip(f"make libraries runs the programs that need {', '.join(sorted(missing))}")


def test_a_program_whose_library_is_missing_is_left_as_it_is_if_an_extra_brings_it(tmp_path):
    page = tmp_path / "page.md"
    for name, is_known in (("transformers.of_none", True), ("no_such_library", False)):
        page.write_text(f"```python\nimport {name}\n```\n\n```text\n3\n```\n", encoding="utf-8")
        if is_known:
            assert run_pages.refresh(page) == page.read_text("utf-8")
            ((_, printed),) = run_pages.run(page)
            assert printed == "transformers"
        else:
            with pytest.raises(ModuleNotFoundError):
                list(run_pages.run(page))


def test_a_page_that_shows_something_else_is_noticed(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n", encoding="utf-8")
    ((block, printed),) = run_pages.run(page)
    assert run_pages.differs(block[2], printed)
    assert "\n2\n" in run_pages.refresh(page)


@pytest.mark.parametrize("page", ["reference.md", "primitives.md"])
def test_a_made_page_is_up_to_date(page: str) -> None:
    made = make_reference.PAGES[page]()
    assert made == (DOCS / page).read_text(encoding="utf-8"), "run python docs/make_reference.py"


def test_the_reference_has_every_public_name() -> None:
    reference = (DOCS / "reference.md").read_text(encoding="utf-8")
    rooms = {name: getattr(sx, name) for name in sx.__all__ if inspect.ismodule(getattr(sx, name))}
    names = [f"sx.{name}" for name in sx.__all__ if name not in rooms]
    names += [
        f"sx.{room}.{name}"
        for room, module in rooms.items()
        for name in module.__all__
        if name not in sx.__all__  # which is where it is told
    ]
    assert [name for name in names if f"### {name}\n" not in reference] == []


def test_the_picture_of_the_cache_is_drawn_of_what_its_page_tells(tmp_path: pathlib.Path) -> None:
    assert make_pictures.draw(tmp_path).read_bytes()[:4] == b"\x89PNG"
    page = (DOCS / "concepts.md").read_text(encoding="utf-8")
    assert f"after {sum(make_pictures.LENGTHS.values())} calls of ten shapes" in page
    assert len(make_pictures.LENGTHS) == 10
    called = make_pictures.called()
    sizes = {symbol: str(strategy) for symbol, strategy in called.settings.strategies.items()}
    assert f'{{"b": sx.{sizes["b"]}, "s": sx.{sizes["s"]}}}' in page
    assert called.stats.misses == len(called.graphs) == 6


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_images_of_pages_are_there(page: pathlib.Path) -> None:
    for image in _IMAGE.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / image).exists(), f"{image} in {page}"


def anchors(page: pathlib.Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", _CODE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_between_pages_resolve(page: pathlib.Path) -> None:
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    for link in _LINK.findall(text):
        if link.startswith(("http:", "https:")):
            continue
        path, _, anchor = link.partition("#")
        target = pathlib.Path(os.path.normpath(page.parent / path)) if path else page
        assert target.exists(), f"{link} in {page}"
        assert not anchor or anchor in anchors(target), f"{link} in {page}"


def test_every_page_is_reachable_from_the_index() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"index.md"}
    assert pages <= set(_LINK.findall(index))


def test_the_readme_counts_the_graphs_that_the_strategies_have() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+\(.*?\))` \|.*?\| (\d*) \| (\d*) \| (\d*) \|$", text, re.MULTILINE)
    table = {name: [int(cell) for cell in cells if cell] for name, *cells in rows}
    assert table["Pow2()"] == [4, 8, 11]
    assert table["Linear(8)"] == [1, 13, 125]
    endless = [name for name in table if not name.startswith(("Adaptive", "Ladder"))]
    assert len(endless) == 8
    for name in endless:
        strategy = eval(name, vars(sx))
        assert [len(strategy.buckets_up_to(n)) for n in (8, 100, 1000)] == table[name]
    for n in (100, 1000):  # what the row of Hybrid says of n past its threshold
        assert len(sx.Hybrid(64, 64).buckets_up_to(n)) == 7 + -(-(n - 64) // 64)
