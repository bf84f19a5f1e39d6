"""Stand-ins for functions of JAX that need sizes as ints. `shape/_library` defines them."""

# The functions that this takes of JAX are private, and have no types.
# pyright: reportPrivateUsage=false
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
import inspect
import os
import sys
import threading
import types
from collections.abc import Callable, Iterable
from typing import Any

import jax
from jax import numpy as jnp
from jax import tree_util
from jax._src import core as _core
from jax._src.export.shape_poly import _DimExpr

from shapeexec._compat.avals import number_types
from shapeexec._compat.dims.functions import ModuleWith, copied
from shapeexec._compat.dims.listening import LISTENING, Patches, is_listened_to
from shapeexec._compat.places import OWN_DIR, origin_of

_LIBRARY: dict[str, tuple[tuple[str, str], ...]] = {
    "associative_scan": (("jax._src.lax.control_flow.loops", "associative_scan"),),
    "choice": (("jax._src.random.core", "choice"),),
    "const": (("jax._src.lax.lax", "_const"),),
    "int_dtype_for_dim": (("jax._src.lax.utils", "int_dtype_for_dim"),),
    "int_dtype_for_shape": (("jax._src.lax.utils", "int_dtype_for_shape"),),
    "permutation": (("jax._src.random.core", "permutation"),),
    "reduce_jvp": (("jax._src.lax.lax", "_reduce_jvp"),),
    "searchsorted": (
        ("jax._src.numpy.hijax", "searchsorted"),
        ("jax._src.numpy.hijax", "searchsorted_via_expand"),
    ),
    "searchsorted_scan": (("jax._src.numpy.hijax", "_searchsorted_scan_impl"),),
    "shuffle": (("jax._src.random.core", "_shuffle"),),
    "spectral_helper": (("jax._src.scipy.signal", "_spectral_helper"),),
    "squeeze": (("jax._src.numpy.lax_numpy", "_squeeze"),),
}
"""Functions of JAX's that ask a symbolic size for an int, by the name that a stand-in has here.

Where there are several places, not every version of JAX has each.
"""
_ANYWHERE: dict[tuple[str, str], Any] = {}
"""Replacements of names in JAX's modules, other than functions, while a listener is active."""
_STAND_INS: dict[str, Callable[..., Any]] = {}
_JAX_OWN: dict[str, Callable[..., Any]] = {}
_prepared: set[tuple[str, str]] = set()
PATCHES: Patches = {}


