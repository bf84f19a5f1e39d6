"""Saying how far a run is, with rich where it is installed and somebody watches.

Without it each line is printed with what is done and the time.
"""

import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable, Generator


@contextlib.contextmanager
def progress(total: int) -> Generator[tuple[Callable[[str], None], Callable[[], None]]]:
    """Two functions: one tells a line, the other that one more of `total` is done."""
    start, done = time.monotonic(), 0

    def advance() -> None:
        nonlocal done
        done += 1

    def line(text: str) -> None:
        print(f"[{done}/{total}, {time.monotonic() - start:.0f} s] {text}", flush=True)

    if importlib.util.find_spec("rich") is None or not sys.stdout.isatty():
        yield line, advance
        return
    from rich.progress import Progress  # noqa: PLC0415 - it may not be installed

    with Progress() as bar:
        task = bar.add_task("measuring", total=total)
        yield (
            lambda text: bar.console.print(text, markup=False, highlight=False, soft_wrap=True),
            lambda: bar.advance(task),
        )
