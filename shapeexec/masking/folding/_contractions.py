"""Sums over primitives that add themselves: one more contracted axis, or more rows to scatter.

Sums over primitives that are linear in an operand are in `_linear`.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking.folding._linear import axis_before_reshape, through
from shapeexec.masking.folding._plan import Fold, Folder, folds, sum_dtype, without


@folds("dot_general")
def dot(folder: Folder, eqn: Any, number: int, axis: int) -> Fold | None:
    """A batch axis becomes a contracted one; a free one is summed before the product."""
    left, right = eqn.invars
    (left_contract, right_contract), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    if axis >= len(left_batch):
        return _dot_of_sum(folder, eqn, axis=axis)
    own = (left_batch[axis], right_batch[axis])
    contract = sorted([own, *zip(left_contract, right_contract, strict=True)])
    batch = (without(left_batch, axis), without(right_batch, axis))

    def emit(scope: Any, mask: Array) -> Array:
        # Both factors are masked, since zero times NaN is NaN.
        factors = [scope.masked(x, a, mask=mask) for x, a in zip((left, right), own, strict=True)]
        merged = [
            _merged(x, [pair[side] for pair in contract], batch=batch[side])
            for side, x in enumerate(factors)
        ]
        (x, x_contract, x_batch), (y, y_contract, y_batch) = merged
        return _dot(eqn, x, right=y, numbers=(((x_contract,), (y_contract,)), (x_batch, y_batch)))

    return Fold(eqn.outvars[number], emit, (left, right), pays=True, is_source=True)


def _merged(
    x: Array, axes: Sequence[int], *, batch: Sequence[int]
) -> tuple[Array, int, tuple[int, ...]]:
    """`x` with `axes` merged into one, the number of that axis, and the axes of the batch.

    XLA on the CPU cannot run every product that contracts several axes of 16-bit floats.
    """
    rest = [a for a in range(x.ndim) if a not in axes]
    place = axes[0] if [*axes] == [*range(axes[0], axes[0] + len(axes))] else 0
    order = [*rest[:place], *axes, *rest[place:]]
    merged = lax.transpose(x, order)
    merged = merged.reshape(*merged.shape[:place], -1, *merged.shape[place + len(axes) :])
    kept = [*rest[:place], None, *rest[place:]]
    return merged, place, tuple(kept.index(a) for a in batch)


def _dot_of_sum(folder: Folder, eqn: Any, *, axis: int) -> Fold:
    (contract, batch), (left, right) = eqn.params["dimension_numbers"], eqn.invars
    free = [
        [a for a in range(x.aval.ndim) if a not in (*contract[side], *batch[side])]
        for side, x in enumerate((left, right))
    ]
    place = axis - len(batch[0])
    side = int(place >= len(free[0]))
    own = (free[0] + free[1])[place]
    inner = folder.fold((left, right)[side], own)
    other = (right, left)[side]
    numbers = [
        [tuple(a - (a > own) for a in axes) if i == side else axes for i, axes in enumerate(pair)]
        for pair in (contract, batch)
    ]

    def emit(scope: Any, mask: Array) -> Array:
        total, factor = scope.sum(inner, mask), scope.read(other)
        left, right = (factor, total) if side else (total, factor)
        return _dot(eqn, left, right=right, numbers=numbers)

    return Fold(eqn.outvars[0], emit, (other,), (inner,), pays=True, is_source=True)


def _dot(eqn: Any, left: Array, *, right: Array, numbers: Any) -> Array:
    dtype = sum_dtype(eqn.outvars[0].aval.dtype)
    common = jnp.promote_types(left.dtype, right.dtype)
    return _compat.dot_general(
        lax.convert_element_type(left, common),
        lax.convert_element_type(right, common),
        numbers,
        precision=eqn.params["precision"],
        preferred_element_type=dtype,
    )


@folds("scatter-add")
def scattered(folder: Folder, eqn: Any, number: int, axis: int) -> Fold | None:
    """The rows of all examples are added to one array."""
    operand, indices, updates = eqn.invars
    numbers = eqn.params["dimension_numbers"]
    if axis not in numbers.operand_batching_dims:
        return None
    place = numbers.operand_batching_dims.index(axis)
    batch_axis = numbers.scatter_indices_batching_dims[place]
    rows = [a for a in range(updates.aval.ndim) if a not in numbers.update_window_dims]
    inner = folder.fold(operand, axis)
    one = lax.ScatterDimensionNumbers(
        update_window_dims=numbers.update_window_dims,
        inserted_window_dims=_moved(numbers.inserted_window_dims, axis),
        scatter_dims_to_operand_dims=_moved(numbers.scatter_dims_to_operand_dims, axis),
        operand_batching_dims=_moved(without(numbers.operand_batching_dims, place), axis),
        scatter_indices_batching_dims=without(numbers.scatter_indices_batching_dims, place),
    )

    def emit(scope: Any, mask: Array) -> Array:
        total = scope.sum(inner, mask)
        added = lax.convert_element_type(
            scope.masked(updates, rows[batch_axis], mask=mask), total.dtype
        )
        return lax.scatter_add(total, scope.read(indices), added, one, mode=eqn.params["mode"])

    return Fold(eqn.outvars[number], emit, (indices, updates), (inner,), pays=True, is_source=True)


def _moved(axes: Sequence[int], gone: int) -> tuple[int, ...]:
    return tuple(a - (a > gone) for a in axes)


@folds("reshape")
def reshaped(folder: Folder, eqn: Any, number: int, axis: int) -> Fold | None:
    """Drop the example axis from the shape; or it is split from the groups of a convolution."""
    operand, shape = eqn.invars[0], eqn.params["new_sizes"]
    if eqn.params["dimensions"] is not None:
        return None
    rest = without(shape, axis)
    own = axis_before_reshape(operand.aval.shape, shape, axis=axis)
    if own is not None and operand.aval.shape[own] == folder.examples:
        inner = folder.fold(operand, own)
        return through(eqn, number, inner=inner, apply=lambda _, x: lax.reshape(x, rest))
    made = folder.eqn_of(operand)
    if made is None or made.primitive.name != "conv_general_dilated":
        return None
    features = made.params["dimension_numbers"].out_spec[1]
    is_major = math.prod(operand.aval.shape[:features]) == math.prod(shape[:axis])
    if not is_major or operand.aval.shape[features] % folder.examples:
        return None
    inner = _convolution(folder, made)
    return through(eqn, number, inner=inner, apply=lambda _, x: lax.reshape(x, rest))


def _convolution(folder: Folder, eqn: Any) -> Fold | None:
    """The sum over examples that are the major part of a convolution's groups.

    A sum over groups is one convolution with the input features of all of them.
    """
    params, examples, (left, right) = eqn.params, folder.examples, eqn.invars
    numbers = params["dimension_numbers"]
    groups = {name: params[name] for name in ("feature_group_count", "batch_group_count")}
    (grouped,) = [name for name in groups if groups[name] % examples == 0][:1] or (None,)
    if grouped is None or max(groups.values()) != groups[grouped]:
        return None
    groups[grouped] //= examples
    inner_groups = groups[grouped]
    left_from = numbers.lhs_spec[int(grouped == "feature_group_count")]
    left_to, (right_from, right_to) = numbers.lhs_spec[1], numbers.rhs_spec[:2]

    def emit(scope: Any, mask: Array) -> Array:
        x, w = scope.read(left), scope.read(right)
        x = _split_masked(x, left_from, mask=mask)
        if left_from == left_to:
            x = _moved_inward(x, left_from, groups=inner_groups)
        else:
            x = _moved_into(x, left_from, target=left_to)
        w = _moved_into(_split_masked(w, right_from, mask=mask), right_from, target=right_to)
        return lax.conv_general_dilated(
            x,
            w,
            window_strides=params["window_strides"],
            padding=params["padding"],
            lhs_dilation=params["lhs_dilation"],
            rhs_dilation=params["rhs_dilation"],
            dimension_numbers=numbers,
            precision=params["precision"],
            preferred_element_type=sum_dtype(eqn.outvars[0].aval.dtype),
            **groups,
        )

    return Fold(eqn.outvars[0], emit, (left, right), pays=True, is_source=True)


def _split_masked(x: Array, axis: int, *, mask: Array) -> Array:
    """Split examples, the major part of `axis`, off as an axis before it; 0 where masked out."""
    x = x.reshape(*x.shape[:axis], len(mask), -1, *x.shape[axis + 1 :])
    along = _compat.broadcast_in_dim(mask, x.shape, (axis,))
    return lax.select(along, x, lax.full_like(x, 0))


def _moved_inward(x: Array, axis: int, *, groups: int) -> Array:
    """Merge the example axis into the next one, (groups, features), between these two."""
    parts = (groups, x.shape[axis + 1] // groups)
    shape = (*x.shape[: axis + 1], *parts, *x.shape[axis + 2 :])
    x = jnp.moveaxis(x.reshape(shape), axis, axis + 1)
    return x.reshape(*shape[:axis], -1, *shape[axis + 3 :])


def _moved_into(x: Array, axis: int, *, target: int) -> Array:
    """Merge the example axis into `target` as its major part.

    `target` is counted without the example axis.
    """
    x = jnp.moveaxis(x, axis, target)
    return x.reshape(*x.shape[:target], -1, *x.shape[target + 2 :])
