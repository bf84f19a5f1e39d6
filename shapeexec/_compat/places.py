"""Where a line of code comes from: the user's, JAX's, an installed package's or our own.

Callers decide what follows from it.
"""

# The functions that this takes of JAX are private, and have no types.
# pyright: reportPrivateUsage=false
# pyright: reportUnknownMemberType=false

import ast
import builtins
import contextlib
import dataclasses
import functools
import inspect
import itertools
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax._src import core as _core
from jax._src import source_info_util as _source_info
from jax._src.interpreters.partial_eval import (
    DynamicJaxprTracer as _DynamicJaxprTracer,
)
from jax.extend import source_info_util as _extend_source_info

from shapeexec._code import parsed

_JAX_DIR = os.path.dirname(jax.__file__) + os.sep
_COMPAT_DIR = os.path.dirname(__file__) + os.sep
OWN_DIR = os.path.dirname(os.path.dirname(__file__)) + os.sep
# The functions that a soak serves are those of users.
_SERVED = os.path.join(OWN_DIR, "tools", "soaking", "_models.py")
_STAND_INS_DIR = os.path.join(OWN_DIR, "shape", "_library") + os.sep
_NUMPY_DIR = os.path.dirname(np.__file__) + os.sep
_STDLIB_DIR = sysconfig.get_paths()["stdlib"] + os.sep
_SITE_DIRS = tuple(sysconfig.get_paths()[name] + os.sep for name in ("purelib", "platlib"))
# What JAX builds of its own primitives. Unlike the code beneath, it is written for known sizes.
_JAX_LIBRARY = (
    *(
        _JAX_DIR + place
        for room in ("", "_src" + os.sep)
        for name in "experimental image nn numpy ops random scipy third_party".split()
        for place in (f"{room}{name}{os.sep}", f"{room}{name}.py")
    ),
    os.path.join(_JAX_DIR, "_src", "lax", "fft.py"),  # the gradient of rfft asks for parity
    _STAND_INS_DIR,
)


@functools.cache  # of names, for code objects are equal whose files differ
def origin_of(filename: str, name: str) -> str:
    """The owner of a function's code: internal, library or user; or transparent, to be skipped."""
    if filename.startswith(_JAX_LIBRARY):
        return "library"
    if filename.startswith((_JAX_DIR, OWN_DIR)) and filename != _SERVED:
        return "internal"
    if filename.startswith((_NUMPY_DIR, "<frozen ", "<__array_function__")):
        return "transparent"
    if filename.endswith(".pyx"):  # compiled code: NumPy's generators tell of themselves so
        return "transparent"
    if filename.startswith("<") and name.startswith("__"):
        return "transparent"  # a dataclass's `__eq__`; but `<stdin>` and `<string>` are user code
    if filename.startswith(_STDLIB_DIR) and not filename.startswith(_SITE_DIRS):
        return "transparent"
    return "user"


def _codes(function: Any) -> Iterator[types.CodeType]:
    """The code of a function, and of the functions in it."""
    pending = [getattr(function, "__code__", None)]
    while pending:
        code = pending.pop()
        if code is not None:
            yield code
            pending += [c for c in code.co_consts if isinstance(c, types.CodeType)]


# JAX compares and prints types of arrays here; the question about dims is the caller's.
_OF_AVALS = {
    id(code): code  # the hash of one reads all of it
    for owner, names in (
        (_core.ShapedArray, "__repr__ __str__ str_short"),
        (jax.ShapeDtypeStruct, "__repr__ __eq__ __hash__"),
        (_core, "str_short_aval _get_shape_sharding_str"),
        (_core.Tracer, "__repr__ __str__ __format__ _pretty_print"),
        (_DynamicJaxprTracer, "_short_repr"),
    )
    for name in names.split()
    for code in _codes(getattr(owner, name, None))
}


