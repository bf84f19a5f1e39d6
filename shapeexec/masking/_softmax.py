"""Facts about padding in a softmax and its gradient, so that one mask serves all of it.

A softmax over a padded axis takes its maximum, for which the padding is filled with -inf. No
further mask is needed. In the padding `x - max x` is -inf, or NaN where the maximum is infinite or
NaN; in the latter case valid elements of the row are NaN too, and so is its sum. So in the padding
`exp(x - max x)` and the quotient are 0, or NaN where the row's sum is NaN. A sum that is not NaN is
at least 1. All of that holds whatever the valid elements are.

Its gradient, of x with weights w = exp(x - max x), total t = sum w and cotangent g, is

    w * (g/t - sum(g * t**-2 * w))

If g is made by a product with rows of zeros, its padding is 0 except behind rows whose valid
elements are all NaN or infinite. There the padding may turn a sum that is infinite into NaN. The
gradient stays the same: the sum is infinite only if all of g is that infinity (no factor is
negative, and a factor of 0 makes NaN). Then g/t is that infinity too, and the difference is NaN
either way. So the sum needs no mask if only that difference reads it.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shapeexec.masking._context import RuleContext
from shapeexec.masking._facts import signs_of
from shapeexec.masking._knowledge import Known, Padding, Role, constant

_MINUS_INFINITY = -np.inf
WHY_NONE = "none: padding is 0, or the row's gradient is NaN anyway"
"""Why the sum in a softmax's gradient needs no mask."""


def reduced(ctx: RuleContext, operand: Known, *, axes: Sequence[int]) -> Role | None:
    """The role of a reduction's result."""
    source, role = ctx.operands[0].number, operand.role
    if ctx.primitive == "reduce_max":
        return Role("max", source, tuple(axes), is_aligned=False)
    is_weights = role is not None and role.kind == "weights" and role.axes == tuple(axes)
    if ctx.primitive == "reduce_sum" and is_weights:
        return Role("total", source, tuple(axes), is_aligned=False)
    return None


def broadcast(
    operand: Known, shape: Sequence[Any], *, broadcast_dimensions: Sequence[int]
) -> Role | None:
    """The role of a broadcast, which may put the reduced axes back where they were, at size 1.

    Copies along a padded axis have padding of their own, which others may fill.
    """
    role, rank = operand.role, len(shape)
    if role is None or not all(isinstance(shape[axis], int) for axis in role.axes if axis < rank):
        return None
    if role.is_aligned:
        is_kept = tuple(broadcast_dimensions) == tuple(range(rank))
        return role if is_kept and role.kind in ("max", "total", "scale") else None
    kept = tuple(axis for axis in range(rank) if axis not in role.axes)
    if tuple(broadcast_dimensions) != kept:
        return None
    return dataclasses.replace(role, is_aligned=True)


def pointwise(ctx: RuleContext, operands: Sequence[Known], *, known: Known) -> Known:
    """`known`, and the facts that follow from a pointwise primitive's place in a softmax."""
    step = _STEPS.get(ctx.primitive)
    return known if step is None else step(ctx, operands, known)


def _same(ctx: RuleContext, operands: Sequence[Known], known: Known) -> Known:
    """A copy has the role of its operand."""
    del ctx
    return Known(known.whole, known.axes, operands[0].role)


def _maximum(ctx: RuleContext, operands: Sequence[Known], known: Known) -> Known:
    """JAX takes the maximum of -inf and the row's."""
    del ctx
    roles = [operand.role for operand in operands if not _is_minus_infinity(operand)]
    return Known(known.whole, known.axes, roles[0] if len(roles) == 1 else None)


def _difference(ctx: RuleContext, operands: Sequence[Known], known: Known) -> Known:
    """The shift: x - max x."""
    if not _fits(ctx, operands, kind="max"):
        return known
    return _absorbed(ctx, operands[0], known=known, value=_MINUS_INFINITY, kind="shifted")


def _exponential(ctx: RuleContext, operands: Sequence[Known], known: Known) -> Known:
    """The weights: w = exp(x - max x)."""
    role = operands[0].role
    if role is None or role.kind != "shifted":
        return known
    return _absorbed(ctx, operands[0], known=known, value=0, kind="weights")


def _quotient(ctx: RuleContext, operands: Sequence[Known], known: Known) -> Known:
    """The result: w / t."""
    if not _fits(ctx, operands, kind="total"):
        return known
    return _absorbed(ctx, operands[0], known=known, value=0, kind=None)


def _power(ctx: RuleContext, operands: Sequence[Known], known: Known) -> Known:
    """The scale in the gradient: t**-2."""
    role = operands[0].role
    if role is None or role.kind != "total" or ctx.params["y"] >= 0:
        return known
    scale = Role("scale", role.source, role.axes, is_aligned=role.is_aligned)
    return dataclasses.replace(known, role=scale)


