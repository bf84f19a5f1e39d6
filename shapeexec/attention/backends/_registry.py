"""The back ends there are, and the calls that each is for.

A back end is a folder of its name in this package, whose `backend` is a `Backend`, and one row
here. Its folder is imported when it is first asked for. Whether it can run a call it says itself.
"""

import dataclasses
import functools
import importlib
from typing import Any, Literal

from shapeexec.attention.backends._base import Backend, Signature, TangentBackend

Name = Literal["mosaic_gpu", "triton", "mosaic_tpu", "cudnn", "xla"]


@dataclasses.dataclass(frozen=True)
class Faster:
    """Calls that a back end makes faster than the first of the platform, as was measured.

    Attributes:
        capability: The compute capability of the GPU.
        is_backward: Which pass.
        kinds: What the mask leaves at these sizes; see `Diagonal.kind`.
        head_sizes: Of queries and values alike.
        shortest: The least T and S: a query or two is another matter than what was measured.
    """

    capability: tuple[int, int]
    is_backward: bool
    kinds: frozenset[str]
    head_sizes: frozenset[int]
    shortest: int = 128

    def covers(self, signature: Signature, kind: str, capability: tuple[int, int] | None) -> bool:
        """Whether a call is one of these."""
        return (
            capability == self.capability
            and signature.is_backward == self.is_backward
            and kind in self.kinds
            and signature.head_size == signature.value_size
            and signature.head_size in self.head_sizes
            and min(signature.query_size, signature.key_size) >= self.shortest
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Registration:
    """A back end.

    Attributes:
        name: Its name, and its folder's.
        platforms: Where it is asked to run a call that names nobody; None: anywhere. Of two that
            are, the one in front is asked first.
        faster: Calls for which it is asked before all others. The figures are in
            docs/attention.md.
        makes_tangents: Whether it is a `TangentBackend`.
    """

    name: Name
    platforms: tuple[str, ...] | None
    faster: tuple[Faster, ...] = ()
    makes_tangents: bool = False


_DENSE = frozenset({"full", "causal"})
_FASTER_CUDNN = (
    Faster((9, 0), is_backward=False, kinds=_DENSE, head_sizes=frozenset({64})),
    Faster((9, 0), is_backward=True, kinds=_DENSE | {"band"}, head_sizes=frozenset({64, 128})),
)
REGISTERED = (
    Registration(name="mosaic_gpu", platforms=("cuda",)),
    Registration(name="triton", platforms=("cuda", "rocm")),
    Registration(name="mosaic_tpu", platforms=("tpu",)),
    Registration(name="cudnn", platforms=(), faster=_FASTER_CUDNN),
    Registration(name="xla", platforms=None, makes_tangents=True),
)
IMPLEMENTATIONS = tuple(row.name for row in REGISTERED)
"""The names of all back ends."""
TANGENTS = next(row.name for row in REGISTERED if row.makes_tangents)
"""Who makes derivatives along a direction: they are rare, and one that runs anywhere is enough."""


def load(name: str) -> Backend:
    """The back end of this name, imported now if it was not before."""
    return _load(name)


def load_for_tangents() -> TangentBackend:
    """The back end of `TANGENTS`."""
    return _load(TANGENTS)


@functools.cache
def _load(name: str) -> Any:
    return importlib.import_module(f"shapeexec.attention.backends.{name}").backend
