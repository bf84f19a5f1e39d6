"""How Mosaic lowers the kernels: a switch for measurement, not an option of the library.

By warpgroup is JAX's default, which infers layouts first; by lane needs no inference, and lowers
the same kernels in half the time. The backward kernels have not run by lane on a GPU, so it is
not the default: docs/adr/0009. The switch is read where a call is prepared, and nowhere else.
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
"""The environment variable that sets it for a process, such as one of all tests."""

_BY_NAME: dict[Semantics, Any] = {
    "warpgroup": plgpu.LoweringSemantics.Warpgroup,
    "lane": plgpu.LoweringSemantics.Lane,
}
_LOCAL: contextvars.ContextVar[Semantics | None] = contextvars.ContextVar("semantics", default=None)


def semantics() -> Semantics:
    """The semantics of kernels that are lowered now.

    Raises:
        ConfigError: The environment variable names none.
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
    """Lower so for a while. What JAX keeps in its caches is as it was lowered before."""
    token = _LOCAL.set(semantics)
    try:
        yield
    finally:
        _LOCAL.reset(token)


def of_sums(semantics: Semantics) -> tuple[Any, ...]:
    """The transforms of f32 sums in shared memory, which a warpgroup stores and TMA copies out.

    By lane, jax 0.12 stores no accumulator in rows that lie one after the other.
    """
    if semantics == "warpgroup":
        return ()
    return plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128)


def parameters(semantics: Semantics) -> dict[str, Any]:
    """What `plgpu.CompilerParams` takes."""
    return {"lowering_semantics": _BY_NAME[semantics]}
