"""Compares results, exactly or up to the order of floating-point operations.

It knows arrays and functions, and nothing of padding.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import dtypes
from jax import numpy as jnp

from shapeexec import _compat

_TOLERANCES = {1: 0.6, 2: 0.05, 4: 2e-5, 8: 1e-11}
"""The tolerance relative to the largest element, by bytes of a float."""

_WIDE = {"int": np.int64, "float": np.float64, "complex": np.complex128}
"""The wide NumPy dtype for each kind of dtype; int4 and similar dtypes count as integers."""

_NUDGES = 4
_AMPLIFIED = 64


def comparable(x: Any) -> np.ndarray:
    """An array that NumPy can compare: keys become their data, narrow floats f64."""
    if _compat.is_extended(x.dtype):
        x = jax.random.key_data(x)
    x = np.asarray(x)
    if x.dtype == dtypes.float0:
        return np.zeros(x.shape, bool)
    kind = _compat.kind_of_dtype(x.dtype)
    return x if x.dtype.kind in "biu" else x.astype(_WIDE[kind])


def difference(got: Any, want: Any, *, reach: float = 0.0) -> str | None:
    """Describe how an array differs from the expected one by more than rounding; None: it does not.

    Args:
        got: An array.
        want: The expected array, with the expected shape and dtype. NaN equals NaN.
        reach: The magnitude of intermediate values, if larger than the elements' magnitude.
    """
    if _described(got) != _described(want):
        return f"{_described(got)} instead of {_described(want)}"
    a, b = comparable(got), comparable(want)
    wrong = _wrong_elements(a, b, tolerance=_tolerance(want.dtype), scales=reach)
    if not wrong.any():
        return None
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{a[index]} instead of {b[index]} at {list(index)}; "
        f"{np.count_nonzero(wrong)} of {wrong.size} elements differ"
    )


def is_rounding(
    fn: Callable[..., Sequence[Any]],
    leaves: Sequence[Any],
    *,
    got: Sequence[Any],
    want: Sequence[Any],
) -> bool:
    """Whether `fn` is so sensitive to rounding that rounding explains a difference of its results.

    It runs again without fusion, and with each float argument changed at random by one unit in the
    last place. A finite difference is explained if no element differs by more than a multiple of
    the change of its leaf; NaN or infinity is explained if that element becomes NaN or infinite.
    """
    rng = np.random.default_rng(0)
    others = [fn(*[_nudged(leaf, rng) for leaf in leaves]) for _ in range(_NUDGES)]
    with jax.disable_jit(), contextlib.suppress(ValueError):  # JAX refuses a scan of no steps there
        others.append(fn(*map(jnp.asarray, leaves)))
    least = magnitude(leaves) * float(jnp.finfo(np.float32).eps)  # where all terms cancel
    return all(
        _is_explained(
            comparable(g), comparable(w), others=[comparable(o) for o in column], least=least
        )
        or not _wrong_elements(
            comparable(g), comparable(w), tolerance=_tolerance(w.dtype), scales=0.0
        ).any()
        for g, w, *column in zip(got, want, *others, strict=True)
    )


def _is_explained(
    got: np.ndarray, want: np.ndarray, *, others: Sequence[np.ndarray], least: float
) -> bool:
    if got.dtype.kind in "biu":
        least = 0.0
    off = _distance(got, want)
    moved = [_distance(other, want) for other in others]
    spread = max(least, *(float(np.max(m, initial=0, where=np.isfinite(m))) for m in moved))
    anyhow = np.any([_distance(other, got) <= _AMPLIFIED * spread for other in others], axis=0)
    return bool(np.all((off <= _AMPLIFIED * spread) | (np.isinf(off) & anyhow)))


def magnitude(arrays: Sequence[Any]) -> float:
    """The largest finite magnitude of the float elements in `arrays`."""
    largest = 0.0
    for x in map(jnp.asarray, arrays):
        if jnp.issubdtype(x.dtype, np.inexact):
            largest = max(largest, _scale(comparable(x)))
    return largest


def _tolerance(dtype: Any) -> float:
    if not jnp.issubdtype(dtype, np.inexact):
        return 0.0
    is_complex = jnp.issubdtype(dtype, np.complexfloating)
    return _TOLERANCES[np.dtype(dtype).itemsize // (2 if is_complex else 1)]


def _wrong_elements(a: np.ndarray, b: np.ndarray, *, tolerance: float, scales: float) -> np.ndarray:
    if not tolerance:
        return a != b
    return ~(_distance(a, b) <= tolerance * max(_scale(b), scales))


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The distance of elements: 0 if equal or both NaN; infinite if only one is finite."""
    if a.dtype.kind in "biu":
        return np.where(a == b, 0.0, np.inf)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        distance = np.abs(a - b)
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))


def _scale(x: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        return float(np.max(np.abs(x), initial=0.0, where=np.isfinite(x)))


def _nudged(leaf: Any, rng: np.random.Generator) -> Any:
    if not hasattr(leaf, "dtype") or not jnp.issubdtype(leaf.dtype, np.floating):
        return leaf
    x = np.asarray(leaf)
    eps = float(jnp.finfo(x.dtype).eps)
    with np.errstate(all="ignore"):
        moved = x.astype(np.float64) * (1 + eps * rng.choice((-1, 1), x.shape))
    return jnp.asarray(np.asarray(moved).astype(x.dtype))


def _described(x: Any) -> str:
    return f"{x.dtype}{list(np.shape(x))}"
