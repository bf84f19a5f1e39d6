"""Constant folding with NumPy, with the same bits as the graph.

Only operations that IEEE and integer arithmetic define exactly are folded: a square root, but no
exponential. Other operations stay in both programs, with the same constants.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import numpy as jnp

from shapeexec import _compat
from shapeexec.checking._grids import Axis, mesh
from shapeexec.checking._strides import elements

_MOST_IN_A_ROW = 1 << 22
_MOST = 1 << 16
_BFLOAT16 = np.dtype(jnp.bfloat16)

Fold = Callable[..., Any]


def _truncated_quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    if a.dtype.kind not in "iu":
        return np.divide(a, b)
    if not np.all(b) or np.any((b == -1) & (a == np.iinfo(a.dtype).min)):
        return None
    return (np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(a.dtype)


def _truncated_remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    if a.dtype.kind in "iu" and not np.all(b):
        return None
    return np.fmod(a, b)


def _converted(a: np.ndarray, *, new_dtype: Any, **_: Any) -> np.ndarray | None:
    if _compat.is_extended(new_dtype):
        return None
    to_integer = np.dtype(new_dtype).kind in "iu"
    if to_integer and a.dtype.kind not in "iub":  # out of range NumPy's result is undefined
        info = np.iinfo(new_dtype)
        if not np.all((a >= info.min) & (a <= info.max / 2)):
            return None
    return a.astype(new_dtype)


def _iota(*, dtype: Any, shape: tuple[int, ...], dimension: int, **_: Any) -> np.ndarray:
    along = [-1 if axis == dimension else 1 for axis in range(len(shape))]
    row = np.arange(shape[dimension]).astype(dtype).reshape(along)
    return np.broadcast_to(row, shape)


def _broadcast(
    a: np.ndarray, *, shape: tuple[int, ...], broadcast_dimensions: tuple[int, ...], **_: Any
) -> np.ndarray:
    spread = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, a.shape, strict=True):
        spread[axis] = size
    return np.broadcast_to(a.reshape(spread), shape)


def _reshaped(
    a: np.ndarray, *, new_sizes: tuple[int, ...], dimensions: tuple[int, ...] | None, **_: Any
) -> np.ndarray:
    return (a if dimensions is None else a.transpose(dimensions)).reshape(new_sizes)


def _slice(
    a: np.ndarray, *, start_indices: Any, limit_indices: Any, strides: Any, **_: Any
) -> np.ndarray:
    steps = strides or [1] * a.ndim
    return a[tuple(map(slice, start_indices, limit_indices, steps))]


def _selected(which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    whole = np.broadcast_to(which, cases[0].shape)
    if len(cases) > 2:
        return np.choose(whole.astype(np.intp), cases)
    return np.where(whole, *cases[::-1])


def _power(a: np.ndarray, *, y: int) -> np.ndarray | None:
    return a**y if a.dtype.kind in "iu" and y >= 0 else None


def _shift_left(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    bits = 8 * a.dtype.itemsize
    inside = (b >= 0) & (b < bits)
    return np.where(inside, np.left_shift(a, np.where(inside, b, 0)), 0).astype(a.dtype)


def _clamped(low: np.ndarray, a: np.ndarray, high: np.ndarray) -> np.ndarray:  # noqa: PLR0917 - the operands of `clamp`
    return np.minimum(np.maximum(a, low), high)


def _picked(a: np.ndarray, *, axes: Sequence[Axis]) -> np.ndarray:
    return a[mesh(axes)]


def _viewed(a: np.ndarray, *, offset: int, loops: Sequence[tuple[int, int]]) -> np.ndarray:
    return a.reshape(-1)[elements(offset, loops)]


def _placed(a: np.ndarray, *, axes: Sequence[Axis], shape: Sequence[int]) -> np.ndarray:
    whole = np.zeros(shape, a.dtype)
    whole[mesh(axes)] = a
    return whole


def _shaped(a: np.ndarray, *, new_sizes: tuple[int, ...]) -> np.ndarray:
    return a.reshape(new_sizes)


def _transposed(a: np.ndarray, *, permutation: tuple[int, ...]) -> np.ndarray:
    return a.transpose(permutation)


def _reversed(a: np.ndarray, *, dimensions: tuple[int, ...]) -> np.ndarray:
    return np.flip(a, dimensions)


def _concatenated(*parts: np.ndarray, dimension: int) -> np.ndarray:
    return np.concatenate(parts, dimension)


_FOLDS: Mapping[str, Fold] = {
    "add": np.add,
    "add_any": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "max": np.maximum,
    "min": np.minimum,
    "div": _truncated_quotient,
    "rem": _truncated_remainder,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "is_finite": np.isfinite,
    "integer_pow": _power,
    "square": np.square,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shift_left": _shift_left,
    "select_n": _selected,
    "clamp": _clamped,
    "convert_element_type": _converted,
    "iota": _iota,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshaped,
    "shaped": _shaped,
    "view": _viewed,
    "place": _placed,
    "transpose": _transposed,
    "rev": _reversed,
    "slice": _slice,
    "pick": _picked,
    "concatenate": _concatenated,
}


_POINTWISE = frozenset(
    """add add_any sub mul neg abs sign max min div rem sqrt floor ceil is_finite integer_pow square
    eq ne lt le gt ge and or xor not shift_left select_n clamp convert_element_type""".split()
)
_MOVES = frozenset("broadcast_in_dim reshape shaped transpose view rev slice pick".split())


def folded(
    op: str, operands: Sequence[np.ndarray], *, params: Mapping[str, Any], kind: Any
) -> np.ndarray | None:
    """The result of an operation on constants; None: it is not folded."""
    fold = _FOLDS.get(op)
    dtypes = [kind.dtype, *(a.dtype for a in operands)]
    if fold is None or not all(map(_is_plain, dtypes)):
        return None
    known = params
    if op in _POINTWISE:  # the others are about accuracy and the dtype of the result
        known = {name: params[name] for name in ("y", "new_dtype") if name in params}
    with np.errstate(all="ignore"):
        if all(a.size and not any(a.strides) for a in operands) and operands and kind.size:
            elements = [a[(0,) * a.ndim] for a in operands]
            if op in _MOVES:
                return np.broadcast_to(elements[0], kind.shape)
            if op in _POINTWISE:
                one = fold(*elements, **known)
                return None if one is None else _spread(one, kind)
        result = fold(*operands, **known) if _is_small(kind.shape) else None
    is_right = result is not None and (result.shape, result.dtype) == (kind.shape, kind.dtype)
    return np.asarray(result) if is_right else None


def folded_each(op: str, operands: Sequence[np.ndarray], *, dtype: Any) -> np.ndarray | None:
    """The result of a pointwise operation on rows of scalars; None: it is not folded."""
    if op not in _POINTWISE or op == "integer_pow":
        return None
    if not all(map(_is_plain, [dtype, *(a.dtype for a in operands)])):
        return None
    known = {"new_dtype": dtype} if op == "convert_element_type" else {}
    with np.errstate(all="ignore"):
        result = _FOLDS[op](*operands, **known)
    return result if result is not None and result.dtype == dtype else None


def _spread(one: Any, kind: Any) -> np.ndarray | None:
    return np.broadcast_to(np.asarray(one), kind.shape) if one.dtype == kind.dtype else None


def _is_plain(dtype: Any) -> bool:
    return not _compat.is_extended(dtype) and (np.dtype(dtype).kind in "biuf" or dtype == _BFLOAT16)


def _is_small(shape: tuple[int, ...]) -> bool:
    size = math.prod(shape)
    return size <= _MOST or (size <= _MOST_IN_A_ROW and size == max(shape, default=1))
