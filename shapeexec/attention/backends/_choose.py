"""Which back end runs a pass of a call: the one that is named, or the first that does not refuse.

The forward and the backward pass may be run by different ones: what passes between them, the
output and the log-sum-exp, means the same to all.

Which there are is in `_registry`.
"""

from shapeexec._errors import BackendError, ConfigError
from shapeexec.attention.backends import _device
from shapeexec.attention.backends._base import Backend, Signature, TangentBackend
from shapeexec.attention.backends._diagonal import diagonal_of
from shapeexec.attention.backends._registry import (
    IMPLEMENTATIONS,
    REGISTERED,
    TANGENTS,
    load,
    load_for_tangents,
)
from shapeexec.attention.masks import Mask


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
        row.name
        for row in REGISTERED
        if band is not None
        and any(calls.covers(signature, band.kind, capability) for calls in row.faster)
    )
    on_platform = (
        row.name for row in REGISTERED if row.platforms is None or platform in row.platforms
    )
    return (*faster, *on_platform)


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
    raise _refusal(name, signature, mask, platform, reasons)


def choose_for_tangent(signature: Signature, mask: Mask) -> TangentBackend:
    """The back end for a derivative along a direction.

    Raises:
        BackendError: It refuses.
    """
    backend = load_for_tangents()
    reason = backend.refuses(signature, mask, "any")
    if reason is None:
        return backend
    raise _refusal(None, signature, mask, "any platform", {TANGENTS: reason})


def _refusal(
    name: str | None, signature: Signature, mask: Mask, platform: str, reasons: dict[str, str]
) -> BackendError:
    told = f"implementation={name!r} cannot" if name else "no back end can"
    what = "make the gradient of" if signature.is_backward else "run"
    return BackendError(
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


def _shape(signature: Signature) -> str:
    shape = (signature.batch, signature.query_size, signature.query_heads, signature.head_size)
    return f"[{', '.join(map(str, shape))}]"
