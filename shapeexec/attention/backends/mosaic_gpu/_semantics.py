"""Selects Mosaic's lowering of the kernels: a switch for measurements, not a public option.

JAX's default is the lowering by warpgroup, which infers layouts first. Lowering by lane needs no
inference and takes half the time, but the backward kernels have not run by lane on a GPU, so it is
not the default: docs/adr/0009. The switch is only read when a call is prepared.
"""

import contextlib
import contextvars
import os
from collections.abc import Generator
from typing import Any, Literal

from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec._errors import ConfigError

Semantics = Literal["warpgroup", "lane"]

VARIABLE = "SHAPEEXEC_MOSAIC_GPU_SEMANTICS"
"""The environment variable that sets the lowering for a process, such as a run of all tests."""

_BY_NAME: dict[Semantics, Any] = {
    "warpgroup": plgpu.LoweringSemantics.Warpgroup,
    "lane": plgpu.LoweringSemantics.Lane,
}
_LOCAL: contextvars.ContextVar[Semantics | None] = contextvars.ContextVar("semantics", default=None)


def semantics() -> Semantics:
    """The semantics of kernels that are lowered now.

    Raises:
        ConfigError: The environment variable does not name a lowering.
    """
    named = _LOCAL.get() or os.environ.get(VARIABLE) or "warpgroup"
    if named not in _BY_NAME:
        raise ConfigError(
            f"{VARIABLE}={named!r:.80} is not the name of a way to lower kernels.",
            option=VARIABLE,
            fix=f"leave it out, or {' or '.join(f'{VARIABLE}={one}' for one in _BY_NAME)}",
        )
    return named


@contextlib.contextmanager
def using(semantics: Semantics) -> Generator[None]:
    """Use this lowering inside the block. JAX's caches may still hold kernels lowered before."""
    token = _LOCAL.set(semantics)
    try:
        yield
    finally:
        _LOCAL.reset(token)


def of_sums(semantics: Semantics) -> tuple[Any, ...]:
    """The transforms of f32 sums in shared memory, which a warpgroup stores and TMA copies out.

    By lane, jax 0.12 cannot store an accumulator into contiguous rows.
    """
    if semantics == "warpgroup":
        return ()
    return plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128)


def parameters(semantics: Semantics) -> dict[str, Any]:
    """The arguments for `plgpu.CompilerParams`."""
    return {"lowering_semantics": _BY_NAME[semantics]}
