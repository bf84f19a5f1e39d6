"""Files of a directory of saved graphs: written whole or not at all, read with suspicion.

A graph is two files under its fingerprint: `.graph`, the program as JAX serializes it, and `.json`,
with the parts of its fingerprint, and the length and digest of the program. A third one,
`.exported`, is the program before XLA compiled it, if `portable=True`. So two processes that save
at once write different files, or equal ones. Nothing is unpickled or run here.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from shapeexec._errors import ConfigError

MANIFEST = "manifest.json"
COMPILED, EXPORTED = ".graph", ".exported"
FORMAT = 1
_MOST_JSON = 64 * 2**20  # bytes; what is larger is not ours
_MOST_TRIES = 8


class DamagedError(Exception):
    """A file is not what was written."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A saved graph: the content of its JSON file.

    Attributes:
        fingerprint: Its name.
        name: The name of its program, `shapeexec_score_b4_s64`.
        parts: See `Parts`.
        files: By suffix the length of a file in bytes, and its SHA-256 in hexadecimal digits.
        devices: The ids of the devices on which it runs.
        row: The graph as `run.graphs` tells of it.
    """

    fingerprint: str
    name: str
    parts: Mapping[str, Mapping[str, str]]
    files: Mapping[str, tuple[int, str]]
    devices: tuple[int, ...]
    row: Mapping[str, Any]

    @property
    def is_exported(self) -> bool:
        """Whether the program is there as it was before XLA compiled it."""
        return EXPORTED in self.files


def entry_of(payloads: Mapping[str, bytes], **fields: Any) -> Entry:
    """The entry of a program.

    Args:
        payloads: By suffix what its files hold.
        **fields: Those of `Entry` that do not follow from it.
    """
    files = {
        suffix: (len(payload), hashlib.sha256(payload).hexdigest())
        for suffix, payload in payloads.items()
    }
    return Entry(files=files, **fields)


def write_graph(directory: Path, entry: Entry, *, payloads: Mapping[str, bytes]) -> None:
    """Write a graph; its JSON last, because a graph without JSON is ignored.

    XLA does not write the same bytes twice. If two processes save one graph at once, its files may
    come from both, so each process checks at the end that they belong together.

    Raises:
        OSError: It cannot be written; what was there stays.
    """
    for _ in range(_MOST_TRIES):
        for suffix, payload in payloads.items():
            _write(directory / f"{entry.fingerprint}{suffix}", payload)
        write_json(directory / f"{entry.fingerprint}.json", dataclasses.asdict(entry))
        if is_whole(directory, entry.fingerprint):
            return


def is_whole(directory: Path, name: str, *, is_exported: bool = False) -> bool:
    """Whether all files of a graph are there, and are what was written.

    Args:
        directory: Where.
        name: Its fingerprint.
        is_exported: Whether the exported program has to be among them.
    """
    try:
        entry = read_entry(directory / f"{name}.json")
        for suffix in entry.files:
            read_graph(directory, entry, suffix=suffix)
    except (DamagedError, OSError):
        return False
    return entry.is_exported or not is_exported


def read_exported(directory: Path, name: str) -> bytes | None:
    """The exported program of a graph, as it was written; None: a whole one is not there."""
    try:
        entry = read_entry(directory / f"{name}.json")
        return read_graph(directory, entry, suffix=EXPORTED) if entry.is_exported else None
    except (DamagedError, OSError):
        return None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write values as JSON, with a digest of their own.

    Raises:
        OSError: It cannot be written; what was there stays.
    """
    own = {"format": FORMAT, "content": content}
    text = json.dumps({**own, "sha256": _digest_of(own)}, indent=1, allow_nan=False)
    _write(path, text.encode())


