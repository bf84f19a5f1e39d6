"""Entries of our own in JAX's compilation cache on disk, where a process has one.

JAX decides where it is, how large it may grow and what is thrown out. What an entry holds is for
the callers to say: it may be damaged, as JAX does not write a file at once.
"""

# The functions that this takes of JAX are private, and have no types.
# pyright: reportPrivateUsage=false
# pyright: reportUnknownMemberType=false

import contextlib
from typing import Any, cast

from jax._src import compilation_cache as _cache
from jax._src import config as _config
from jax.extend import backend as _backend


def compilation_cache() -> Any:
    """JAX's compilation cache on disk; None if this process has none."""
    # JAX then reads each entry as a compiled program, and compares it with another one.
    if _config.compilation_cache_check_contents.value:
        return None
    with contextlib.suppress(Exception):  # as where its folder is nowhere
        device = cast(Any, _backend).get_backend()
        return _cache._get_cache(device) if _cache.is_cache_used(device) else None
    return None


def entry_of(cache: Any, name: str) -> bytes | None:
    """The bytes that an entry of `compilation_cache` holds; None if there is no such entry."""
    with contextlib.suppress(Exception):  # a folder that cannot be read is like an empty one
        return cache.get(name)
    return None


def add_entry(cache: Any, name: str, *, content: bytes) -> None:
    """Add an entry to `compilation_cache`, if it can be written and there is none of this name."""
    with contextlib.suppress(Exception):  # JAX warns where it cannot write its own
        cache.put(name, content)
