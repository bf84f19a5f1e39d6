"""The page on adding a strategy runs as it is printed."""

import pathlib
import re

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "add_a_strategy.md"


def test_the_examples_of_the_page_run():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    # The page needs only what this room gives; so it is tested without the rooms above.
    script = "\n".join(blocks).replace("import shapeexec as sx", "import shapeexec.bucketing as sx")
    exec(compile(script, str(PAGE), "exec"), {"__name__": "page"})
