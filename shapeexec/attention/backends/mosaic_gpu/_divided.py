"""Quotients and rests of numbers, by numbers that may be known only when the kernel runs.

Integers of unknown divisors are divided in some hundred cycles; here reals are, and the quotient is
corrected. It is written twice: for arrays, and for threads as one operation, which lowers faster.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from shapeexec.attention.backends.mosaic_gpu import _i32 as i32
from shapeexec.attention.backends.mosaic_gpu import _threads
from shapeexec.attention.backends.mosaic_gpu._merged import Size
from shapeexec.attention.backends.mosaic_gpu._pallas import plgpu

QUOTIENTS = 1 << 20
"""All quotients by numbers that are known later must be below it."""


def divided(number: Array, by: Size) -> tuple[Array, Array]:
    """Quotient and rest, i32.

    Args:
        number: Not negative.
        by: Positive; if it is known later, the quotient is below `QUOTIENTS`.
    """
    if isinstance(by, int):
        divisor = i32.constant(by)
        return lax.div(number, divisor), lax.rem(number, divisor)
    # The product is wrong by less than 1 / 2, so the quotient by no more than 1.
    quotient = (number.astype(jnp.float32) * (1 / by.astype(jnp.float32))).astype(jnp.int32)
    rest = number - quotient * by
    # A select, for a bool made a number starts ptxas (`_branches`).
    change = jnp.where(
        rest < 0, i32.constant(-1), jnp.where(rest >= by, i32.constant(1), i32.constant(0))
    )
    return quotient + change, rest - change * by


def divided_by_threads(number: Array, by: Size) -> tuple[Array, Array]:
    """See `divided`; on the device."""
    if isinstance(by, int):
        return divided(number, by)
    scalar = plgpu.ShapeDtypeStruct((), jnp.int32, layout=plgpu.Layout.WG_SPLAT)

    @plgpu.inline_mgpu(arg_types=(plgpu.Layout.WG_SPLAT,) * 2, return_type=(scalar, scalar))
    def divide(_: Any, *numbers: Any) -> Any:
        made = _threads.divided(*(_threads.Number(x.registers.item()) for x in numbers))
        return tuple(map(_threads.splat, made))

    return divide(number, by)
