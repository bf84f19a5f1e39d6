"""Run the notebooks of examples/notebooks, and put what they print and draw into docs/examples.md.

    python docs/make_examples.py                # all four, up to two minutes each
    python docs/make_examples.py graphs images  # these

A ```text block behind the line `<!-- NAME -->` shows what a notebook prints; its plot is
docs/images/example_NAME.png. Leave the machine alone meanwhile: what they print are seconds.
"""

import os
import pathlib
import re
import subprocess
import sys

DOCS = pathlib.Path(__file__).parent
PAGE = DOCS / "examples.md"
NOTEBOOKS = DOCS.parent / "examples" / "notebooks"


def names(page: str) -> list[str]:
    """The notebooks that the page shows, in its order."""
    return re.findall(r"^<!-- (\w+) -->$", page, re.MULTILINE)


def filled(page: str, name: str, *, printed: str) -> str:
    """The page, with what a notebook printed."""
    block = re.compile(rf"(^<!-- {name} -->\n+```text\n).*?(^```$)", re.DOTALL | re.MULTILINE)
    return block.sub(lambda found: found[1] + printed + found[2], page, count=1)


def run(name: str) -> str:
    """What a notebook prints; its plot is drawn on the way."""
    plot = DOCS / "images" / f"example_{name}.png"
    done = subprocess.run(
        [sys.executable, str(NOTEBOOKS / f"{name}.py"), "--plot", str(plot)],
        env=os.environ | {"MPLBACKEND": "agg"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


if __name__ == "__main__":
    for chosen in sys.argv[1:] or names(PAGE.read_text(encoding="utf-8")):
        fresh = filled(PAGE.read_text(encoding="utf-8"), chosen, printed=run(chosen))
        PAGE.write_text(fresh, encoding="utf-8")
        print(f"{PAGE.name}: {chosen}")
