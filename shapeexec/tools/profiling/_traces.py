"""Reads the seconds of XLA's operations from a trace of `jax.profiler`.

It knows nothing of buckets and graphs.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import contextlib
import re
import warnings
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import jax

_OPERATION = "hlo_op"
"""The statistic that marks an event as one of XLA's operations, on each kind of device."""
_INSTRUCTION = re.compile(r'^\s*(?:ROOT )?%?([\w.\-]+) = .*metadata=\{op_name="([^"]*)"', re.M)


@contextlib.contextmanager
def traced(directory: Path) -> Generator[None]:
    """Trace the code inside, without Python's functions, whose tracing would slow it down.

    Args:
        directory: The directory to write to.
    """
    options: Any = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(str(directory), profiler_options=options):
        yield


def seconds_by_operation(directory: Path) -> Counter[str]:
    """The seconds of each of XLA's operations in the traces of a directory.

    An operation that runs others, such as a loop, includes their seconds.

    Args:
        directory: The directory given to `traced`.
    """
    found: Counter[str] = Counter()
    for file in directory.rglob("*.xplane.pb"):
        data: Any = jax.profiler.ProfileData.from_file(str(file))
        with warnings.catch_warnings():
            # Python 3.12 warns about the types that JAX's extension makes.
            warnings.simplefilter("ignore", DeprecationWarning)
            for plane in data.planes:
                for line in plane.lines:
                    for event in line.events:
                        if any(name == _OPERATION for name, _ in event.stats):
                            found[event.name.removeprefix("end: ")] += event.duration_ns / 1e9
    return found


def sources(hlo: str) -> dict[str, str]:
    """JAX's primitive for each operation of a compiled program.

    Args:
        hlo: The program's text.
    """
    return {name: path.rpartition("/")[2] for name, path in _INSTRUCTION.findall(hlo)}
