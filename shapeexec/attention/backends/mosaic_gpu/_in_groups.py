"""All gradients by way of stored gradients of scores, a group of heads after the other.

The array of these (`_d_scores`) would grow with the product of the lengths; so there is room for
those of a few heads, which the next group overwrites.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import math
from typing import Any

from jax import Array, lax

from shapeexec.attention.backends.mosaic_gpu._d_scores import TALL, Layout
from shapeexec.attention.backends.mosaic_gpu._from_scores import queries_from_scores
from shapeexec.attention.backends.mosaic_gpu._gradients import Rows
from shapeexec.attention.backends.mosaic_gpu._of_keys import backward_into_scores
from shapeexec.attention.backends.mosaic_gpu._prepared import Prepared
from shapeexec.attention.backends.mosaic_gpu._tiles import TILE, tiles_of
from shapeexec.attention.masks import And, Causal, Mask

_BYTES = 9 << 28
"""The most bytes of gradients of scores: those of eight causal heads of 16,384 tokens."""

_ITEMS = 3
"""Items of work for each program, by which the programs of a group end together."""

_MOST_ARRAYS = 4
"""The most arrays of a mask with a number per query that the rings have room for."""


def is_possible(prepared: Prepared) -> bool:
    """Whether the kernels can make the gradients of a call by way of those of its scores."""
    config = prepared.config
    is_narrow = max(config.columns) <= 128 and not config.is_biased
    has_room = is_narrow and len(config.rule.of_side(0)) <= _MOST_ARRAYS
    return config.any_length and has_room and _bytes(prepared) <= _BYTES


def pays(prepared: Prepared) -> bool:
    """Whether a group has work for all programs up to its end, as far as that is known."""
    if prepared.work.by_query.reach is not None:
        return True
    heads = _heads_at_a_time(prepared)
    items = heads * tiles_of(prepared.signature.key_size)
    is_one = heads == prepared.signature.batch * prepared.signature.key_heads
    return is_one or items >= _ITEMS * prepared.config.programs


def backward_in_groups(
    prepared: Prepared, *, rows: Rows, q: Array, k: Array, v: Array, d_out: Array
) -> list[Array]:
    """The gradients of queries, keys and values; 0 behind the valid length."""
    signature, config = prepared.signature, prepared.config
    group, all_heads = signature.group, signature.batch * signature.key_heads
    at_a_time = _heads_at_a_time(prepared)
    lengths = signature.query_size, signature.key_size
    layout = layout_of(prepared)
    of_row = TILE if prepared.work.by_query.reach is None else TALL
    array = layout.shape(at_a_time * group, lengths, q.dtype)
    d_scores = _empty(array.shape, array.dtype, axes=4)
    # XLA would make one array of two that are alike, and copy it.
    d_q, d_k, d_v = (_empty(x.shape, x.dtype, axes=n) for n, x in enumerate((q, k, v), start=1))
    for first in range(0, all_heads, at_a_time):
        heads = min(at_a_time, all_heads - first)
        by_key = prepared.sparsity(side="key", span=(first, heads))
        span = first * group, heads * group
        by_query = prepared.sparsity(side="query", of_row=of_row, span=span)
        arrays = {"d_scores": d_scores, "d_k": d_k, "d_v": d_v}
        inputs = {"q": q, "k": k, "v": v, "d_out": d_out}
        d_scores, d_k, d_v = backward_into_scores(
            config, layout, by_key, rows=rows, updated=arrays, **inputs
        )
        # It returns the array unchanged, for the next group to overwrite it afterwards.
        d_scores, d_q = queries_from_scores(
            config, layout, by_query, k=k, updated={"d_scores": d_scores, "d_q": d_q}
        )
    return [d_q, d_k, d_v]


def layout_of(prepared: Prepared) -> Layout:
    """The layout of the gradients of scores."""
    return Layout(is_packed=_hides_later_keys(prepared.work.mask))


def _hides_later_keys(mask: Mask) -> bool:
    """Whether no query sees a key behind its own position, as far as the mask's type tells."""
    if isinstance(mask, And):
        return any(map(_hides_later_keys, mask.masks))
    is_causal = isinstance(mask, Causal) and mask.align == "start"
    return is_causal and isinstance(mask.offset, int) and mask.offset <= 0


def _heads_at_a_time(prepared: Prepared) -> int:
    """The number of key heads in a group, counted over all examples; groups are about as large."""
    heads = prepared.signature.batch * prepared.signature.key_heads
    groups = -(-heads // max(_BYTES // _bytes(prepared), 1))
    return -(-heads // groups)


def _bytes(prepared: Prepared) -> int:
    """The bytes of the gradients of scores of the query heads of one key head."""
    signature = prepared.signature
    lengths = signature.query_size, signature.key_size
    array = layout_of(prepared).shape(signature.group, lengths, signature.dtype)
    return math.prod(array.shape) * 2


def _empty(shape: tuple[int, ...], dtype: Any, *, axes: int) -> Array:
    """An array that may hold anything, allocated with as many axes."""
    leading = math.prod(shape[: len(shape) - axes + 1])
    return lax.empty((leading, *shape[len(shape) - axes + 1 :]), dtype).reshape(shape)
