"""Progress as a bar, by rich or tqdm where one of them is installed.

`_warmup` decides what is counted.
"""

import contextlib
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Generator
from typing import Any

from shapeexec._errors import ConfigError

Progress = Callable[[int, int], None]
"""Called with (done, total)."""

_WHAT = "compiling graphs"


@contextlib.contextmanager
def shown(
    progress: Progress | bool | None,  # noqa: FBT001 - the one parameter; True asks for our bar
) -> Generator[Progress | None]:
    """The function to report progress to, within the block; None: nobody asked for it.

    Args:
        progress: A function; True: a bar, or a warning where neither rich nor tqdm is installed.

    Raises:
        ConfigError: `progress` is neither.
    """
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise ConfigError(
            f"warmup: progress={progress!r:.80} is neither True nor a function.",
            option="progress",
            fix="progress=True, or a function of (done, total)",
        )
    if not isinstance(progress, bool):
        yield progress
        return
    with contextlib.ExitStack() as stack:
        yield _bar(stack) if progress else None


def _bar(stack: contextlib.ExitStack) -> Progress | None:
    if importlib.util.find_spec("rich") is not None:
        return _by_rich(stack)
    if importlib.util.find_spec("tqdm") is not None:
        return _by_tqdm(stack)
    warnings.warn(
        "shapeexec: no bar is drawn, because neither rich nor tqdm is installed.\n"
        "  Fix:   pip install tqdm, or progress=print",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


def _by_rich(stack: contextlib.ExitStack) -> Progress:
    rich: Any = importlib.import_module("rich.progress")
    bar = stack.enter_context(rich.Progress())
    task = bar.add_task(_WHAT, total=None)
    return lambda done, total: bar.update(task, completed=done, total=total)


def _by_tqdm(stack: contextlib.ExitStack) -> Progress:
    tqdm: Any = importlib.import_module("tqdm").tqdm
    bar = stack.enter_context(tqdm(desc=_WHAT))

    def update(done: int, total: int) -> None:
        bar.total, bar.n = total, done
        bar.refresh()

    return update
