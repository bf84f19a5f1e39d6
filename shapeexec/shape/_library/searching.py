"""Stand-ins for binary search and `squeeze`, which read the number of elements.

When a stand-in runs is decided in `_compat`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shapeexec import _compat


@_compat.stands_in("searchsorted")
def searchsorted(
    original: Any,
    sorted_arr: Any,
    query: Any,
    /,
    *,
    side: str = "left",
    dimension: int = 0,
    batch_dims: int = 0,
    method: str = "scan",
    dtype: Any = np.int32,
) -> Any:
    """The implementation of JAX's primitive, which itself checks that the size fits `dtype`."""
    del original
    implementation = _compat.jax_function("numpy.hijax", "_searchsorted_impl")
    options = {"dimension": dimension, "batch_dims": batch_dims, "side": side, "method": method}
    return implementation(sorted_arr, query, dtype=np.dtype(dtype), **options)


@_compat.stands_in("searchsorted_scan")
def searchsorted_scan(
    original: Any, sorted_arr: Any, query: Any, side: str, dtype: Any, unrolled: bool
) -> Any:
    """The same binary search, with as many steps as the size has bits.

    The steps are exactly those of the plain search, so unsorted arrays give its results, too.
    """
    (size,) = sorted_arr.shape
    if not _compat.is_symbolic(size):  # the number of steps is known
        return original(sorted_arr, query, side=side, dtype=dtype, unrolled=unrolled)
    compare = "_sort_le_comparator" if side == "left" else "_sort_lt_comparator"
    goes_left = _compat.jax_function("lax.lax", compare)
    sorted_arr, query = map(lax.stop_gradient, (sorted_arr, query))  # the results are integers

    def halve(_: Any, interval: Any) -> Any:
        low, high = interval
        middle = low + (high - low) // 2
        is_left = goes_left(query, jnp.take(sorted_arr, middle, mode="clip"))
        return lax.select(is_left, low, middle), lax.select(is_left, middle, high)

    low = jnp.zeros_like(query, np.int32)
    high = jnp.full_like(low, jnp.asarray(size, np.int32))
    last = cast(Any, jax.lax.fori_loop(0, bit_length(size), halve, (low, high)))[1]
    return last.astype(dtype)


def bit_length(size: Any) -> Any:
    """i32[]: the number of bits of a size, `ceil(log2(size + 1))`."""
    return 32 - lax.clz(jnp.asarray(size, np.int32))


@_compat.stands_in("squeeze")
def squeeze(original: Any, a: Any, axis: Any) -> Any:
    """Whether an axis has one element is a comparison that becomes a guard."""
    if axis is None:
        axis = tuple(number for number, dim in enumerate(a.shape) if dim == 1)
    return original(a, axis)
