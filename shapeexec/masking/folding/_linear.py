"""Sums over linear operations: the sum of the results is the result of the sums.

Which pointwise primitives are linear is known in `_facts`.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking._facts import names_with, scaled_operands, signs_of
from shapeexec.masking.folding._plan import Fold, Folder, folds, sum_dtype, without


def through(
    eqn: Any, number: int, *, inner: Fold | None, apply: Callable[[Any, Array], Array]
) -> Fold | None:
    """The sum of a result: `apply(scope, sum)`, where the sum is of the operand with examples."""
    if inner is None:
        return None
    return Fold(
        variable=eqn.outvars[number],
        emit=lambda scope, mask: apply(scope, scope.sum(inner, mask)),
        parts=(inner,),
        pays=inner.pays,
    )


def summand(folder: Folder, atom: Any, *, shape: Sequence[int], axis: int) -> Fold:
    """The sum of an operand of an elementwise operation whose result has this shape.

    Args:
        folder: Plans the sum.
        atom: A variable or literal; a scalar, or with axes of 1 that are broadcast.
        shape: The shape of the result.
        axis: The example axis of the result.
    """
    own = atom.aval.shape
    if own == tuple(shape):
        return folder.fold(atom, axis)
    rest = without(shape, axis)
    if not own or own[axis] < shape[axis]:
        return _shared(atom, atom, make=lambda x: jnp.broadcast_to(_of_one(x, axis), rest))
    inner = folder.fold(atom, axis)
    return Fold(
        atom,
        lambda scope, mask: jnp.broadcast_to(scope.sum(inner, mask), rest),
        parts=(inner,),
        pays=inner.pays,
    )


def _shared(variable: Any, source: Any, *, make: Callable[[Array], Array]) -> Fold:
    """The sum of a variable that is the same for all examples: its value times their number.

    XLA does this by itself, so it does not pay alone.
    """

    def emit(scope: Any, mask: Array) -> Array:
        count, one = scope.count(mask), make(scope.read(source))
        one = lax.convert_element_type(one, sum_dtype(one.dtype))
        total = one * lax.convert_element_type(count, one.dtype)
        # No example at all is 0, where 0 times an infinity is NaN.
        return jnp.where(count > 0, total, lax.full((), 0, one.dtype))

    return Fold(variable, emit, reads=(source,))


def _of_one(x: Any, axis: int) -> Any:
    """The first of equal slices along an axis."""
    return lax.index_in_dim(x, 0, axis, keepdims=False) if jnp.ndim(x) else x


@folds(*names_with(lambda facts: facts.signs))
def terms(folder: Folder, eqn: Any, number: int, axis: int) -> Fold | None:
    """Each term is summed; long chains of them are walked without recursion."""
    variable = eqn.outvars[number]
    shape = variable.aval.shape
    found: list[tuple[int, Fold]] = []
    pending = [(1, variable)]
    while pending:
        sign, atom = pending.pop()
        made = folder.eqn_of(atom)
        is_whole = atom.aval.shape == shape
        signs = signs_of(made) if made is not None and is_whole else None
        if made is None or signs is None:
            found.append((sign, summand(folder, atom, shape=shape, axis=axis)))
        else:
            pending += [(sign * own, x) for own, x in zip(signs, made.invars, strict=True)]

    def emit(scope: Any, mask: Array) -> Array:
        return signed_sum((sign, scope.sum(fold, mask)) for sign, fold in found)

    parts = tuple(fold for _, fold in found)
    return Fold(variable, emit, parts=parts, pays=any(fold.pays for fold in parts))


def signed_sum(signed: Iterable[tuple[int, Array]]) -> Array:
    """The sum of pairs (sign, array), of which there is at least one."""
    return functools.reduce(lax.add, (x if sign > 0 else lax.neg(x) for sign, x in signed))


@folds(*names_with(lambda facts: facts.scales))
def scaled(folder: Folder, eqn: Any, number: int, axis: int) -> Fold | None:
    """A factor or divisor that all examples share is applied to the sum; integers do not divide."""
    variable, name = eqn.outvars[number], eqn.primitive.name
    found = [pair for pair in scaled_operands(eqn) if _is_factor(folder, pair[1], axis=axis)]
    is_exact = name == "mul" or jnp.issubdtype(variable.aval.dtype, np.inexact)
    if not found or not is_exact or found[0][0].aval.shape != variable.aval.shape:
        return None
    (operand, factor), *_ = found
    inner = folder.fold(operand, axis)

    def emit(scope: Any, mask: Array) -> Array:
        total = scope.sum(inner, mask)
        one = lax.convert_element_type(_of_one(scope.read(factor), axis), total.dtype)
        one = jnp.broadcast_to(one, total.shape)
        return lax.mul(total, one) if name == "mul" else lax.div(total, one)

    return Fold(variable, emit, (factor,), (inner,), inner.pays)


def _is_factor(folder: Folder, atom: Any, *, axis: int) -> bool:
    return not atom.aval.shape or folder.is_shared(atom, axis)


@folds("select_n")
def selected(folder: Folder, eqn: Any, number: int, axis: int) -> Fold | None:
    """A choice by example: each case is summed over the examples that choose it."""
    which, *cases = eqn.invars
    chosen = folder.per_example(which, axis) if which.aval.shape else None
    if chosen is None or chosen.aval.dtype != bool:
        return None
    inner = [folder.fold(case, axis) for case in cases]

    def emit(scope: Any, mask: Array) -> Array:
        masks = [scope.narrowed(mask, chosen, value=bool(value)) for value in range(len(cases))]
        return signed_sum((1, scope.sum(fold, own)) for fold, own in zip(inner, masks, strict=True))

    pays = any(fold.pays for fold in inner)
    return Fold(eqn.outvars[number], emit, (chosen,), tuple(inner), pays)


@folds("convert_element_type")
def converted(folder: Folder, eqn: Any, number: int, axis: int) -> Fold | None:
    """Between floats, where that loses nothing: a sum in 32 bits stands for one in 16."""
    (operand,), variable = eqn.invars, eqn.outvars[number]
    new, old = variable.aval.dtype, operand.aval.dtype
    is_float = jnp.issubdtype(new, np.floating) and jnp.issubdtype(old, np.floating)
    if not is_float or _compat.finfo(sum_dtype(old)).bits < _compat.finfo(sum_dtype(new)).bits:
        return None
    inner = folder.fold(operand, axis)
    dtype = sum_dtype(new)
    return through(eqn, number, inner=inner, apply=lambda _, x: lax.convert_element_type(x, dtype))


@folds("copy", "copy_p")
def copied(folder: Folder, eqn: Any, number: int, axis: int) -> Fold | None:
    """The sum of the operand itself."""
    return through(eqn, number, inner=folder.fold(eqn.invars[0], axis), apply=lambda _, x: x)


@folds("transpose")
def transposed(folder: Folder, eqn: Any, number: int, axis: int) -> Fold | None:
    """Drop the example axis from the permutation."""
    permutation = eqn.params["permutation"]
    own = permutation[axis]
    rest = [a - (a > own) for a in without(permutation, axis)]
    inner = folder.fold(eqn.invars[0], own)
    return through(eqn, number, inner=inner, apply=lambda _, x: lax.transpose(x, rest))


def axis_before_reshape(before: Sequence[int], after: Sequence[int], *, axis: int) -> int | None:
    """The operand's axis that a reshape keeps whole as `axis`; None: there is none."""
    in_front = math.prod(after[:axis])
    for own, size in enumerate(before):
        if size == after[axis] and math.prod(before[:own]) == in_front:
            return own
    return None


