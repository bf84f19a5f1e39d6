"""Records exceptions that user code handles while it is traced.

Code that catches an exception caused by a size may branch on the size without a comparison that we
could observe. So the places of such handlers are recorded. What the caller does with them is not
known here.
"""

import contextlib
import sys
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager
from types import CodeType, FrameType
from typing import Any

from shapeexec import _compat

_UNKNOWN = "unknown: a debugger or a profiler is at work"


def handled_exceptions(places: dict[str, None]) -> AbstractContextManager[None]:
    """Add the places, `path/file.py:12`, where user code in this thread handles exceptions.

    If a debugger or profiler has taken Python's hooks, one unknown place is added instead.
    """
    watch = _watch_events if hasattr(sys, "monitoring") else _watch_frames
    return watch(places)


def _matters(code: CodeType, error: BaseException) -> bool:
    """Whether an exception that some code handles may depend on sizes.

    In the user's own code any exception may. An installed library handles many of its own, so
    there only exceptions from JAX, NumPy or this library count.
    """
    if isinstance(error, StopIteration | GeneratorExit | StopAsyncIteration):
        return False
    return not _compat.is_installed(code) or _is_foreign(error)


def _is_foreign(error: BaseException) -> bool:
    """Whether code of JAX, NumPy or this library raised it."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    return step is not None and _compat.is_foreign(step.tb_frame.f_code)


# From Python 3.12 on: one event per handled exception, and no other cost

_lock = threading.Lock()
_by_thread: dict[int, dict[str, None]] = {}
_TOOLS = (4, 3, 5)


def _handled(code: CodeType, _offset: int, error: BaseException) -> None:
    places = _by_thread.get(threading.get_ident())
    if places is not None and not _compat.is_foreign(code) and _matters(code, error):
        step = error.__traceback__
        line = code.co_firstlineno if step is None else step.tb_lineno
        places.setdefault(f"{code.co_filename}:{line}")


@contextlib.contextmanager
def _watch_events(places: dict[str, None]) -> Generator[None]:
    monitoring: Any = getattr(sys, "monitoring")  # noqa: B009 - Python 3.11 does not have it
    thread, name = threading.get_ident(), "shapeexec"
    with _lock:
        tool = next((i for i in _TOOLS if monitoring.get_tool(i) in (None, name)), None)
        outer = _by_thread.get(thread)
        if tool is None:
            places.setdefault(_UNKNOWN)
        elif not _by_thread:
            monitoring.use_tool_id(tool, name)
            event = monitoring.events.EXCEPTION_HANDLED
            monitoring.register_callback(tool, event, _handled)
            monitoring.set_events(tool, event)
        if tool is not None:
            _by_thread[thread] = places
    try:
        yield
    finally:
        with _lock:
            if outer is not None:
                _by_thread[thread] = outer
            else:
                _by_thread.pop(thread, None)
            if tool is not None and not _by_thread:
                monitoring.set_events(tool, 0)
                monitoring.free_tool_id(tool)


# Python 3.11: trace the frames of user code


@contextlib.contextmanager
def _watch_frames(places: dict[str, None]) -> Generator[None]:
    if sys.gettrace() is not None:
        places.setdefault(_UNKNOWN)
        yield
        return

    def in_frame(frame: FrameType, event: str, argument: Any) -> Any:  # noqa: PLR0917 - a trace function of Python
        if event == "exception" and _matters(frame.f_code, argument[1]):
            places.setdefault(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return in_frame

    foreign: set[str] = set()  # a trace calls some hundred thousand functions of few files

    def at_call(frame: FrameType, _event: str, _argument: Any) -> Any:
        file = frame.f_code.co_filename
        if file in foreign:
            return None
        if _compat.is_foreign(frame.f_code):
            if not file.startswith("<"):  # there the name of a function counts, too
                foreign.add(file)
            return None
        frame.f_trace_lines = False
        return in_frame

    sys.settrace(at_call)
    try:
        yield
    finally:
        sys.settrace(None)