def asked_by(depth: int) -> tuple[str, str | None]:
    """The owner of the nearest frame that is not transparent, and the user's `file:line`.

    Only a question of user code, and of JAX's library on its behalf, has a place.
    """
    frame, asker = sys._getframe(depth), None
    while frame is not None:
        code = frame.f_code
        is_of_avals = id(code) in _OF_AVALS
        origin = "transparent" if is_of_avals else origin_of(code.co_filename, code.co_name)
        asker = origin if asker is None and origin != "transparent" else asker
        if asker == "internal":
            return "internal", None
        if origin == "user":
            return asker or "user", f"{code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return asker or "internal", None


def is_foreign(code: types.CodeType) -> bool:
    """Whether a function is of JAX, NumPy, the standard library or this library."""
    return origin_of(code.co_filename, code.co_name) != "user"


def is_installed(code: types.CodeType) -> bool:
    """Whether a function is of an installed package, and not of the user's own files."""
    return code.co_filename.startswith(_SITE_DIRS)


def is_asked_by_user(depth: int) -> bool:
    """Whether the frame at a depth from the caller's speaks for user code."""
    return asked_by(depth + 1)[0] == "user"


def user_place() -> str | None:
    """`path/file.py:12` of the innermost user frame that runs."""
    return next((f"{file}:{line}" for file, line in _user_frames(sys._getframe(1))), None)


def caller_place() -> tuple[str, int] | None:
    """File and line of the innermost running frame outside of JAX and of installed packages.

    Where all user code is installed, the innermost of it.
    """
    innermost = None
    for place in _user_frames(sys._getframe(1)):
        if not place[0].startswith(_SITE_DIRS):
            return place
        innermost = innermost or place
    return innermost


def _user_frames(frame: types.FrameType | None) -> Iterator[tuple[str, int]]:
    """File and line of each running frame of the user's, innermost first."""
    while frame is not None:
        code = frame.f_code
        if origin_of(code.co_filename, code.co_name) == "user":
            yield code.co_filename, frame.f_lineno
        frame = frame.f_back


_CONVERSIONS = {"array": "array", "_convert_element_type": "convert"}


def conversion_asked() -> str:
    """How the caller's caller takes a number: by `array`, by `convert`, or as an `argument`.

    `jnp.asarray(n, dtype)` converts a Python number of any size; as an argument of an operation it
    is an i32 or f32 first.
    """
    code = sys._getframe(2).f_code
    is_of_jax = code.co_filename.startswith(_JAX_DIR)
    return _CONVERSIONS.get(code.co_name, "argument") if is_of_jax else "argument"


def _source_text(filename: str, line: int) -> str:
    import linecache  # noqa: PLC0415 - only errors and reports need it

    text = linecache.getline(filename, line).strip()
    place = f"{os.path.basename(filename)}:{line}"
    return f"{text}  ({place})" if text else place


def describe_line(place: str | None) -> str | None:
    """`code  (file.py:12)` of a `path/file.py:12`."""
    if place is None:
        return None
    filename, _, line = place.rpartition(":")
    return _source_text(filename, int(line))


def eqn_line(eqn: Any) -> str | None:
    """`code  (file.py:12)` of the innermost user frame that made an equation.

    Where that is of an installed package the user's own line stands before it.
    """
    frames = _source_info.user_frames(eqn.source_info.traceback)
    return _own_line((f.file_name, f.function_name, f.start_line) for f in frames)


def _own_line(frames: Iterable[tuple[str, str, int]]) -> str | None:
    """The frames of the stack, innermost first: file, function and line of each."""
    of_users = (frame for frame in frames if origin_of(*frame[:2]) == "user")
    inner = next(of_users, None)
    if inner is None:
        return None
    text = _source_text(inner[0], inner[2])
    if not inner[0].startswith(_SITE_DIRS):
        return text
    own = next((frame for frame in of_users if not frame[0].startswith(_SITE_DIRS)), None)
    return text if own is None else f"{_source_text(own[0], own[2])}, through {text}"


def hide_from_places(directory: str) -> None:
    """Have JAX take code in a directory for its own where it tells of a user's line."""
    _extend_source_info.register_exclusion(directory)