def _product(ctx: RuleContext, operands: Sequence[Known], known: Known) -> Known:
    """The scaled cotangent in the gradient: g * t**-2, and that times w."""
    del operands
    scaled = _scaled(ctx)
    return known if scaled is None else _known_of_scaled(ctx, known, role=scaled)


_STEPS: dict[str, Callable[[RuleContext, Sequence[Known], Known], Known]] = {
    "stop_gradient": _same,
    "copy": _same,
    "max": _maximum,
    "sub": _difference,
    "exp": _exponential,
    "div": _quotient,
    "integer_pow": _power,
    "mul": _product,
}
"""By pointwise primitive `step(ctx, operands, known)`: `known`, and what its role adds."""


def _is_minus_infinity(operand: Known) -> bool:
    return operand.whole.is_constant(_MINUS_INFINITY)


def _fits(ctx: RuleContext, operands: Sequence[Known], *, kind: str) -> bool:
    """Whether the second operand is, row by row, the maximum or the total of the first."""
    role = operands[1].role
    return (
        role is not None
        and role.kind == kind
        and role.is_aligned
        and role.source == ctx.operands[0].number
    )


def _absorbed(ctx: RuleContext, operand: Known, *, known: Known, value: float, kind: Any) -> Known:
    """`known`, and along the softmax's axes `value`, or NaN in rows that are all NaN.

    This follows only if the operand's padding is -inf, or 0 for a quotient.
    """
    role = operand.role if kind == "weights" else _role_of_second(ctx)
    assert role is not None
    presumed = {"shifted": _MINUS_INFINITY, "weights": _MINUS_INFINITY, None: 0}[kind]
    dtype = ctx.eqn.outvars[0].aval.dtype
    axes = list(known.axes)
    for axis in role.axes:
        if ctx.operands[0].padded((axis,)):
            if not operand.axes[axis].is_constant(presumed, unless="nan"):
                return known
            axes[axis] = _stronger(
                known.axes[axis], constant(np.asarray(value, dtype)[()], unless="nan")
            )
    source = ctx.operands[0].number
    made = None if kind is None else Role(kind, source, role.axes, is_aligned=True)
    return Known(known.whole, tuple(axes), made)


def _role_of_second(ctx: RuleContext) -> Role | None:
    return ctx.operands[1].known.role


def _stronger(a: Padding, b: Padding) -> Padding:
    return a if a.value is not None and a.unless is None else b


# The gradient


def _scaled(ctx: RuleContext) -> Role | None:
    """The role of a product of a cotangent with weights or with their scale."""
    for number, factor in enumerate(ctx.operands):
        cotangent, role = ctx.operands[1 - number], factor.known.role
        if role is None or role.kind not in ("weights", "scale") or not role.is_aligned:
            continue
        if not ctx.operands[1 - number].dims:
            continue  # one number for all rows
        beside = [factor.known.axes[axis] for axis in ctx.operands[number].padded(role.axes)]
        is_harmless = all(padding.is_constant(0, unless="nan") for padding in beside)
        if not is_harmless or not _is_zero(ctx, 1 - number, axes=role.axes):
            continue
        weights = factor.number if role.kind == "weights" else role.source
        before = cotangent.known.role
        if before is not None and before.kind == "scaled":
            return before if (before.of, before.axes) == (weights, role.axes) else None
        if len(ctx.operands[1 - number].dims) == len(ctx.results[0].dims):
            return Role("scaled", cotangent.number, role.axes, is_aligned=True, of=weights)
    return None


def _is_zero(ctx: RuleContext, operand: int, *, axes: Sequence[int]) -> bool:
    """Whether an operand's padding is 0, except in rows that are all NaN or infinite."""
    paddings = [
        ctx.operands[operand].known.axes[axis] for axis in ctx.operands[operand].padded(axes)
    ]
    return all(padding.is_constant(0, unless="nonfinite") for padding in paddings)


def _known_of_scaled(ctx: RuleContext, known: Known, *, role: Role) -> Known:
    """`known`, and 0 along the softmax's axes, except in rows that are all NaN or infinite.

    Factors that are not negative make no element of such a row finite.
    """
    axes = list(known.axes)
    zeros = constant(np.zeros((), ctx.eqn.outvars[0].aval.dtype)[()], unless="nonfinite")
    for axis in role.axes:
        if not isinstance(ctx.results[0].dims[axis], int):
            axes[axis] = _stronger(known.axes[axis], zeros)
    return Known(known.whole, tuple(axes), role)


def needs_no_mask(ctx: RuleContext, axes: Sequence[int]) -> bool:
    """Whether this is the sum in a softmax's gradient, and nothing else reads it."""
    role = ctx.operands[0].known.role
    if ctx.primitive != "reduce_sum" or role is None or role.kind != "scaled":
        return False
    is_padded = bool(ctx.operands[0].padded(axes))  # else there is no mask to spare
    is_whole = role.axes == tuple(axes) and is_padded and _is_zero(ctx, 0, axes=axes)
    return is_whole and _is_inner_sum(ctx, role)


