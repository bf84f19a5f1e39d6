"""Finds the elements that equal the extremum of their row, as gradients of a maximum do by `eq`.

XLA may compute a row twice, in two fusions that round differently. Then no element equals the
row's maximum, and a gradient is lost: unpadded at some sizes, in a padded graph at others. Here the
first extremum is found in the row itself, so that it is never lost; `eq` finds the elements equal
to it.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking._context import RuleContext
from shapeexec.masking._fill import highest, lowest
from shapeexec.shape import _dim

_FIND: dict[str, tuple[Callable[..., Array], Callable[[Any], Any]]] = {
    "reduce_max": (lax.argmax, lowest),
    "reduce_min": (lax.argmin, highest),
}


def compared(ctx: RuleContext) -> tuple[int, Any] | None:
    """The operand that is compared with its own extremum, and the reduction to that extremum.

    None: the equation compares something else.
    """
    for number, other in ((0, 1), (1, 0)):
        operand, spread = ctx.eqn.invars[number], _maker(ctx, ctx.eqn.invars[other])
        if spread is None or spread.primitive.name not in ("broadcast_in_dim", "reshape"):
            continue
        reduction = _maker(ctx, spread.invars[0])
        if (
            reduction is not None
            and reduction.primitive.name in _FIND
            and reduction.invars[0] is operand
            and ctx.operands[number].array.size
            and jnp.issubdtype(operand.aval.dtype, np.floating)
            and _is_spread(spread, operand.aval.shape, axes=reduction.params["axes"])
        ):
            return number, reduction
    return None


def first(ctx: RuleContext, number: int, *, reduction: Any) -> Array:
    """bool, shaped as the operand: its first extremum along the reduced axes, if it is not NaN."""
    find, identity = _FIND[reduction.primitive.name]
    axes = reduction.params["axes"]
    x = ctx.fill(number, identity(ctx.operands[number].array.dtype), axes=axes)
    order = (*(axis for axis in range(x.ndim) if axis not in axes), *axes)
    moved = lax.transpose(x, order)
    rows = moved.reshape(*moved.shape[: x.ndim - len(axes)], -1)
    found = find(rows, rows.ndim - 1, np.int32)
    at = _compat.broadcasted_iota(np.int32, rows.shape, rows.ndim - 1)
    is_first = lax.transpose((at == found[..., None]).reshape(moved.shape), np.argsort(order))
    extremum = ctx.operands[1 - number].array
    return is_first & ~jnp.isnan(extremum)


def _maker(ctx: RuleContext, atom: Any) -> Any | None:
    return None if _compat.is_literal(atom) else ctx.scope.maker(atom)


def _is_spread(eqn: Any, shape: tuple[Any, ...], *, axes: tuple[int, ...]) -> bool:
    """Whether an equation restores the reduced axes, at size 1 or repeated."""
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    if eqn.primitive.name == "broadcast_in_dim":
        return tuple(eqn.params["broadcast_dimensions"]) == tuple(kept)
    made = eqn.outvars[0].aval.shape
    return (
        len(made) == len(shape)
        and all(_dim.dim_text(made[axis]) == "1" for axis in axes)
        and all(_dim.dim_text(made[axis]) == _dim.dim_text(shape[axis]) for axis in kept)
    )
