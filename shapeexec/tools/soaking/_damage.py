"""Damages a directory of saved graphs: one function for each kind of failure of files.

`_faults` decides when each kind happens.
"""

import contextlib
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from shapeexec.execution.saving._files import MANIFEST

Damage = Callable[[Path, random.Random], object]
"""A function that damages a directory while other threads may save into it and load from it."""


def truncate(directory: Path, rng: random.Random) -> None:
    """Cut a file short."""
    _change(directory, rng, changed=lambda _, data: data[: int(len(data) * rng.random())])


def flip(directory: Path, rng: random.Random) -> None:
    """Flip one bit of a file."""

    def flipped(_: Path, data: bytes) -> bytes:
        changed = bytearray(data)
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        return bytes(changed)

    _change(directory, rng, changed=flipped)


def mix_up(directory: Path, rng: random.Random) -> None:
    """Replace the content of a file by that of another `Exec`'s file."""

    def foreign(path: Path, data: bytes) -> bytes:
        others = sorted(directory.parent.parent.glob(f"*/*/*{path.suffix}"))
        found = rng.choice(others or [path]).read_bytes()
        return found if found != data else rng.randbytes(100)

    _change(directory, rng, changed=foreign)


def half_write(directory: Path, rng: random.Random) -> None:
    """Leave the directory as if a saver was killed before it renamed its temporary file.

    A new graph's file is missing then; of the manifest the old version stays.
    """
    path = _any_file(directory, rng)
    data = path.read_bytes()
    path.with_name(f".{rng.randbytes(8).hex()}.part").write_bytes(data[: rng.randint(0, len(data))])
    if path.name != MANIFEST:
        path.unlink()


def vanish(directory: Path, rng: random.Random) -> None:
    """Remove the directory."""
    del rng
    shutil.rmtree(directory)


def inflict(damage: Damage, directory: Path, *, rng: random.Random) -> None:
    """Damage a directory, unless another thread has just taken the file away."""
    with contextlib.suppress(FileNotFoundError):
        damage(directory, rng)


def _change(
    directory: Path, rng: random.Random, *, changed: Callable[[Path, bytes], bytes]
) -> None:
    path = _any_file(directory, rng)
    path.write_bytes(changed(path, path.read_bytes()))


def _any_file(directory: Path, rng: random.Random) -> Path:
    found = sorted(path for path in directory.iterdir() if path.suffix != ".part")
    if not found:
        # The operating system's error where another thread has removed the file.
        raise FileNotFoundError(f"no file in {directory}")
    return rng.choice(found)
