"""Patches JAX while a listener to dims is active, and restores it.

What that is stands in the other modules.
"""

import contextlib
import itertools
import threading
from collections.abc import Callable, Collection, Generator
from typing import Any

from shapeexec._compat.dims import bounds, functions, methods, stand_ins, transposes
from shapeexec._compat.dims.listening import LISTENING, DimListener, Listening
from shapeexec._compat.dims.stand_ins import Replay, StandInCall, current_replay, running

_patch_lock = threading.Lock()
_TABLES = (methods.PATCHES, functions.PATCHES, stand_ins.PATCHES, bounds.PATCHES)


def _patch(*, listening: bool) -> None:
    if listening:
        stand_ins.prepare_stand_ins()
    for (owner, name), (new, original) in itertools.chain(*(table.items() for table in _TABLES)):
        if listening or original is not None:
            setattr(owner, name, new if listening else original)
        else:
            delattr(owner, name)
    for table, primitive, new, original in transposes.TRANSPOSES:
        table[primitive] = new if listening else original


@contextlib.contextmanager
def listen_to_dims(listener: DimListener, scope: Any) -> Generator[list[StandInCall]]:
    """Let `listener` hear and answer all questions to the dims of `scope`, in any thread.

    JAX says False to every `==` that it cannot prove, True to `bool(dim)`, gives a dim a hash that
    no int has, and its symbol as text: each silently picks one branch for all sizes. What JAX's
    core asks with `==` keeps JAX's answer, for it is written for that.

    Gives the calls of functions that have stand-ins, a list that grows.
    """
    calls: list[StandInCall] = []
    before = getattr(running, "calls", None)
    running.calls = calls
    try:
        with _patched(id(scope), Listening(scope, listener, calls)):
            yield calls
    finally:
        running.calls = before


@contextlib.contextmanager
def _patched(key: int, entry: Listening) -> Generator[None]:
    """Keep JAX patched as long as a listener is active."""
    with _patch_lock:
        if not LISTENING:
            _patch(listening=True)
        LISTENING[key] = entry
    try:
        yield
    finally:
        with _patch_lock:
            del LISTENING[key]
            if not LISTENING:
                _patch(listening=False)


@contextlib.contextmanager
def replay_stand_ins(
    calls: Collection[StandInCall], evaluate: Callable[[Any], int]
) -> Generator[None]:
    """In this thread let stand-ins run at known sizes, where they ran at symbolic ones.

    A call is known by the user's code that led to it and by its dims, not by its number: JAX traces
    bodies of loops more than once, and finds others in its caches. An unknown call runs JAX's own
    function. JAX's caches give nothing to what runs here, and take nothing from it to elsewhere.

    Args:
        calls: As `listen_to_dims` gave them.
        evaluate: The size of a dim of theirs.
    """
    if all(call.answers is None for call in calls):
        yield
        return
    replay = Replay(calls, evaluate)
    with _patched(id(replay), Listening(None, None, [])), current_replay(replay):
        yield