@folds("broadcast_in_dim")
def broadcast(folder: Folder, eqn: Any, number: int, axis: int) -> Fold | None:
    """Drop the example axis from the shape; or the broadcast repeats one slice for all examples."""
    operand, variable = eqn.invars[0], eqn.outvars[number]
    dims, shape = eqn.params["broadcast_dimensions"], without(variable.aval.shape, axis)
    rest = [d - (d > axis) for d in dims if d != axis]
    own = dims.index(axis) if axis in dims else None
    if own is None:
        return _shared(variable, operand, make=lambda x: _compat.broadcast_in_dim(x, shape, rest))
    if operand.aval.shape[own] < variable.aval.shape[axis]:
        return _shared(
            variable, operand, make=lambda x: _compat.broadcast_in_dim(_of_one(x, own), shape, rest)
        )
    inner = folder.fold(operand, own)
    return through(
        eqn, number, inner=inner, apply=lambda _, x: _compat.broadcast_in_dim(x, shape, rest)
    )


@folds("squeeze")
def squeezed(folder: Folder, eqn: Any, number: int, axis: int) -> Fold | None:
    """Drop the example axis from the operand."""
    operand = eqn.invars[0]
    dropped = {d % operand.aval.ndim for d in eqn.params["dimensions"]}
    own = [a for a in range(operand.aval.ndim) if a not in dropped][axis]
    shape = without(eqn.outvars[0].aval.shape, axis)
    return through(
        eqn, number, inner=folder.fold(operand, own), apply=lambda _, x: x.reshape(shape)
    )