def _is_inner_sum(ctx: RuleContext, role: Role) -> bool:
    """Whether the result is read for `w * (g/t - sum)` alone, with the total, g and w of `role`.

    Only there does a NaN from the padding change nothing: the difference is NaN without it, too.
    So nothing but views, which JAX may put in between, may read the sum first. JAX also writes the
    difference as `(-sum) + g/t`.
    """
    rank = len(ctx.operands[0].dims)
    rows: list[int | None] = [axis for axis in range(rank) if axis not in role.axes]
    var, is_negated = ctx.eqn.outvars[0], False
    while (reader := ctx.scope.only_reader(var)) is not None and not _joins_two(reader):
        moved = _rows_after(reader, rows)
        if moved is None:
            return False
        rows, var = moved, reader.outvars[0]
        is_negated ^= reader.primitive.name == "neg"
    if reader is None or not _stands_for_its_row(reader, rows, role=role):
        return False
    left, right = reader.invars
    other = left if right is var else right
    if reader.primitive.name == "sub":
        is_difference = right is var and not is_negated
    else:
        is_difference = is_negated
    product = ctx.scope.only_reader(reader.outvars[0])
    is_weighted = (
        product is not None
        and product.primitive.name == "mul"
        and any(_number(ctx, factor) == role.of for factor in product.invars)
    )
    return is_difference and _is_over_total(ctx, other, role=role) and is_weighted


def _joins_two(eqn: Any) -> bool:
    """Whether an equation adds or subtracts."""
    return len(signs_of(eqn) or ()) == 2


def _rows_after(eqn: Any, rows: Sequence[int | None]) -> list[int | None] | None:
    """Per axis of a result, its axis in the softmax; None: the result is not a view of rows.

    Args:
        eqn: An equation with one operand.
        rows: Per axis of the operand, its axis in the softmax; None: it has none, or is of size 1.
    """
    view = _VIEWS.get(eqn.primitive.name)
    return None if view is None else view(eqn, rows)


def _rows_kept(eqn: Any, rows: Sequence[int | None]) -> list[int | None]:
    del eqn
    return list(rows)


def _rows_reshaped(eqn: Any, rows: Sequence[int | None]) -> list[int | None] | None:
    """The rows behind a reshape that only adds or drops axes of size 1; else None."""
    shape, out = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    sizes = [str(dim) for dim in shape if not _is_one(dim)]
    permutes = eqn.primitive.name == "reshape" and eqn.params.get("dimensions")
    if permutes or sizes != [str(dim) for dim in out if not _is_one(dim)]:
        return None
    left = iter([row for row, dim in zip(rows, shape, strict=True) if not _is_one(dim)])
    return [None if _is_one(dim) else next(left) for dim in out]


def _rows_broadcast(eqn: Any, rows: Sequence[int | None]) -> list[int | None]:
    shape, out = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    placed: list[int | None] = [None] * len(out)
    for axis, target in enumerate(eqn.params["broadcast_dimensions"]):
        placed[target] = None if _is_one(shape[axis]) else rows[axis]
    return placed


_VIEWS: dict[str, Callable[[Any, Sequence[int | None]], list[int | None] | None]] = {
    "neg": _rows_kept,
    "copy": _rows_kept,
    "reshape": _rows_reshaped,
    "squeeze": _rows_reshaped,
    "expand_dims": _rows_reshaped,
    "reduce_sum": _rows_reshaped,
    "broadcast_in_dim": _rows_broadcast,
}
"""By primitive `view(eqn, rows)`, see `_rows_after`."""


def _is_one(dim: Any) -> bool:
    return isinstance(dim, int) and dim == 1


def _stands_for_its_row(eqn: Any, rows: Sequence[int | None], *, role: Role) -> bool:
    """Whether an operand of these rows is one number per row of the softmax, at its place."""
    shape = eqn.outvars[0].aval.shape
    return len(rows) == len(shape) and all(
        row is None if axis in role.axes else row == axis or _is_one(dim)
        for axis, (row, dim) in enumerate(zip(rows, shape, strict=True))
    )


def _is_over_total(ctx: RuleContext, var: Any, *, role: Role) -> bool:
    """Whether a variable is the cotangent, divided by the total."""
    eqn = ctx.scope.maker(var)
    if eqn is None or eqn.primitive.name != "div":
        return False
    divisor = ctx.scope.value(eqn.invars[1])
    total = None if divisor is None else divisor.known.role
    return (
        _number(ctx, eqn.invars[0]) == role.source
        and total is not None
        and (total.kind, total.source, total.axes) == ("total", role.of, role.axes)
        and total.is_aligned
    )


def _number(ctx: RuleContext, atom: Any) -> int | None:
    value = ctx.scope.value(atom)
    return None if value is None else value.number
