"""Linear algebra: padded batch rows become identities, and ragged matrices are embedded.

An embedding is block diagonal: the valid matrix, then a diagonal block for the padding. The number
on that diagonal is chosen so that the factors of the whole are those of the two blocks: 0 where
Householder reflections or pivots skip zeros, 1 where an algorithm divides by the diagonal, and a
number beyond the spectrum where results are sorted. What JAX leaves open, such as signs of vectors,
stays open. Padded batch rows are identities so that no iterative solver runs on NaN.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking._context import RuleContext
from shapeexec.masking._fill import Length, conform, one, valid_mask, zero
from shapeexec.masking._moves import roll_to_front
from shapeexec.masking._registry import register


@register("cholesky")
def cholesky(ctx: RuleContext, matrix: Array, **params: Any) -> Array:
    """Fill: an identity block behind a ragged matrix is its own factor."""
    return ctx.bind(_embed(ctx, 0, matrix=matrix, block=1), **params)


@register("cholesky_update")
def cholesky_update(ctx: RuleContext, factor: Array, vector: Array) -> Array:
    """Keep: rotations go down the rows, and the valid rows come first."""
    return ctx.bind(factor, vector)


@register("symmetric_product")
def symmetric_product(ctx: RuleContext, matrix: Array, addend: Array, **params: Any) -> Array:
    """Fill: 0 along the contracted columns; rows of padding make rows and columns of padding."""
    return ctx.bind(ctx.fill(0, zero(matrix.dtype), axes=[matrix.ndim - 1]), addend, **params)


@register("lu")
def lu(ctx: RuleContext, matrix: Array, **params: Any) -> Any:
    """Fill: a block of 0, of which no row is a pivot of a valid column.

    The pivot of a column of 0 is its own row, and a tie goes to the first.
    """
    return ctx.bind(_embed(ctx, 0, matrix=matrix, block=0), **params)


@register("lu_pivots_to_permutation")
def lu_pivots_to_permutation(ctx: RuleContext, pivots: Array, **params: Any) -> Array:
    """Fill: a row behind the valid ones is exchanged with itself."""
    capacities, last = ctx.operands[0].capacities, pivots.ndim - 1
    mask = valid_mask(capacities, ctx.operands[0].lengths, axes=range(pivots.ndim))
    if mask is not None:
        own = _compat.broadcasted_iota(pivots.dtype, capacities, last)
        pivots = jnp.where(mask, pivots, own)
    return ctx.bind(pivots, **params)


@register("triangular_solve")
def triangular_solve(
    ctx: RuleContext, matrix: Array, rhs: Array, *, left_side: bool, **params: Any
) -> Array:
    """Fill: an identity block, and 0 on the right-hand side of its equations."""
    rhs = ctx.fill(1, zero(rhs.dtype), axes=[rhs.ndim - (2 if left_side else 1)])
    return ctx.bind(_embed(ctx, 0, matrix=matrix, block=1), rhs, left_side=left_side, **params)


@register("tridiagonal_solve")
def tridiagonal_solve(
    ctx: RuleContext, lower: Array, diagonal: Array, upper: Array, rhs: Array, **params: Any
) -> Array:
    """Fill: identity equations, cut off from the last valid one, with 0 on the right-hand side."""
    if not (ctx.operands[1].padded() or ctx.operands[3].padded()):
        return ctx.bind(lower, diagonal, upper, rhs, **params)
    lower = ctx.fill(0, zero(lower.dtype))
    diagonal = ctx.fill(1, one(diagonal.dtype))
    upper = ctx.fill(2, zero(upper.dtype))
    rhs = ctx.fill(3, zero(rhs.dtype), axes=[rhs.ndim - 2])
    # What stands behind the last valid row of `upper` is ignored there, but not inside a matrix.
    inner = _compat.broadcasted_iota(np.int32, ctx.operands[2].capacities, upper.ndim - 1)
    is_inside = inner < ctx.operands[2].lengths[-1] - 1
    upper = jnp.where(is_inside, upper, zero(upper.dtype))
    return ctx.bind(lower, diagonal, upper, rhs, **params)


@register("qr", "geqrf")
def qr(ctx: RuleContext, matrix: Array, **params: Any) -> Any:
    """Fill: a block of 0 below and beside a ragged matrix, which no reflection touches.

    With pivoting its columns, of norm 0, come last.
    """
    return ctx.bind(_embed(ctx, 0, matrix=matrix, block=0), **params)


@register("geqp3")
def geqp3(ctx: RuleContext, matrix: Array, pivots: Array, **params: Any) -> Any:
    """Fill: a block of 0, whose columns are free to stay last."""
    return ctx.bind(
        _embed(ctx, 0, matrix=matrix, block=0), ctx.fill(1, zero(pivots.dtype)), **params
    )


@register("householder_product")
def householder_product(ctx: RuleContext, reflectors: Array, taus: Array, **params: Any) -> Array:
    """Fill: 0, the reflection that changes nothing."""
    reflectors = ctx.fill(0, zero(reflectors.dtype))
    return ctx.bind(reflectors, ctx.fill(1, zero(taus.dtype)), **params)


@register("ormqr")
def ormqr(
    ctx: RuleContext, reflectors: Array, taus: Array, matrix: Array, *, left: bool, **params: Any
) -> Array:
    """Fill: 0, the reflection that changes nothing, and 0 in what it is applied to."""
    reflectors = ctx.fill(0, zero(reflectors.dtype))
    taus = ctx.fill(1, zero(taus.dtype))
    matrix = ctx.fill(2, zero(matrix.dtype), axes=[matrix.ndim - (2 if left else 1)])
    return ctx.bind(reflectors, taus, matrix, left=left, **params)


@register(
    "svd",
    exact_when="`subset_by_index` is None and nobody reads the null vectors of `full_matrices=True`"
    ", or its matrices are static",
)
def svd(
    ctx: RuleContext, matrix: Array, *, compute_uv: bool, full_matrices: bool, **params: Any
) -> Any:
    """Fill: 0 for singular values; for vectors, a block whose values come first and are cut off.

    With rows or columns of 0, the vectors of a singular value 0 could lie in the padding. So
    a matrix that is not square is first reduced to one that is, by a QR from each side. The vectors
    that `full_matrices=True` adds are any basis of what the others leave: LAPACK's choice depends
    on the whole matrix, and is refused where somebody reads it.
    """
    ragged = ctx.operands[0].padded(_core(matrix))
    if ragged:
        _check_svd(ctx)
    matrix = _embed(ctx, 0, matrix=matrix, block=0)
    options = params | {"compute_uv": compute_uv, "full_matrices": full_matrices}
    if not (ragged and compute_uv):
        return ctx.bind(matrix, **options)
    *batch, rows, columns = ctx.operands[0].capacities
    length, size = ctx.results[0].lengths[-1], min(rows, columns)
    around = None
    if not _is_square(ctx, 0):
        before, upper = lax.linalg.qr(matrix, full_matrices=full_matrices)
        after, lower = lax.linalg.qr(_adjoint(upper), full_matrices=full_matrices)
        around, matrix = (before, after), _adjoint(lower)[..., :size, :size]
    inside, is_diagonal = _corner((*batch, size, size), length)
    block = jnp.where(is_diagonal, _beyond_spectrum(matrix), 0).astype(matrix.dtype)
    values, left, right = ctx.bind(jnp.where(inside, matrix, block), **options)
    values = roll_to_front(values, length, axis=values.ndim - 1, capacity=size)
    left = roll_to_front(left, length, axis=left.ndim - 1, capacity=size)
    right = roll_to_front(right, length, axis=right.ndim - 2, capacity=size)
    if around is None:
        return values, left, right
    before, after = around
    return (
        values,
        jnp.matmul(before, _in_corner(left, length, size=before.shape[-1]), precision="highest"),
        jnp.matmul(
            _in_corner(right, length, size=after.shape[-1]), _adjoint(after), precision="highest"
        ),
    )


def _check_svd(ctx: RuleContext) -> None:
    """Check that the factors of a ragged matrix do not depend on its padding.

    Raises:
        UnsupportedPrimitiveError: They do.
    """
    rows, columns = ctx.operands[0].dims[-2:]
    needs_vectors = ctx.params["compute_uv"] and ctx.params["full_matrices"]
    if needs_vectors and not _is_square(ctx, 0):
        _refuse_null_vectors(ctx, rows, columns=columns)
    if ctx.params.get("subset_by_index") is not None:
        raise ctx.unsupported_error(
            "a subset of the singular values of a ragged matrix has no rule",
            (rows, columns),
            fix="subset_by_index=None, then a slice",
        )


def _refuse_null_vectors(ctx: RuleContext, rows: Any, *, columns: Any) -> None:
    for result, more in ((1, rows - columns), (2, columns - rows)):
        if ctx.results[result].is_used and ctx.extents.capacity(more) > 0:
            raise ctx.unsupported_error(
                "the vectors that full_matrices=True adds are an arbitrary basis of what is left, "
                "which depends on how the matrix is padded",
                (rows, columns),
                fix="full_matrices=False, which leaves them out",
            )


@register("eigh", exact_when="all eigenvalues are wanted in order, or its matrices are static")
def eigh(ctx: RuleContext, matrix: Array, *, lower: bool, **params: Any) -> Any:
    """Fill: a diagonal above the spectrum, so that the padding's eigenvalues come last."""
    if not ctx.operands[0].padded(_core(matrix)):
        return ctx.bind(_embed(ctx, 0, matrix=matrix, block=1), lower=lower, **params)
    if params.get("subset_by_index") is not None or not params.get("sort_eigenvalues", True):
        raise ctx.unsupported_error(
            "eigenvalues of a ragged matrix are needed in full and in order",
            ctx.operands[0].dims[-2:],
            fix="sort_eigenvalues=True and subset_by_index=None, then jnp.flip or a slice",
        )
    # Only one triangle is read. Its Frobenius norm is at least 1/sqrt(2) of the whole matrix's.
    plain = _embed(ctx, 0, matrix=matrix, block=0)
    block = _beyond_spectrum((jnp.tril if lower else jnp.triu)(plain))[..., 0, 0]
    vectors, values = ctx.bind(_embed(ctx, 0, matrix=matrix, block=block), lower=lower, **params)
    # A matrix of one element is its own eigenvalue, also if that is infinite.
    is_one = _compat.asarray(ctx.operands[0].lengths[-1] == 1)
    only = plain[..., 0].real.astype(values.dtype)
    return (
        jnp.where(is_one, jnp.identity(vectors.shape[-1], vectors.dtype), vectors),
        jnp.where(is_one, only, values),
    )


