"""Run the Python of a page as it is printed, and compare what it prints with what the page shows.

    python docs/run_pages.py README.md docs/*.md          # say which blocks differ
    python docs/run_pages.py --write README.md docs/*.md  # and put the true output in their place

A page is one program: its ```python blocks run in order, in one namespace. A ```text block right
behind one of them shows what that block prints. A block that imports a library of the extra
`libraries` is left as it is where that library is missing, and the page's line says so.
"""

import contextlib
import io
import pathlib
import re
import sys
from collections.abc import Iterator

_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
_SECONDS = re.compile(r"\d+\.\d+(?= s\b)")
_LINE = re.compile(r"(?<=\.md:)\d+")
LIBRARIES = ("grain", "haiku", "keras", "numpyro", "orbax", "transformers")
"""What the extra `libraries` of pyproject.toml brings, as it is imported."""


class Missing(str):
    """What a block did not print, for a library is missing: its name."""


def run(page: pathlib.Path) -> Iterator[tuple[re.Match[str], str]]:
    """Each block of the page, with what it printed, or `Missing`."""
    text = page.read_text(encoding="utf-8")
    namespace = {"__name__": page.stem}
    for block in _BLOCK.finditer(text):
        above = text[: block.start(1)].count("\n")
        code = compile("\n" * above + block[1], str(page.resolve()), "exec")
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(code, namespace)
        except ModuleNotFoundError as error:
            name = (error.name or "").partition(".")[0]
            if name not in LIBRARIES:
                raise
            yield block, Missing(name)
            continue
        yield block, printed.getvalue()


def differs(shown: str, printed: str) -> bool:
    """Whether the page shows something else; line numbers and seconds may differ."""
    if isinstance(printed, Missing):
        return False
    return _LINE.sub("N", _SECONDS.sub("N", shown)) != _LINE.sub("N", _SECONDS.sub("N", printed))


def refresh(page: pathlib.Path) -> str:
    """The page with what its blocks print."""
    text, done, at = page.read_text(encoding="utf-8"), "", 0
    for block, printed in run(page):
        if isinstance(printed, Missing):
            print(f"{page}: a program was not run, for {printed} is missing", file=sys.stderr)
        elif block[2] is not None and _SECONDS.sub("N", block[2]) != _SECONDS.sub("N", printed):
            done += text[at : block.start(2)] + printed
            at = block.end(2)
    return done + text[at:]


if __name__ == "__main__":
    names = [name for name in sys.argv[1:] if name != "--write"]
    stale = 0
    for path in map(pathlib.Path, names):
        fresh = refresh(path)
        if fresh != path.read_text(encoding="utf-8"):
            stale += 1
            print(f"{path}: shows something else than it prints")
            if "--write" in sys.argv:
                path.write_text(fresh, encoding="utf-8")
    sys.exit(stale if "--write" not in sys.argv else 0)
