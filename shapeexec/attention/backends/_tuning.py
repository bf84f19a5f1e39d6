"""Which tiling a call has: one that was measured and kept for such calls, or its back end's own.

Back ends say what they can run (`TunableBackend`); how tilings are kept is in `_kept`, and how they
are measured is known to the tool.
"""

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Generator
from typing import Any

from shapeexec.attention.backends import _kept
from shapeexec.attention.backends._base import Backend, Signature, Tiling, TunableBackend
from shapeexec.attention.backends._diagonal import diagonal_of
from shapeexec.attention.backends._kept import Place
from shapeexec.attention.masks import Mask


class Observer:
    """Remembers who asked for a tiling, in the order of the passes.

    Attributes:
        asked: Of each pass its place, and the tilings that its back end can run, its own first.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[Place, tuple[Tiling, ...]]] = []


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Tilings by place: a static argument of what is lowered, so that caches tell them apart.

    Attributes:
        rows: The tilings that were kept; of all other calls the back end's own is taken.
        observer: Told of each pass; it makes the tuning another one than all before.
    """

    rows: tuple[tuple[Place, Tiling], ...] = ()
    observer: Observer | None = None


_LOCAL: contextvars.ContextVar[Tuning | None] = contextvars.ContextVar("tuning", default=None)


def tuning(platform: str) -> Tuning:
    """The tuning of programs that are lowered now for this platform."""
    local = _LOCAL.get()
    return _of_file(_kept.path(), platform) if local is None else local


@contextlib.contextmanager
def using(tuning: Tuning) -> Generator[None]:
    """Lower with this tuning for a while, whatever the file holds."""
    token = _LOCAL.set(tuning)
    try:
        yield
    finally:
        _LOCAL.reset(token)


def forget() -> None:
    """Read the file again when it is needed next; programs that were compiled stay as they are."""
    _of_file.cache_clear()


def tiling_of(backend: Backend, signature: Signature, *, mask: Mask, tuning: Tuning) -> Tiling:
    """The tiling of a pass of a call.

    Args:
        backend: What runs it.
        signature: The static part of the call and the pass.
        mask: Its mask; the arrays may be traced.
        tuning: What was measured.
    """
    if not isinstance(backend, TunableBackend) or tuning == Tuning():
        return Tiling(backend.tile(signature, mask))
    place, able = place_of(backend.name, signature, mask=mask), backend.tilings(signature, mask)
    if tuning.observer is not None:
        tuning.observer.asked.append((place, able))
    kept = dict(tuning.rows).get(place)
    return kept if kept is not None and kept in able else able[0]


def place_of(name: str, signature: Signature, *, mask: Mask) -> Place:
    """Where a call's tiling is kept.

    Args:
        name: The back end's.
        signature: The static part of the call and the pass.
        mask: Its mask; the arrays may be traced.
    """
    band = diagonal_of(mask, queries=signature.query_size, keys=signature.key_size)
    return Place(
        backend=name,
        is_backward=signature.is_backward,
        mask="other" if band is None else band.kind,
        head_size=signature.head_size,
        value_size=signature.value_size,
        dtype=signature.dtype,
        most_queries=_power_of_2(signature.query_size),
        most_keys=_power_of_2(signature.key_size),
    )


def _power_of_2(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()


@functools.lru_cache(maxsize=16)
def _of_file(path: Any, platform: str) -> Tuning:
    return Tuning() if path is None else Tuning(_kept.rows_here(path, platform))
