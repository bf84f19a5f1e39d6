"""Reports progress: to a callback, or on stdout, as a bar by rich if stdout is a terminal.

Without rich each line holds what is done and the time.
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
    """Yield two functions: one reports a line of text, the other that one more step is done.

    Args:
        total: The number of steps.
        tell: Called with each line; None: lines are printed on stdout.
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
