"""What XLA's operations took, from a trace of `jax.profiler`.

Buckets and graphs are not known here.
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
"""What events of XLA's operations have beside their name, on each kind of device."""
_INSTRUCTION = re.compile(r'^\s*(?:ROOT )?%?([\w.\-]+) = .*metadata=\{op_name="([^"]*)"', re.M)


@contextlib.contextmanager
def traced(directory: Path) -> Generator[None]:
    """Write a trace of what runs inside: without Python's own functions, which would slow it.

    Args:
        directory: Where to.
    """
    options: Any = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(str(directory), profiler_options=options):
        yield


def seconds_by_operation(directory: Path) -> Counter[str]:
    """The seconds of each of XLA's operations in the traces of a directory.

    One that runs others, such as a loop, counts them too.

    Args:
        directory: That of `traced`.
    """
    found: Counter[str] = Counter()
    for file in directory.rglob("*.xplane.pb"):
        data: Any = jax.profiler.ProfileData.from_file(str(file))
        with warnings.catch_warnings():
            # Of Python 3.12, about the types that JAX's extension makes.
            warnings.simplefilter("ignore", DeprecationWarning)
            for plane in data.planes:
                for line in plane.lines:
                    for event in line.events:
                        if any(name == _OPERATION for name, _ in event.stats):
                            found[event.name.removeprefix("end: ")] += event.duration_ns / 1e9
    return found


def sources(hlo: str) -> dict[str, str]:
    """By operation of a compiled program the primitive of JAX that it is for.

    Args:
        hlo: The program's text.
    """
    return {name: path.rpartition("/")[2] for name, path in _INSTRUCTION.findall(hlo)}
