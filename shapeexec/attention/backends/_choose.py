"""Which back end runs a pass of a call: the one that is named, or the first that does not refuse.

The forward and the backward pass may be run by different ones: what passes between them, the
output and the log-sum-exp, means the same to all.

A back end is imported when it is first asked for. Each has a module of its name in this package,
whose `backend` is a `Backend`.
"""

import dataclasses
import functools
import importlib

from shapeexec._errors import BackendError, ConfigError
from shapeexec.attention.backends import _device
from shapeexec.attention.backends._base import Backend, Signature
from shapeexec.attention.backends._diagonal import diagonal_of
from shapeexec.attention.masks import Mask

IMPLEMENTATIONS = ("mosaic_gpu", "triton", "mosaic_tpu", "cudnn", "xla")
"""The names of all back ends."""

_BY_PLATFORM: dict[str, tuple[str, ...]] = {
    "cuda": ("mosaic_gpu", "triton"),
    "rocm": ("triton",),
    "tpu": ("mosaic_tpu",),
}
"""What is asked first on a platform; then `xla`, which runs anywhere."""


@dataclasses.dataclass(frozen=True)
class Faster:
    """Calls that another back end makes faster than the first of the platform, as was measured.

    Attributes:
        name: The back end's.
        capability: The compute capability of the GPU.
        is_backward: Which pass.
        kinds: What the mask leaves at these sizes; see `Diagonal.kind`.
        head_sizes: Of queries and values alike.
        shortest: The least T and S: a query or two is another matter than what was measured.
    """

    name: str
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


_DENSE = frozenset({"full", "causal"})
_MEASURED = frozenset({64, 128})
_FASTER = (
    Faster("cudnn", (9, 0), is_backward=False, kinds=_DENSE, head_sizes=frozenset({64})),
    Faster("cudnn", (9, 0), is_backward=True, kinds=_DENSE | {"band"}, head_sizes=_MEASURED),
)
"""Asked before all others. The figures are in docs/attention.md."""


def candidates(
    signature: Signature, mask: Mask, platform: str, capability: tuple[int, int] | None
) -> tuple[str, ...]:
    """Who is asked to run a call that names nobody, the best first.

    Args:
        signature: What is static about the call, the pass too.
        mask: Its mask, whose arrays may be traced.
        platform: Where it is to run.
        capability: The compute capability of the GPU; None: there is none.
    """
    on_gpu = platform == "cuda"
    band = diagonal_of(mask, signature.query_size, signature.key_size) if on_gpu else None
    faster = (
        entry.name
        for entry in _FASTER
        if band is not None and entry.covers(signature, band.kind, capability)
    )
    return (*faster, *_BY_PLATFORM.get(platform, ()), "xla")


def choose(name: str | None, signature: Signature, mask: Mask, platform: str) -> Backend:
    """The back end for one pass of a call.

    Args:
        name: That of a back end; None: the first that can run the call.
        signature: What is static about the call, the pass too.
        mask: Its mask, whose arrays may be traced.
        platform: Where it is to run: `"cpu"`, `"cuda"`, `"rocm"`, `"tpu"`.

    Raises:
        BackendError: The one that is named refuses, or all do.
    """
    if name is None:
        capability = _device.compute_capability() if platform == "cuda" else None
        names = candidates(signature, mask, platform, capability)
    else:
        names = (name,)
    reasons = {}
    for candidate in names:
        backend = load(candidate)
        reason = backend.refuses(signature, mask, platform)
        if reason is None:
            return backend
        reasons[candidate] = reason
    told = f"implementation={name!r} cannot" if name else "no back end can"
    what = "make the gradient of" if signature.is_backward else "run"
    raise BackendError(
        f"{told} {what} this attention.",
        got=f"{signature.dtype} query {_shape(signature)} on {platform}, {mask!r}",
        why="; ".join(f"{candidate} because {reason}" for candidate, reason in reasons.items()),
        fix="leave implementation= out" if name else 'convert to float32 and name "xla"',
    )


def check_implementation(name: str | None) -> None:
    """Check that a back end has this name.

    Raises:
        ConfigError: None has.
    """
    if name is not None and name not in IMPLEMENTATIONS:
        told = ", ".join(f'"{known}"' for known in IMPLEMENTATIONS)
        raise ConfigError(
            f"implementation={name!r} is not known.",
            fix=f"leave implementation= out, or name one of {told}",
        )


@functools.cache
def load(name: str) -> Backend:
    """The back end of this name, imported now if it was not before."""
    return importlib.import_module(f"shapeexec.attention.backends.{name}").backend


def _shape(signature: Signature) -> str:
    shape = (signature.batch, signature.query_size, signature.query_heads, signature.head_size)
    return f"[{', '.join(map(str, shape))}]"
