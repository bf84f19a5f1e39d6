"""Saying how far a run is: to who asked for it, else on stdout, with rich where somebody watches.

Without rich each line tells what is done and the time.
"""

import contextlib
import functools
import importlib.util
import sys
import time
from collections.abc import Callable, Generator

Tell = Callable[[str], object]


@contextlib.contextmanager
def progress(
    total: int, tell: Tell | None
) -> Generator[tuple[Callable[[str], None], Callable[[], None]]]:
    """Two functions: one tells a line, the other that one more of `total` is done.

    Args:
        total: How much there is to do.
        tell: Takes the lines; None: stdout does.
    """
    write = tell or functools.partial(print, flush=True)
    start, done = time.monotonic(), 0

    def advance() -> None:
        nonlocal done
        done += 1

    def line(text: str) -> None:
        write(f"[{done}/{total}, {time.monotonic() - start:.0f} s] {text}")

    if tell or not sys.stdout.isatty() or importlib.util.find_spec("rich") is None:
        yield line, advance
        return
    from rich.progress import Progress  # noqa: PLC0415 - it may not be installed

    with Progress() as bar:
        task = bar.add_task("measuring", total=total)
        yield (
            lambda text: bar.console.print(text, markup=False, highlight=False, soft_wrap=True),
            lambda: bar.advance(task),
        )
