"""The table of back ends, and the calls that each is preferred for.

To add a back end, add a package of its name here, whose `backend` is a `Backend`; add its name to
`Name`, as type checkers cannot read the table; and add a row to `REGISTERED`. It is imported by
the first call that may run on it. Its method `refuses` decides whether it can run a call.
"""

import dataclasses
import functools
import importlib
from typing import Literal

import jax

from shapeexec import _compat
from shapeexec.attention.backends._base import Backend, Signature, TangentBackend
from shapeexec.attention.backends._device import HOPPER

Name = Literal["mosaic_gpu", "triton", "mosaic_tpu", "cudnn", "xla"]


@dataclasses.dataclass(frozen=True)
class Faster:
    """Calls for which a back end is tried earlier than its row in the table says.

    Attributes:
        capability: The compute capability of the GPU.
        is_backward: Whether the backward pass was measured, or the forward pass.
        kinds: The kinds of mask at the call's sizes; see `Diagonal.kind`.
        head_sizes: Head sizes, the same for queries and values.
        shortest: The least T and S.
        after: The names of back ends that are tried before it.
    """

    capability: tuple[int, int]
    is_backward: bool
    kinds: frozenset[str]
    head_sizes: frozenset[int]
    shortest: int
    after: tuple[str, ...]

    def covers(
        self, signature: Signature, kind: str, *, capability: tuple[int, int] | None
    ) -> bool:
        """Whether a call with a mask of this kind is one of them."""
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
    """A row of the table.

    Attributes:
        name: The name of the back end and of its package.
        platforms: Where it is tried for calls without `implementation=`, in the order of the rows;
            None: on all platforms.
        faster: Calls for which it is tried before all others, but those of `Faster.after`. What was
            measured is in docs/attention_figures.md.
        makes_tangents: Whether it is a `TangentBackend`. Forward-mode derivatives are rare, so one
            back end that runs anywhere suffices.
        newest: The newest compute capability for which it is tried without being named; None: no
            bound. No kernel ran on a newer GPU yet: docs/adr/0030.
        needs: The module of `jax.experimental.pallas` that its kernels use, if JAX has announced
            its removal; without that module the next back end is tried.
    """

    name: Name
    platforms: tuple[str, ...] | None
    faster: tuple[Faster, ...] = ()
    makes_tangents: bool = False
    newest: tuple[int, int] | None = None
    needs: str | None = None

    def is_tried(self, platform: str, *, capability: tuple[int, int] | None) -> bool:
        """Whether calls without `implementation=` try it on such a device."""
        if self.newest is not None and capability is not None and capability > self.newest:
            return False
        return self.platforms is None or platform in self.platforms


_DENSE = frozenset({"full", "causal"})
_FASTER_CUDNN = (
    Faster(
        HOPPER,
        is_backward=False,
        kinds=_DENSE,
        head_sizes=frozenset({64}),
        shortest=2048,
        after=("mosaic_gpu",),
    ),
    Faster(
        HOPPER,
        is_backward=True,
        kinds=_DENSE | {"band"},
        head_sizes=frozenset({64, 128}),
        shortest=2048,
        after=("mosaic_gpu",),
    ),
)
REGISTERED = (
    Registration(name="mosaic_gpu", platforms=("cuda",)),
    Registration(name="triton", platforms=("cuda", "rocm"), newest=HOPPER, needs="triton"),
    Registration(name="mosaic_tpu", platforms=("tpu",)),
    Registration(name="cudnn", platforms=("cuda",), faster=_FASTER_CUDNN),
    Registration(name="xla", platforms=None, makes_tangents=True),
)
IMPLEMENTATIONS = tuple(row.name for row in REGISTERED)
"""The names of all back ends."""


def refusal_of_version(name: str) -> str | None:
    """Why this version of JAX has no such back end; None if it has."""
    needed = next(row.needs for row in REGISTERED if row.name == name)
    if needed is None or _compat.pallas_has(needed):
        return None
    return f"jax {jax.__version__} has no jax.experimental.pallas.{needed}"


@functools.cache
def load(name: str) -> Backend:
    """The back end of this name; its modules are imported by the first call."""
    return importlib.import_module(f"shapeexec.attention.backends.{name}").backend


def load_with_tangent(name: str) -> TangentBackend:
    """The back end of this name, one whose row says that it makes tangents."""
    backend = load(name)
    assert isinstance(backend, TangentBackend), f"{name} has no method `tangent`"
    return backend
