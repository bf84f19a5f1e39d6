"""Whether JAX may trace and lower the body of a graph: once, when the graph is made.

Later calls go through JAX's fast path, which compares tree, shapes, dtypes, configuration and
shardings with the graph's. If they differ JAX would trace the body again, or lower it again for
other devices. Both are refused here, before anything compiles or runs, so that the call is planned
under another key. See docs/adr/0018.
"""

import contextlib
import threading
from collections.abc import Generator
from typing import Any

import jax

from shapeexec import _compat


class SignatureChanged(Exception):
    """A graph was called with arguments of another signature: the call needs another key."""


_local = threading.local()


@contextlib.contextmanager
def permitted() -> Generator[None]:
    """Within it this thread may trace and lower bodies."""
    outer = getattr(_local, "is_permitted", False)
    _local.is_permitted = True
    try:
        yield
    finally:
        _local.is_permitted = outer


def check_permitted() -> None:
    """Let JAX trace or lower a body only within `permitted`.

    Raises:
        SignatureChanged: Anywhere else.
    """
    if not is_permitted():
        raise SignatureChanged


def is_permitted() -> bool:
    """Whether this thread is within `permitted`."""
    return getattr(_local, "is_permitted", False)


def watch_lowering(tree: Any) -> Any:
    """The arguments of a body; lowering an equation that uses one of them needs permission too."""
    return jax.tree.map(_watched, tree)


# An identity that adds nothing to the program for XLA. Each array has its own, because JAX drops
# unused equations, and arguments with them.
_watched = _compat.new_identity("shapeexec_watched", check_permitted)