@contextlib.contextmanager
def without_caller() -> Generator[None]:
    """Trace and lower as if nobody had asked: with no line of the caller's."""
    context = _source_info.user_context(_traceback_of_nobody())
    context.__enter__()
    try:
        yield
    finally:
        # Told of an error it would add a note of its own to it, of lines that mean nothing.
        context.__exit__(None, None, None)


@functools.cache
def _traceback_of_nobody() -> Any:
    """A traceback without a line of the user's or of this library's."""
    try:
        with ThreadPoolExecutor(1) as pool:
            source: Any = pool.submit(_source_info.current).result()
    except RuntimeError:  # the interpreter ends, and starts no threads any more
        return None
    return source.traceback


hide_from_places(_STAND_INS_DIR)
hide_from_places(_COMPAT_DIR)


def error_place(error: BaseException) -> str | None:
    """`path/file.py:12` of the last user frame in an exception's traceback."""
    step = _last_of_user(error)
    return None if step is None else f"{step.tb_frame.f_code.co_filename}:{step.tb_lineno}"


def _steps(error: BaseException) -> list[types.TracebackType]:
    """The frames of an exception's traceback, outermost first."""
    steps, step = list[types.TracebackType](), error.__traceback__
    while step is not None:
        steps.append(step)
        step = step.tb_next
    return steps


def _last_of_user(error: BaseException) -> types.TracebackType | None:
    """The last user frame in an exception's traceback."""
    codes = ((step, step.tb_frame.f_code) for step in reversed(_steps(error)))
    of_user = (s for s, code in codes if origin_of(code.co_filename, code.co_name) == "user")
    return next(of_user, None)


def error_line(error: BaseException) -> str | None:
    """`code  (file.py:12)` of the last user frame in an exception's traceback.

    Where that is of an installed package the user's own line stands before it.
    """
    steps = ((step, step.tb_frame.f_code) for step in reversed(_steps(error)))
    return _own_line((code.co_filename, code.co_name, step.tb_lineno) for step, code in steps)


@dataclasses.dataclass(frozen=True)
class FailedCall:
    """The call in user code that an exception came out of.

    Attributes:
        text: The expression, `np.sqrt(x.shape[0])`.
        function: The called function, `np.sqrt`; None: it was not found.
    """

    text: str
    function: Any


def failed_call(error: BaseException) -> FailedCall | None:
    """The call in the last user frame in an exception's traceback, if a call failed there."""
    found = _last_of_user(error)
    text = None if found is None else _failed_expression(found)
    if found is None or text is None:
        return None
    try:
        call = parsed(text.strip())
    except SyntaxError:
        return None
    if not isinstance(call, ast.Call):
        return None
    root, *names = ast.unparse(call.func).split(".")
    frame = found.tb_frame
    spaces = (frame.f_locals, frame.f_globals, vars(builtins))
    function = next((space[root] for space in spaces if root in space), None)
    for name in names:  # of modules alone: an attribute of an object may be code
        function = getattr(function, name, None) if inspect.ismodule(function) else None
    return FailedCall(text.strip(), function)


def _failed_expression(step: types.TracebackType) -> str | None:
    import linecache  # noqa: PLC0415 - only errors need it

    code = step.tb_frame.f_code
    place = next(itertools.islice(code.co_positions(), step.tb_lasti // 2, None), None)
    if place is None or None in place or place[0] != place[1]:
        return None  # no columns, or of several lines
    line, _, start, end = place
    return linecache.getline(code.co_filename, line or 0).encode()[start:end].decode() or None


def told_as(fn: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """`wrapper`, which errors of JAX's tell by the name, the file and the line of `fn`."""
    own = inspect.signature(wrapper)
    inner = inspect.unwrap(getattr(fn, "func", fn))  # a functools.partial has its function's
    if hasattr(inner, "__code__"):
        functools.update_wrapper(wrapper, inner, ("__name__", "__qualname__"), ())
        wrapper.__signature__ = own  # pyright: ignore[reportFunctionMemberAccess] - `inspect` reads it
    return wrapper
