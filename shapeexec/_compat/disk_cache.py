"""Entries of our own in JAX's compilation cache on disk, where a process has one.

JAX decides where it is, how large it may grow and what is thrown out. What an entry holds is for
the callers to say: it may be damaged, as JAX does not write a file at once.
"""

# The functions that this takes of JAX are private, and have no types.
# pyright: reportPrivateUsage=false
# pyright: reportUnknownMemberType=false

import contextlib
import weakref
from collections.abc import Generator
from typing import Any, cast

from jax._src import compilation_cache as _cache
from jax._src import config as _config
from jax.extend import backend as _backend

_failed = weakref.WeakSet[Any]()
"""Caches that raised an error, as after ten seconds in front of a lock that another process has."""


def compilation_cache() -> Any:
    """JAX's compilation cache on disk; None if this process has none, or one that fails."""
    # JAX reads each entry as a compiled program if it checks them.
    is_checked = cast(Any, _config).compilation_cache_check_contents.value
    if is_checked or not _cache.is_persistent_cache_enabled():
        return None
    with contextlib.suppress(Exception):  # as where its folder is nowhere
        found = _cache._get_cache(cast(Any, _backend).get_backend())
        return None if found in _failed else found
    return None


@contextlib.contextmanager
def kept_however_fast() -> Generator[None]:
    """What this thread compiles inside is kept in JAX's compilation cache, if there is one.

    Else a program is not that took less than `jax_persistent_cache_min_compile_time_secs`.
    """
    with cast(Any, _config).persistent_cache_min_compile_time_secs(0.0):
        yield


def entry_of(cache: Any, name: str) -> bytes | None:
    """The bytes that an entry of `compilation_cache` holds; None if there is no such entry."""
    try:
        return cache.get(name)
    except Exception:  # of the file system's or of a cloud's
        _failed.add(cache)
        return None


def add_entry(cache: Any, name: str, *, content: bytes) -> None:
    """Add an entry to `compilation_cache`, if it can be written and there is none of this name."""
    if cache in _failed:
        return
    try:
        cache.put(name, content)
    except Exception:  # JAX warns where it cannot write its own
        _failed.add(cache)