@register("eig")
def eig(ctx: RuleContext, matrix: Array, **params: Any) -> Any:
    """Fill: a diagonal outside the spectrum, whose eigenvalues are recognized by their size.

    The valid ones keep the order that they come in.
    """
    if not ctx.operands[0].padded(_core(matrix)):
        return ctx.bind(_embed(ctx, 0, matrix=matrix, block=1), **params)
    beyond = _beyond_spectrum(_embed(ctx, 0, matrix=matrix, block=0))[..., 0]
    values, *vectors = ctx.bind(_embed(ctx, 0, matrix=matrix, block=beyond[..., 0]), **params)
    return _inside_first(beyond, values, vectors=vectors)


@register("hessenberg", "tridiagonal", "schur")
def of_reflections(ctx: RuleContext, matrix: Array, **params: Any) -> Any:
    """Fill: a block of 0, which reflections skip, and which comes last in a Schur form.

    JAX has Schur forms from LAPACK alone, which sets rows of 0 aside before it begins.
    """
    return ctx.bind(_embed(ctx, 0, matrix=matrix, block=0), **params)


def _core(matrix: Array) -> tuple[int, int]:
    return (matrix.ndim - 2, matrix.ndim - 1)


def _is_square(ctx: RuleContext, operand: int) -> bool:
    """Whether a matrix is known to be square."""
    rows, columns = ctx.operands[operand].dims[-2:]
    return str(rows) == str(columns)


