"""Linear algebra: padded batch rows become identities, and ragged matrices are embedded.

An embedding is block diagonal, the valid matrix first, with a second block chosen so that the
factors of the whole are those of the parts. Factors that JAX leaves open (signs of vectors) stay
open. The identities spare iterative solvers a matrix of NaN.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec.masking._context import RuleContext
from shapeexec.masking._fill import Length, one, valid_mask, zero
from shapeexec.masking._registry import register


@register("cholesky")
def cholesky(ctx: RuleContext, matrix: Array, **params: Any) -> Array:
    """Fill: an identity block behind a ragged matrix is its own factor."""
    return ctx.bind(_embed(ctx, 0, matrix, block=1), **params)


@register("lu")
def lu(ctx: RuleContext, matrix: Array, **params: Any) -> Any:
    """Fill: an identity block, whose rows are never chosen as pivots of the valid columns."""
    _check_square(ctx)
    return ctx.bind(_embed(ctx, 0, matrix, block=1), **params)


@register("lu_pivots_to_permutation")
def lu_pivots_to_permutation(ctx: RuleContext, pivots: Array, **params: Any) -> Array:
    """Fill: a row behind the valid ones is exchanged with itself."""
    mask = valid_mask(pivots.shape, ctx.in_lengths[0], range(pivots.ndim))
    if mask is not None:
        own = lax.broadcasted_iota(pivots.dtype, pivots.shape, pivots.ndim - 1)
        pivots = jnp.where(mask, pivots, own)
    return ctx.bind(pivots, **params)


@register("triangular_solve")
def triangular_solve(
    ctx: RuleContext, matrix: Array, rhs: Array, *, left_side: bool, **params: Any
) -> Array:
    """Fill: an identity block, and 0 on the right-hand side of its equations."""
    rhs = ctx.fill(1, zero(rhs.dtype), [rhs.ndim - (2 if left_side else 1)])
    return ctx.bind(_embed(ctx, 0, matrix, block=1), rhs, left_side=left_side, **params)


@register("tridiagonal_solve")
def tridiagonal_solve(
    ctx: RuleContext, lower: Array, diagonal: Array, upper: Array, rhs: Array, **params: Any
) -> Array:
    """Fill: identity equations, cut off from the last valid one, with 0 on the right-hand side."""
    if not (ctx.padded(1) or ctx.padded(3)):
        return ctx.bind(lower, diagonal, upper, rhs, **params)
    lower = ctx.fill(0, zero(lower.dtype))
    diagonal = ctx.fill(1, one(diagonal.dtype))
    upper = ctx.fill(2, zero(upper.dtype))
    rhs = ctx.fill(3, zero(rhs.dtype), [rhs.ndim - 2])
    # What stands behind the last valid row of `upper` is ignored there, but not inside a matrix.
    inner = lax.broadcasted_iota(np.int32, upper.shape, upper.ndim - 1)
    is_inside = inner < ctx.in_lengths[2][-1] - 1
    upper = jnp.where(is_inside, upper, zero(upper.dtype))
    return ctx.bind(lower, diagonal, upper, rhs, **params)


@register("qr", "geqrf")
def qr(ctx: RuleContext, matrix: Array, **params: Any) -> Any:
    """Fill: a block of 0 below and beside a ragged matrix, which no reflection touches."""
    if params.get("pivoting") and ctx.padded(0, _core(matrix)):
        raise ctx.unsupported("columns of padding would take part in the pivoting")
    return ctx.bind(_embed(ctx, 0, matrix, block=0), **params)


@register("householder_product")
def householder_product(ctx: RuleContext, reflectors: Array, taus: Array, **params: Any) -> Array:
    """Fill: 0, the reflection that changes nothing."""
    reflectors = ctx.fill(0, zero(reflectors.dtype))
    return ctx.bind(reflectors, ctx.fill(1, zero(taus.dtype)), **params)


@register("svd")
def svd(ctx: RuleContext, matrix: Array, *, compute_uv: bool, **params: Any) -> Any:
    """Fill: 0 for singular values; for vectors, a block whose values come first and are cut off.

    Vectors of a ragged matrix that is not square are refused: those of a singular value 0 could
    lie in the padding.
    """
    ragged = ctx.padded(0, _core(matrix))
    if ragged and params.get("subset_by_index") is not None:
        raise ctx.unsupported("a subset of the singular values of a ragged matrix has no rule")
    if not (ragged and compute_uv):
        matrix = _embed(ctx, 0, matrix, block=0)
        return ctx.bind(matrix, compute_uv=compute_uv, **params)
    _check_square(ctx, "vectors of a singular value 0 could lie in the padding")
    block = 2 * jnp.sqrt(_sum_of_squares(_embed(ctx, 0, matrix, block=0)))
    block = jnp.where(block > 0, block, one(block.dtype))
    embedded = _embed(ctx, 0, matrix, block=block)
    values, left, right = ctx.bind(embedded, compute_uv=True, **params)
    length = ctx.in_lengths[0][-1]
    return (
        _last_to_front(values, length, values.ndim - 1),
        _last_to_front(left, length, left.ndim - 1),
        _last_to_front(right, length, right.ndim - 2),
    )


@register("eigh")
def eigh(ctx: RuleContext, matrix: Array, *, lower: bool, **params: Any) -> Any:
    """Fill: a diagonal above the spectrum, so that the padding's eigenvalues come last."""
    if not ctx.padded(0, _core(matrix)):
        return ctx.bind(_embed(ctx, 0, matrix, block=1), lower=lower, **params)
    if params.get("subset_by_index") is not None or not params.get("sort_eigenvalues", True):
        raise ctx.unsupported("eigenvalues of a ragged matrix are needed in full and in order")
    # Only one triangle is read: rows and columns of it bound the whole matrix.
    triangle = (jnp.tril if lower else jnp.triu)(jnp.abs(_embed(ctx, 0, matrix, block=0)))
    bound = (triangle.sum(-1) + triangle.sum(-2)).max(-1)
    block = jnp.where(bound > 0, 2 * bound, one(bound.dtype))
    return ctx.bind(_embed(ctx, 0, matrix, block=block), lower=lower, **params)


