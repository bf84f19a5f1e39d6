"""The file that keeps tilings which were measured: where it is, and what it holds.

It is a cache: a file that is missing, damaged or of another machine costs speed and nothing else.
Which call has which tiling is up to `_tuning`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import dataclasses
import errno
import json
import os
import platform as _platform
import sys
import uuid
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import jax

from shapeexec.attention.backends._base import Tiling

VARIABLE = "SHAPEEXEC_TUNING"
"""The environment variable with the path of the file; empty: there is none."""

_FORMAT = "shapeexec tilings, 1"
_UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""What reading and decoding a file of anything may raise."""


@dataclasses.dataclass(frozen=True)
class Place:
    """The calls that a kept tiling is for.

    Attributes:
        backend: The back end's name.
        is_backward: Whether it is the backward pass.
        mask: Its kind at the call's sizes: `full`, `causal`, `band`, or `other`.
        head_size, value_size, dtype: Those of the call.
        most_queries, most_keys: T and S, each up to this power of 2 and above the one before.
    """

    backend: str
    is_backward: bool
    mask: str
    head_size: int
    value_size: int
    dtype: str
    most_queries: int
    most_keys: int


@dataclasses.dataclass(frozen=True)
class KeptRow:
    """One tiling that was measured to gain.

    Attributes:
        place: The calls that it is for.
        tiling: What was best.
        gain: The time of the back end's own tiling by that of this one.
    """

    place: Place
    tiling: Tiling
    gain: float


def path() -> Path | None:
    """Where the file is: as the variable says, else in the user's folder for caches; or nowhere."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named) if named else None
    folder = os.environ.get("XDG_CACHE_HOME")
    try:
        home = Path(folder) if folder else Path.home() / ".cache"
    except RuntimeError:  # nobody's home
        return None
    return home / "shapeexec" / "tuning.json"


def machine(platform: str) -> dict[str, str] | None:
    """What measurements hold for: the device, and the versions of JAX and of this library.

    None if there is no such device here, as where a program is lowered for another machine.
    """
    try:
        devices = cast(Any, jax).local_devices(backend=platform)
    except RuntimeError:  # JAX has no such back end
        return None
    return {
        "device": devices[0].device_kind,
        "processor": _processor() if platform == "cpu" else "",
        "jax": jax.__version__,
        "shapeexec": sys.modules[__name__.partition(".")[0]].__version__,
    }


def rows_here(path: Path, platform: str) -> tuple[tuple[Place, Tiling], ...]:
    """The tilings that were kept on this machine; none, and a warning, if the file is damaged."""
    here = machine(platform)
    if here is None:
        return ()
    try:
        found = _read(path) if path.exists() else []
        return tuple((row.place, row.tiling) for where, row in found if where == here)
    except _UNREADABLE as error:
        warnings.warn(
            f"shapeexec: the tuned tilings of attention cannot be read: {_told(error)}\n"
            f"  Where: {path}\n"
            "  Why:   without them attention takes its own; results are the same\n"
            "  Fix:   delete the file, or make it anew: python -m shapeexec tune attention",
            RuntimeWarning,
            stacklevel=2,
        )
        return ()


def keep(path: Path, platform: str, *, rows: Iterable[KeptRow], measured: Iterable[Place]) -> None:
    """Keep tilings of this machine beside those of others.

    Args:
        path: The file; its folder is made.
        platform: Of the device.
        rows: What gained.
        measured: All places that were measured: what was kept of them before is dropped.

    Raises:
        OSError: The file cannot be written.
    """
    here, gone = machine(platform), set(measured)
    try:
        found = _read(path) if path.exists() else []
    except _UNREADABLE:  # of a damaged file nothing is worth keeping
        found = []
    others = [(where, row) for where, row in found if where != here or row.place not in gone]
    every = [*others, *((here, row) for row in rows)]
    content = [{"machine": where, **dataclasses.asdict(row)} for where, row in every]
    text = json.dumps({"format": _FORMAT, "rows": content}, indent=1) + "\n"
    check(path)
    # Whole or not at all: another process may read it meanwhile. `tempfile` would make a file that
    # nobody else may read, and a file in a shared folder is for all.
    part = path.with_name(f".tuning-{uuid.uuid4().hex}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def check(path: Path) -> None:
    """Make the folder of the file.

    Raises:
        OSError: No file can be written there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        # `tune` makes a ConfigError of each OSError here.
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not path.is_file():  # such as /dev/null, which would be replaced
        # As above.
        raise OSError(errno.EINVAL, "it is not a regular file")
    if not os.access(path.parent, os.W_OK):
        # As above.
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _read(path: Path) -> list[tuple[Any, KeptRow]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if content["format"] != _FORMAT:
        # `rows_here` warns of it: see `_UNREADABLE`.
        raise ValueError(f"it is of the format {content['format']!r:.40}")
    return [(dict(row["machine"]), _row(row)) for row in content["rows"]]


def _row(row: Mapping[str, Any]) -> KeptRow:
    place, tiling = Place(**row["place"]), row["tiling"]
    for field in dataclasses.fields(place):
        value = getattr(place, field.name)
        if type(value) is not field.type:
            # `rows_here` warns of it: see `_UNREADABLE`.
            raise ValueError(f"{field.name} is {value!r:.40}")
    queries, keys = sides = tiling["tile"]
    if {type(side) for side in sides} != {int}:
        # `rows_here` warns of it: see `_UNREADABLE`.
        raise ValueError(f"tile is {sides!r:.40}")
    piece = tiling["piece"]
    return KeptRow(
        place, Tiling((queries, keys), None if piece is None else int(piece)), float(row["gain"])
    )


def _told(error: Exception) -> str:
    if isinstance(error, OSError) or type(error) is ValueError:
        return str(error)
    return "it holds something else"


def _processor() -> str:
    """The model of the processor: JAX calls every CPU `cpu`."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:  # no Linux
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{named[0] if named else _platform.processor()}, {os.cpu_count()} cores"
