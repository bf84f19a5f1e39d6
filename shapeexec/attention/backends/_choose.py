"""Chooses the back end that runs a pass of a call: the named one, or the first that can.

The forward and the backward pass may run on different back ends: the residuals, the output and the
log-sum-exp, have one definition. The table of back ends is in `_registry`.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from shapeexec import _compat
from shapeexec._errors import BackendError, ConfigError
from shapeexec.attention.backends import _device
from shapeexec.attention.backends._base import Backend, Signature, TangentBackend
from shapeexec.attention.backends._diagonal import diagonal_of
from shapeexec.attention.backends._registry import (
    IMPLEMENTATIONS,
    REGISTERED,
    load,
    load_with_tangent,
    refusal_of_version,
)
from shapeexec.attention.masks import Mask

B = TypeVar("B", bound=Backend)


def candidates(
    signature: Signature, mask: Mask, *, platform: str, capability: tuple[int, int] | None
) -> tuple[str, ...]:
    """The names of the back ends to try for a call without `implementation=`, the best first.

    Args:
        signature: The static part of the call and the pass.
        mask: Its mask; the arrays may be traced.
        platform: The platform that the call is lowered for.
        capability: The compute capability of the GPU; None: there is no GPU.
    """
    on_gpu = platform == "cuda"
    band = (
        diagonal_of(mask, queries=signature.query_size, keys=signature.key_size) if on_gpu else None
    )
    faster = (
        name
        for row in REGISTERED
        for calls in row.faster
        if band is not None and calls.covers(signature, band.kind, capability=capability)
        for name in (*calls.after, row.name)
    )
    tried = (row.name for row in REGISTERED if row.is_tried(platform, capability=capability))
    return tuple(dict.fromkeys((*faster, *tried)))


def choose(name: str | None, signature: Signature, *, mask: Mask, platform: str) -> Backend:
    """The back end for the forward or the backward pass of a call.

    Args:
        name: The name of a back end; None: the first candidate that can run the call.
        signature: The static part of the call and the pass.
        mask: Its mask; the arrays may be traced.
        platform: The platform that the call is lowered for: `"cpu"`, `"cuda"`, `"rocm"`, `"tpu"`.

    Raises:
        BackendError: The named back end refuses, or all candidates do.
    """
    if name is None:
        capability = _device.compute_capability() if platform == "cuda" else None
        names = candidates(signature, mask, platform=platform, capability=capability)
    else:
        names = (name,)
    return _first_able(names, load, named=name, signature=signature, mask=mask, platform=platform)


def choose_for_tangent(signature: Signature, mask: Mask, *, platform: str) -> TangentBackend:
    """The back end for the derivative of a call along a direction; see `choose`.

    `implementation=` is ignored: it names the back end of the forward and the backward pass.

    Raises:
        BackendError: Every back end that makes tangents refuses.
    """
    names = tuple(row.name for row in REGISTERED if row.makes_tangents)
    return _first_able(
        names, load_with_tangent, named=None, signature=signature, mask=mask, platform=platform
    )


def _first_able(
    names: Iterable[str],
    load: Callable[[str], B],
    *,
    named: str | None,
    signature: Signature,
    mask: Mask,
    platform: str,
) -> B:
    reasons: dict[str, str] = {}
    for candidate in names:
        reason = refusal_of_version(candidate)
        if reason is None:
            backend = load(candidate)
            reason = backend.refuses(signature, mask, platform=platform)
            if reason is None:
                return backend
        reasons[candidate] = reason
    who = f"implementation={named!r} cannot" if named else "no back end can"
    what = "make the gradient of" if signature.is_backward else "run"
    raise BackendError(
        f"{who} {what} this attention.",
        reasons=reasons,
        where=_compat.describe_line(_compat.user_place()),
        got=f"{signature.dtype} query {_shape(signature)} on {platform}, {mask!r}",
        why="; ".join(f"{candidate} because {reason}" for candidate, reason in reasons.items()),
        fix="leave implementation= out" if named else 'convert to float32 and name "xla"',
    )


def check_implementation(name: str | None) -> None:
    """Check the name of a back end.

    Raises:
        ConfigError: There is no back end of this name.
    """
    if name is not None and name not in IMPLEMENTATIONS:
        known = ", ".join(f'"{one}"' for one in IMPLEMENTATIONS)
        raise ConfigError(
            f"implementation={name!r} is not the name of a back end.",
            option="implementation",
            fix=f"leave implementation= out, or name one of {known}",
        )


def _shape(signature: Signature) -> str:
    shape = (signature.batch, signature.query_size, signature.query_heads, signature.head_size)
    return f"[{', '.join(map(str, shape))}]"