@register("eig", "schur", "hessenberg", "tridiagonal")
def of_static_matrices(ctx: RuleContext, matrix: Array, **params: Any) -> Any:
    """Refuse on a ragged matrix; a ragged batch gets identities."""
    if ctx.padded(0, _core(matrix)):
        raise ctx.unsupported(
            "the order of its results would mix those of the padding with the valid ones",
            ctx.in_shapes[0][-2:],
        )
    return ctx.bind(_embed(ctx, 0, matrix, block=1), **params)


@register("fft")
def fft(ctx: RuleContext, operand: Array, *, fft_lengths: tuple[int, ...], **params: Any) -> Array:
    """Refuse on a ragged transform axis: each result depends on the true length of the axis."""
    count = len(fft_lengths)
    transformed = (*ctx.in_shapes[0][-count:], *ctx.out_shapes[0][-count:])
    if any(not isinstance(dim, int) for dim in transformed):
        raise ctx.unsupported("each element depends on the exact length of the axis", transformed)
    return ctx.bind(operand, fft_lengths=fft_lengths, **params)


def _core(matrix: Array) -> tuple[int, int]:
    return (matrix.ndim - 2, matrix.ndim - 1)


def _check_square(ctx: RuleContext, reason: str = "pivots could be rows of padding") -> None:
    rows, columns = ctx.in_shapes[0][-2:]
    if str(rows) != str(columns):
        raise ctx.unsupported(f"a ragged matrix that is not square: {reason}", (rows, columns))


def _embed(ctx: RuleContext, operand: int, matrix: Array, *, block: Any) -> Array:
    """The operand with identities for padded batch rows, and `block` on the padding's diagonal."""
    lengths, core = ctx.in_lengths[operand], _core(matrix)
    row, column = (lax.broadcasted_iota(np.int32, matrix.shape, axis) for axis in core)
    is_diagonal = row == column
    inside = valid_mask(matrix.shape, lengths, core)
    if inside is not None:
        block = jnp.asarray(block, matrix.dtype)[..., None, None]
        matrix = jnp.where(inside, matrix, jnp.where(is_diagonal, block, zero(matrix.dtype)))
    in_batch = valid_mask(matrix.shape, lengths, range(matrix.ndim - 2))
    if in_batch is not None:
        matrix = jnp.where(in_batch, matrix, is_diagonal.astype(matrix.dtype))
    return matrix


def _sum_of_squares(matrix: Array) -> Array:
    return jnp.square(jnp.abs(matrix)).sum((-2, -1))


def _last_to_front(x: Array, length: Length, axis: int) -> Array:
    """Move the last `length` elements along `axis` to the front."""
    return jnp.roll(x, length - x.shape[axis], axis)
