"""The machine and the versions that a figure was measured with; no figure is published without.

The benchmark decides what is measured.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import contextlib
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax


def machine(optional: Sequence[str] = ()) -> dict[str, Any]:
    """The machine, and the versions of the software that ran.

    Args:
        optional: Distributions whose versions are included if they are installed.
    """
    versions = {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
    for name in optional:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "load": round(os.getloadavg()[0], 2),
        "device": jax.devices()[0].device_kind,
        "python": platform.python_version(),
        **versions,
        "shapeexec": _own_version(),
    }


def cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _own_version() -> str:
    import shapeexec  # noqa: PLC0415 - the package is still being imported where this is

    return shapeexec.__version__


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def resident_bytes() -> int:
    """The memory of this process that is in use now, in bytes; 0 where it is unknown."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