@folds("reduce_sum")
def reduced(folder: Folder, eqn: Any, number: int, axis: int) -> Fold | None:
    """Sums in either order."""
    operand, axes = eqn.invars[0], eqn.params["axes"]
    own = [a for a in range(operand.aval.ndim) if a not in axes][axis]
    rest = [a - (a > own) for a in axes]
    return through(
        eqn, number, inner=folder.fold(operand, own), apply=lambda _, x: _compat.reduce_sum(x, rest)
    )


@folds("slice")
def sliced(folder: Folder, eqn: Any, number: int, axis: int) -> Fold | None:
    """Other axes are sliced, all examples kept."""
    operand, params = eqn.invars[0], eqn.params
    if eqn.outvars[0].aval.shape[axis] != operand.aval.shape[axis]:
        return None
    start, limit = (without(params[name], axis) for name in ("start_indices", "limit_indices"))
    strides = params["strides"] and without(params["strides"], axis)
    inner = folder.fold(operand, axis)
    return through(eqn, number, inner=inner, apply=lambda _, x: lax.slice(x, start, limit, strides))


@folds("pad")
def padded(folder: Folder, eqn: Any, number: int, axis: int) -> Fold | None:
    """Other axes are padded with zeros."""
    operand, value = eqn.invars
    config = eqn.params["padding_config"]
    if any(config[axis]) or not folder.is_zero(value):
        return None
    rest = without(config, axis)
    inner = folder.fold(operand, axis)
    return through(
        eqn, number, inner=inner, apply=lambda _, x: lax.pad(x, lax.full((), 0, x.dtype), rest)
    )


@folds("rev")
def reversed_(folder: Folder, eqn: Any, number: int, axis: int) -> Fold | None:
    """Other axes are reversed; the order of examples does not matter."""
    rest = [a - (a > axis) for a in eqn.params["dimensions"] if a != axis]
    return through(
        eqn, number, inner=folder.fold(eqn.invars[0], axis), apply=lambda _, x: lax.rev(x, rest)
    )


@folds("concatenate")
def concatenated(folder: Folder, eqn: Any, number: int, axis: int) -> Fold | None:
    """Along any axis but the axis of the examples."""
    along = eqn.params["dimension"]
    if along == axis:
        return None
    inner = tuple(folder.fold(atom, axis) for atom in eqn.invars)

    def emit(scope: Any, mask: Array) -> Array:
        return lax.concatenate([scope.sum(fold, mask) for fold in inner], along - (along > axis))

    pays = any(fold.pays for fold in inner)
    return Fold(eqn.outvars[number], emit, parts=inner, pays=pays)


@folds("split")
def split(folder: Folder, eqn: Any, number: int, axis: int) -> Fold | None:
    """Along any axis but the axis of the examples."""
    along, sizes = eqn.params["axis"], eqn.params["sizes"]
    if along == axis:
        return None
    start = sum(sizes[:number])

    def apply(_: Any, x: Array) -> Array:
        own = along - (along > axis)
        return lax.slice_in_dim(x, start, start + sizes[number], axis=own)

    return through(eqn, number, inner=folder.fold(eqn.invars[0], axis), apply=apply)
