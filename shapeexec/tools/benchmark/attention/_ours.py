"""Our function as contestants: with each of its back ends, and with the one it chooses.

The rivals are in `rivals`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import functools
from typing import Any

import shapeexec as sx
from shapeexec.attention.backends._registry import IMPLEMENTATIONS
from shapeexec.attention.masks import Mask
from shapeexec.tools.benchmark.attention._contestant import JaxContestant
from shapeexec.tools.benchmark.attention._masks import mask_of
from shapeexec.tools.benchmark.attention._problems import Problem

Array = Any
DEFAULT = "default"
"""The implementation that is chosen if nobody names one."""
ANY_BITS = "any_bits"
"""The default implementation with `deterministic=False`."""


def contestants() -> tuple[JaxContestant, ...]:
    """All contestants of this library."""
    return tuple(map(_contestant, (DEFAULT, ANY_BITS, *IMPLEMENTATIONS)))


def _contestant(name: str) -> JaxContestant:
    is_named = name in IMPLEMENTATIONS
    options = {
        "implementation": name if is_named else None,
        # cuDNN's gradient is not deterministic, and True would refuse it.
        "deterministic": name not in (ANY_BITS, "cudnn"),
    }
    attention = functools.partial(_attention, options)
    return JaxContestant(name, attention, is_ours=True, rank=1 if is_named else 0)


def _attention(options: dict[str, Any], problem: Problem) -> tuple[Any, tuple[Any, ...]]:
    shape = problem.shape
    bias = sx.ALiBi.for_heads(shape.heads) if problem.pattern.has_alibi else None
    mask = mask_of(problem.pattern, shape.length)
    # Tiles that are chosen once are known when the program is compiled, as for the rivals
    # before the clock starts. Documents are data.
    is_known = problem.pattern.density is not None

    def attend(  # noqa: PLR0917 - operands of attention
        q: Array, k: Array, v: Array, given: Mask | None, bias: Any
    ) -> Array:
        return sx.dot_product_attention(q, k, v, bias, mask if is_known else given, **options)

    return attend, (None if is_known else mask, bias)