def _embed(ctx: RuleContext, operand: int, *, matrix: Array, block: Any) -> Array:
    """The operand with identities for padded batch rows, and `block` on the padding's diagonal."""
    lengths, core = ctx.operands[operand].lengths, _core(matrix)
    capacities = ctx.operands[operand].capacities
    row, column = (_compat.broadcasted_iota(np.int32, capacities, axis) for axis in core)
    is_diagonal = row == column
    inside = valid_mask(capacities, lengths, axes=core)
    if inside is not None:
        block = _compat.asarray(block, matrix.dtype)[..., None, None]
        matrix = jnp.where(inside, matrix, jnp.where(is_diagonal, block, zero(matrix.dtype)))
    in_batch = valid_mask(capacities, lengths, axes=range(core[0]))
    if in_batch is not None:
        matrix = jnp.where(in_batch, matrix, is_diagonal.astype(matrix.dtype))
    return matrix


def _beyond_spectrum(matrix: Array) -> Array:
    """[..., 1, 1]: more than each eigenvalue and singular value, twice the Frobenius norm; or 1.

    The matrix is scaled first, so that squares neither overflow nor vanish.
    """
    size = jnp.abs(matrix)
    greatest = size.max((-2, -1), keepdims=True)
    scale = jnp.where((greatest > 0) & jnp.isfinite(greatest), greatest, one(size.dtype))
    norm = 2 * scale * jnp.sqrt(jnp.square(size / scale).sum((-2, -1), keepdims=True))
    return jnp.where(norm > 0, jnp.minimum(norm, _compat.finfo(size.dtype).max), one(size.dtype))


def _inside_first(beyond: Array, values: Array, *, vectors: Sequence[Array]) -> list[Array]:
    """Eigenvalues and vectors with those inside the spectrum first, in the order that they have.

    LAPACK has them first already; other back ends promise no order.
    """
    order = jnp.argsort(jnp.abs(values) > 0.75 * beyond, axis=-1, stable=True)
    columns = order[..., None, :]
    return [
        jnp.take_along_axis(values, order, -1),
        *(jnp.take_along_axis(v, columns, -1) for v in vectors),
    ]


def _adjoint(matrix: Array) -> Array:
    return jnp.conj(jnp.swapaxes(matrix, -1, -2))


def _corner(shape: Any, length: Length) -> tuple[Array, Array]:
    """bool[shape], twice: the first `length` rows and columns, and the diagonal."""
    rank = len(shape)
    row, column = (_compat.broadcasted_iota(np.int32, shape, axis) for axis in (rank - 2, rank - 1))
    return (row < length) & (column < length), row == column


def _in_corner(matrix: Array, length: Length, *, size: int) -> Array:
    """An identity of `size` whose first `length` rows and columns are those of `matrix`."""
    shape = (*matrix.shape[:-2], size, size)
    inside, is_diagonal = _corner(shape, length)
    return jnp.where(inside, conform(matrix, shape), is_diagonal.astype(matrix.dtype))