def stands_in(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make the decorated function run in the place of one of JAX's, where a size is symbolic.

    It is called as `function(original, *args, **kwargs)`: with JAX's own function, and only while
    somebody listens to the scope of a dim that is among the arguments or their shapes.

    Args:
        name: One of the names in `_LIBRARY`.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        assert name in _LIBRARY
        assert name not in _STAND_INS
        _STAND_INS[name] = function
        return function

    return decorate


def run_with_names(function: Callable[..., Any], **names: Any) -> Callable[..., Any]:
    """A copy of one of JAX's functions in which some global names mean something else."""
    return copied(function, {**function.__globals__, **names})


def _call_of_stand_in(*args: Any, **kwargs: Any) -> Any:
    # It runs with the globals of a module of JAX's, and finds nothing of ours there.
    from shapeexec._compat.dims.stand_ins import run_stand_in  # noqa: PLC0415 - see above

    return run_stand_in("place", *args, **kwargs)


@dataclasses.dataclass(frozen=True)
class StandInCall:
    """A call, while a function was traced, of a function of JAX's that has a stand-in.

    Attributes:
        place: The function, `name@module.function`.
        frames: The user's code that led there, innermost first: code and offset of each frame.
        dims: Per leaf of the arguments its dims, or the int or dim that it is.
        answers: The results of `is_symbolic` in the stand-in, in order; None: JAX's own function
            ran.
    """

    place: str
    frames: tuple[tuple[types.CodeType, int], ...]
    dims: tuple[tuple[Any, ...], ...]
    answers: list[bool] | None


class Replay:
    """The calls to run stand-ins for where all sizes are ints; its identity keys JAX's caches."""

    def __init__(self, calls: Iterable[StandInCall], evaluate: Callable[[Any], int]) -> None:
        self._answers: dict[Any, list[list[bool] | None]] = {}
        for call in calls:
            dims = tuple(tuple(map(evaluate, leaf)) for leaf in call.dims)
            of_key = self._answers.setdefault((call.place, call.frames, dims), [])
            of_key.append(call.answers)

    def answers(self, *call: Any) -> list[bool] | None:
        """Those of the call that this one repeats; None: JAX's own function ran, or it is new.

        JAX traces the body of a loop once or more. Where one place has several calls that are
        alike at these sizes, they follow in order, and the last one stands for further ones.
        """
        found = self._answers.get(call)
        if found is None:
            return None
        return found.pop(0) if len(found) > 1 else found[0]


current_replay = jax.make_user_context(None)
running = threading.local()
"""Of each thread: `answer`, for the stand-in that runs; `calls`, where it traces symbolically."""


def run_stand_in(place: str, *args: Any, **kwargs: Any) -> Any:
    """The replacement of JAX's function at `name@module.function` while a listener is active."""
    original = _JAX_OWN[place]
    replay, calls = current_replay.value, getattr(running, "calls", None)
    dims = tuple(map(_sizes_in, tree_util.tree_leaves((args, kwargs))))
    heard = next((dim for leaf in dims for dim in leaf if is_listened_to(dim)), None)
    if heard is None and replay is None and calls is None:
        return original(*args, **kwargs)
    frames = _user_frames()
    if heard is not None:
        answers: list[bool] | None = []
        LISTENING[id(heard.scope)].calls.append(StandInCall(place, frames, dims, answers))
        answer = functools.partial(_recorded, answers)
    elif replay is not None:
        answers = replay.answers(place, frames, dims)
        answer = functools.partial(next, iter(answers or ()))
    else:
        answers, answer = None, None
        if calls is not None:
            calls.append(StandInCall(place, frames, dims, None))
    if answers is None:
        return original(*args, **kwargs)
    before = getattr(running, "answer", None)
    running.answer = answer
    try:
        return _STAND_INS[place.partition("@")[0]](original, *args, **kwargs)
    finally:
        running.answer = before


def is_symbolic(dim: Any) -> bool:
    """Whether a size is symbolic; for stand-ins also while they are replayed at int sizes."""
    return running.answer(isinstance(dim, _DimExpr))


def _recorded(answers: list[bool], answer: bool) -> bool:  # noqa: FBT001 - called as `answer(x)`
    answers.append(answer)
    return answer


def _sizes_in(leaf: Any) -> tuple[Any, ...]:
    if isinstance(leaf, _DimExpr | int):
        return (leaf,)
    dims = getattr(leaf, "shape", ())
    return dims if isinstance(dims, tuple) else ()


_TRACERS = (
    os.path.join(OWN_DIR, "shape", "_attempt.py"),
    os.path.join(OWN_DIR, "checking", "_check.py"),
)


def _user_frames() -> tuple[tuple[types.CodeType, int], ...]:
    """The frames of user code that run, innermost first, as far as they are of one trace."""
    found = []
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename not in _TRACERS:
        code = frame.f_code
        if origin_of(code.co_filename, code.co_name) == "user":
            found.append((code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def prepare_stand_ins() -> None:
    """Add patches for the modules of JAX that are loaded by now: some are only on demand.

    A function keeps its identity, and gets the code of another: so it is found by whatever name it
    was imported, and beneath `jax.jit`.
    """
    for name, places in _LIBRARY.items():
        for module, function in places:
            if name not in _STAND_INS or (module, function) in _prepared:
                continue
            found = getattr(sys.modules.get(module), function, None)
            if found is None:
                continue
            _prepared.add((module, function))
            inner, place = inspect.unwrap(found), f"{name}@{module}.{function}"
            _JAX_OWN[place] = copied(inner, inner.__globals__)
            own = _call_of_stand_in.__code__
            consts = tuple(place if const == "place" else const for const in own.co_consts)
            PATCHES[inner, "__code__"] = (own.replace(co_consts=consts), inner.__code__)
    for (module, name), meaning in _ANYWHERE.items():
        if (module, name) not in _prepared and module in sys.modules:
            _prepared.add((module, name))
            owner = sys.modules[module]
            PATCHES[owner, name] = (meaning, vars(owner).get(name))


def _length(x: Any) -> Any:
    """`len` of an array whose first axis has a symbolic size is that size."""
    dims = getattr(x, "shape", ())
    return dims[0] if dims and isinstance(dims[0], _DimExpr) else len(x)


def _set_of_sizes(items: Iterable[Any] = ()) -> Any:
    """The distinct ones of some sizes: dims are compared by `==`, since they have no hash."""
    items = [*items]
    if not any(map(is_listened_to, items)):
        return set(items)
    found: list[Any] = []
    for item in items:
        if not any(item == other for other in found):
            found.append(item)
    return found


def _concrete_or_number(kind: Any, value: Any, context: str = "") -> Any:
    """`core.concrete_or_error` of `rcond`, which is `len(x)` times a constant."""
    return value if type(value) in number_types else _core.concrete_or_error(kind, value, context)


_ANYWHERE.update(
    {
        ("flax.core.lift", "set"): _set_of_sizes,  # `nn.scan`, `nn.RNN` and `nn.vmap`
        ("jax._src.numpy.hijax", "len"): _length,
        ("jax._src.numpy.lax_numpy", "len"): _length,
        ("jax._src.numpy.polynomial", "len"): _length,
        ("jax._src.numpy.polynomial", "core"): ModuleWith(
            _core, concrete_or_error=_concrete_or_number
        ),
        ("jax._src.numpy.polynomial", "lax"): ModuleWith(jax.lax, asarray=jnp.asarray),
    }
)
