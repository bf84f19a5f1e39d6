"""What is known of padding in the course of a softmax, so that one mask serves all of it.

A softmax over a padded axis takes its maximum, for which the padding is filled with -inf. From
there on nothing more is needed: `x - max x` is -inf in the padding, or NaN where the maximum is
infinite or NaN, and then the valid elements of the row that decide its sum are NaN as well. So
`exp` of it is 0 or NaN with its row, the sum over the row is at least 1 or NaN, and the quotient
is 0 or NaN with its row. That holds for whatever the valid elements are.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shapeexec.masking._context import RuleContext
from shapeexec.masking._knowledge import Known, Padding, Role, absorbed

_MINUS_INFINITY = -np.inf


def reduced(ctx: RuleContext, operand: Known, axes: Sequence[int]) -> Role | None:
    """The role of a reduction's result."""
    source, role = ctx.values[0].number, operand.role
    if ctx.primitive == "reduce_max":
        return Role("max", source, tuple(axes), is_aligned=False)
    is_weights = role is not None and role.kind == "weights" and role.axes == tuple(axes)
    if ctx.primitive == "reduce_sum" and is_weights:
        return Role("total", source, tuple(axes), is_aligned=False)
    return None


def broadcast(operand: Known, rank: int, broadcast_dimensions: Sequence[int]) -> Role | None:
    """The role of a broadcast, which may put the reduced axes back where they were."""
    role = operand.role
    if role is None:
        return None
    if role.is_aligned:
        is_kept = tuple(broadcast_dimensions) == tuple(range(rank))
        return role if is_kept and role.kind in ("max", "total") else None
    kept = tuple(axis for axis in range(rank) if axis not in role.axes)
    if tuple(broadcast_dimensions) != kept:
        return None
    return Role(role.kind, role.source, role.axes, is_aligned=True)


def pointwise(ctx: RuleContext, operands: Sequence[Known], known: Known) -> Known:
    """What a pointwise primitive's place in a softmax adds to `known`."""
    role = operands[0].role if operands else None
    match ctx.primitive:
        case "stop_gradient" | "copy":
            return Known(known.whole, known.axes, role)
        case "max":  # JAX takes the maximum of -inf and the row's
            roles = [operand.role for operand in operands if not _is_minus_infinity(operand)]
            return Known(known.whole, known.axes, roles[0] if len(roles) == 1 else None)
        case "sub" if _fits(ctx, operands, "max"):
            return _absorbed(ctx, operands[0], known, _MINUS_INFINITY, "shifted")
        case "exp" if role is not None and role.kind == "shifted":
            return _absorbed(ctx, operands[0], known, 0, "weights")
        case "div" if _fits(ctx, operands, "total"):
            return _absorbed(ctx, operands[0], known, 0, None)
    return known


def _is_minus_infinity(operand: Known) -> bool:
    return operand.whole.is_constant(_MINUS_INFINITY)


def _fits(ctx: RuleContext, operands: Sequence[Known], kind: str) -> bool:
    """Whether the second operand is, row by row, the maximum or the total of the first."""
    role = operands[1].role
    return (
        role is not None
        and role.kind == kind
        and role.is_aligned
        and role.source == ctx.values[0].number
    )


def _absorbed(ctx: RuleContext, operand: Known, known: Known, value: float, kind: Any) -> Known:
    """`known`, and along the softmax's axes `value` or NaN with the row.

    Only where the operand's padding is what this presumes.
    """
    role = operand.role if kind == "weights" else _role_of_second(ctx)
    assert role is not None
    presumed = {"shifted": _MINUS_INFINITY, "weights": _MINUS_INFINITY, None: 0}[kind]
    dtype = ctx.eqn.outvars[0].aval.dtype
    axes = list(known.axes)
    for axis in role.axes:
        if ctx.padded(0, (axis,)):
            if not operand.axes[axis].is_constant(presumed, or_nan=True):
                return known
            axes[axis] = _stronger(known.axes[axis], absorbed(np.asarray(value, dtype)[()]))
    source = ctx.values[0].number
    made = None if kind is None else Role(kind, source, role.axes, is_aligned=True)
    return Known(known.whole, tuple(axes), made)


def _role_of_second(ctx: RuleContext) -> Role | None:
    return ctx.values[1].known.role


def _stronger(a: Padding, b: Padding) -> Padding:
    return a if a.value is not None and not a.or_nan else b