def read_json(path: Path) -> Mapping[str, Any]:
    """What `write_json` wrote.

    Raises:
        DamagedError: `write_json` did not write that.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(_MOST_JSON + 1)
    try:
        read: Any = json.loads(data.decode()) if len(data) <= _MOST_JSON else None
        own: dict[str, Any] = {"format": read["format"], "content": read["content"]}
        is_whole = read["format"] == FORMAT and read["sha256"] == _digest_of(own)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedError(f"{path.name} is damaged") from error
    if not is_whole or not isinstance(read["content"], dict):
        raise DamagedError(f"{path.name} is damaged, or of another format")
    return cast(dict[str, Any], read["content"])


def read_entry(path: Path) -> Entry:
    """The entry of a graph.

    Args:
        path: Its JSON file.

    Raises:
        DamagedError: The file is not an entry.
        OSError: It cannot be read.
    """
    content = read_json(path)
    if content.keys() != _FORMS.keys() or not all(_FORMS[k](x) for k, x in content.items()):
        raise DamagedError(f"{path.name} is of another format")
    files = {suffix: (length, sha256) for suffix, (length, sha256) in content["files"].items()}
    fields: dict[str, Any] = {**content, "files": files, "devices": tuple(content["devices"])}
    entry = Entry(**fields)
    if entry.fingerprint != path.stem:
        raise DamagedError(f"{path.name} has the content of another file")
    return entry


def read_graph(directory: Path, entry: Entry, *, suffix: str = COMPILED) -> bytes:
    """The program of a graph, as it was written.

    Args:
        directory: Where.
        entry: The graph; it has a file of this suffix.
        suffix: Which of its files.

    Raises:
        DamagedError: The file has other content.
        OSError: It cannot be read.
    """
    path, (length, sha256) = directory / f"{entry.fingerprint}{suffix}", entry.files[suffix]
    with path.open("rb") as file:
        payload = file.read(length + 1)
    if len(payload) != length or hashlib.sha256(payload).hexdigest() != sha256:
        raise DamagedError(f"{path.name} is damaged")
    return payload


def read_entries(directory: Path) -> tuple[dict[str, Entry], list[str]]:
    """The entries by fingerprint, and the reasons why other files cannot be read."""
    entries: dict[str, Entry] = {}
    reasons: list[str] = []
    for path in sorted(directory.glob("*.json")):
        if path.name == MANIFEST:
            continue
        try:
            entries[path.stem] = read_entry(path)
        except (DamagedError, OSError) as error:
            reasons.append(str(error))
    return entries, reasons


def checked(directory: Any, *, is_made: bool) -> Path:
    """The absolute path of a directory; made if it is missing and may be.

    Raises:
        ConfigError: It is not a directory, or cannot be made.
    """
    try:
        path = Path(directory)
        if is_made:
            path.mkdir(parents=True, exist_ok=True)
        is_there = path.is_dir()
    except (TypeError, OSError) as error:
        raise unusable(directory, error) from error
    if not is_there:
        raise ConfigError(
            f"directory={str(directory)!r} is not a directory.",
            option="directory",
            fix="the directory that `run.save` wrote",
        )
    return path.absolute()  # graphs are read later, when the process may work elsewhere


def unusable(directory: Any, error: Exception) -> ConfigError:
    """The error for a directory that cannot be read or written."""
    return ConfigError(
        f"directory={str(directory)!r} cannot be used.",
        option="directory",
        why=f"{type(error).__name__}: {error}",
        fix="a directory with room on its disk that this process may read and write",
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_parts(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(group, dict) and all(map(_is_text, cast(Any, group).values()))
        for group in cast(Any, value).values()
    )


def _are_files(value: Any) -> bool:
    files = cast(dict[str, Any], value if isinstance(value, dict) else {})
    return files.keys() in ({COMPILED}, {COMPILED, EXPORTED}) and all(map(_is_file, files.values()))


def _is_file(value: Any) -> bool:
    return isinstance(value, list) and [*map(type, cast(Any, value))] == [int, str]


_FORMS: Mapping[str, Callable[[Any], bool]] = {
    "fingerprint": _is_text,
    "name": _is_text,
    "parts": _are_parts,
    "files": _are_files,
    "devices": lambda value: isinstance(value, list) and all(map(_is_size, cast(Any, value))),
    "row": lambda value: isinstance(value, dict),
}
"""By field of `Entry` a check of its JSON value: another program may have written the file."""


def _digest_of(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _write(path: Path, data: bytes) -> None:
    """Replace a file by one with this content; after a crash it has the old one or the new one."""
    temporary = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:  # an interrupt, too, leaves no file behind
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync(path.parent)


def _sync(directory: Path) -> None:
    """Write the names of a directory to the disk, if the system supports it."""
    with contextlib.suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
