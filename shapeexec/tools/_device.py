"""The option `--device`: the device, among those JAX sees, that a command runs on.

The command decides what runs there.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import argparse
import contextlib
from collections.abc import Generator
from typing import Any

import jax

from shapeexec import _compat
from shapeexec._errors import ConfigError


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add `--device` to a command.

    Args:
        parser: The command's parser.
    """
    parser.add_argument("--device", metavar="NAME", help="cpu, gpu, tpu, or gpu:1; default JAX's")


def device_of(name: str | None) -> Any:
    """The device of a name, such as `gpu` or `gpu:1`; None: JAX's default one.

    Raises:
        ConfigError: There is none.
    """
    if name is None:
        return _compat.default_device()
    platform, colon, number = name.partition(":")
    try:
        found = jax.devices(platform)
    except RuntimeError:  # JAX has no such platform here
        found = []
    index = int(number) if number.isdecimal() else -1 if colon else 0
    if 0 <= index < len(found):
        return found[index]
    known = [f"{device.platform}:{i}" for i, device in enumerate(jax.devices())]
    here = list(dict.fromkeys([*known, *(f"cpu:{i}" for i, _ in enumerate(jax.devices("cpu")))]))
    raise ConfigError(
        f"--device {name}: there is no such device.",
        option="device",
        got=f"devices {', '.join(here)}",
        fix="one of these, or leave --device out",
    )


@contextlib.contextmanager
def on_device(name: str | None) -> Generator[Any]:
    """Run what is inside on a device.

    Args:
        name: See `device_of`.

    Raises:
        ConfigError: There is none.
    """
    device = device_of(name)
    if name is None:
        yield device
        return
    with jax.default_device(device):
        yield device
