"""State that waits for threads of the parent is reset in a forked child, which has none of them.

Locks that are held for a few instructions only are not reset, as in JAX and Python.
"""

import os
import weakref
from typing import Protocol

from shapeexec import _compat
from shapeexec._errors import ConfigError


class Forked(Protocol):
    """State that other threads may hold for a long time."""

    def forked(self) -> None:
        """Forget the other threads; called in the child by its only thread."""
        ...


_HELD: weakref.WeakSet[Forked] = weakref.WeakSet()


def tell_of_forks(held: Forked) -> None:
    """Call `held.forked()` in each child process that is forked while it lives."""
    _HELD.add(held)


_children: set[int] = set()  # this process, if JAX ran in its parent before the fork


def check_may_make(what: str) -> None:
    """Raise where XLA would wait forever for threads that only the parent has.

    Raises:
        ConfigError: This process was forked when JAX had started its back ends.
    """
    if os.getpid() in _children:
        raise ConfigError(
            f"{what} cannot be made in a process that was forked after JAX had started.",
            got=f"process {os.getpid()}",
            why="XLA would wait forever for threads that only its parent has",
            fix='multiprocessing.get_context("spawn"), or fork before the first call of JAX',
        )


def _in_child() -> None:
    if _compat.has_devices():
        _children.add(os.getpid())
    for held in list(_HELD):
        held.forked()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_in_child)
