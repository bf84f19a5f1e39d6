"""Branches of kernels, cheaper to lower than those of `lax.cond` and `pl.when`.

These convert their condition to a number, and Mosaic starts ptxas for each such conversion (jax
0.10 to 0.12): a quarter of the time to lower a kernel. A select makes the same number.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from typing import Any

from jax import Array, lax

from shapeexec.attention.backends.mosaic_gpu import _i32 as i32


def branch(
    condition: Array, yes: Callable[..., Any], no: Callable[..., Any], *operands: Any
) -> Any:
    """`lax.cond`; Mosaic lowers `no` twice, so let it be the shorter one.

    Args:
        condition: bool[].
        yes: Called with the operands if it holds.
        no: Called with them if not; it returns the same shapes and dtypes.
        *operands: Arrays.
    """
    number = lax.select(condition, i32.constant(1), i32.constant(0))
    return lax.switch(number, (no, yes), *operands)


def when(condition: Array) -> Callable[[Callable[[], None]], None]:
    """`pl.when`: run the decorated function if the condition, bool[], holds."""
    return lambda body: branch(condition, body, lambda: None)
