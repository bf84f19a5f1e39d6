"""All gradients by way of stored gradients of scores, a group of heads after the other.

The array of these (`_d_scores`) would grow with the product of the lengths; so there is room for
those of a few heads, which the next group overwrites.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownVariableType=false

import math

import jax
from jax import Array

from shapeexec.attention.backends import _device
from shapeexec.attention.backends._reach import Reach
from shapeexec.attention.backends.mosaic_gpu._d_scores import TALL, Layout
from shapeexec.attention.backends.mosaic_gpu._from_scores import queries_from_scores
from shapeexec.attention.backends.mosaic_gpu._gradients import Rows
from shapeexec.attention.backends.mosaic_gpu._launch import nothing_before
from shapeexec.attention.backends.mosaic_gpu._of_keys import backward_into_scores
from shapeexec.attention.backends.mosaic_gpu._prepared import Prepared
from shapeexec.attention.backends.mosaic_gpu._tiles import TILE, tiles_of
from shapeexec.attention.masks import And, Causal, Mask, SlidingWindow

_BYTES = 9 << 28
"""The most bytes of gradients of scores: those of eight causal heads of 16,384 tokens."""

_SHARE = 0.8
"""The least share of a group's time that programs have work, where it is known."""

_ROWS = 3
"""Rows of tiles for each program, by which the programs of a group end together at any rate."""

_LONG = 8
"""From this mean number of tiles in a row on, it pays where memory is slow. See docs/adr/0009."""

_MOST_GROUPS = 64
"""The most groups, which a program has one after the other."""

_MOST_ARRAYS = 4
"""The most arrays of a mask with a number per query that the rings have room for."""


def is_possible(prepared: Prepared) -> bool:
    """Whether the kernels can make the gradients of a call by way of those of its scores."""
    config = prepared.config
    is_narrow = max(config.columns) <= 128 and not config.is_biased
    has_room = is_narrow and len(config.rule.of_side(0)) <= _MOST_ARRAYS
    return config.any_length and has_room and _bytes(prepared) <= _BYTES


def pays(prepared: Prepared) -> bool:
    """Whether a group has work for all programs up to its end, as far as that is known.

    Where memory is slow, rows must be long, too.
    """
    if not _device.memory_is_fast() and _likely_row(prepared) < _LONG:
        return False
    heads, all_heads = _heads_at_a_time(prepared), _all_heads(prepared)
    if heads >= all_heads:
        return True
    # The work of a group for each program, in rows of the length of the longest one.
    rows = heads * tiles_of(prepared.signature.key_size) / prepared.config.programs
    reach = prepared.work.by_query.reach
    if reach is None:
        is_even = rows >= _ROWS
    else:
        work = rows * _share(reach)
        is_even = work / max(1, math.ceil(work) if reach.offset is None else work) >= _SHARE
    return is_even and -(-all_heads // heads) <= _MOST_GROUPS


def _likely_row(prepared: Prepared) -> float:
    """The mean number of tiles in a row: with valid lengths, if these are near the sizes."""
    reach = prepared.work.by_query.reach
    if prepared.mean_row or reach is None:
        return prepared.mean_row
    return tiles_of(prepared.signature.query_size) * _share(reach)


def _share(reach: Reach) -> float:
    """The mean length of rows, relative to the longest one."""
    return 1.0 if reach.offset is None else 0.5


def backward_in_groups(
    prepared: Prepared, *, rows: Rows, q: Array, k: Array, v: Array, d_out: Array
) -> list[Array]:
    """The gradients of queries, keys and values; 0 behind the valid length."""
    config, layout, group = prepared.config, _layout(prepared), prepared.signature.group
    inputs = {"rows": rows, "q": q, "k": k, "v": v, "d_out": d_out}
    of_row = TILE if prepared.work.by_query.reach is None else TALL
    at_a_time, all_heads = _heads_at_a_time(prepared), _all_heads(prepared)
    of_queries, of_keys = {}, {}
    after = nothing_before()  # so that the next group may have the memory of this one's scores
    for first in range(0, all_heads, at_a_time):
        heads = min(at_a_time, all_heads - first)
        by_key = prepared.sparsity(side="key", span=(first, heads))
        static = config, layout, at_a_time * group
        made = backward_into_scores(*static, by_key, others=of_keys, after=after, **inputs)
        d_scores, d_k, d_v, after = made
        span = first * group, heads * group
        by_query = prepared.sparsity(side="query", of_row=of_row, span=span)
        static = config, layout, q.shape
        made = {"k": k, "d_scores": d_scores, "others": of_queries, "after": after}
        d_q, after = queries_from_scores(*static, by_query, **made)
        of_queries, of_keys = {"d_q": d_q}, {"d_k": d_k, "d_v": d_v}
    return [*of_queries.values(), *of_keys.values()]


def _layout(prepared: Prepared) -> Layout:
    return Layout(is_packed=_hides_later_keys(prepared.work.mask))


def _hides_later_keys(mask: Mask) -> bool:
    """Whether no query sees a key behind its own position, as far as the mask's type tells."""
    if isinstance(mask, And):
        return any(map(_hides_later_keys, mask.masks))
    seen = mask.right if isinstance(mask, SlidingWindow) else None
    if isinstance(mask, Causal) and mask.align == "start":
        seen = mask.offset
    return isinstance(seen, int) and seen <= 0


def _all_heads(prepared: Prepared) -> int:
    """The number of key heads of all examples."""
    return prepared.signature.batch * prepared.signature.key_heads


def _heads_at_a_time(prepared: Prepared) -> int:
    """The number of key heads in a group, counted over all examples; groups are about as large."""
    heads = _all_heads(prepared)
    groups = -(-heads // max(_BYTES // _bytes(prepared), 1))
    return -(-heads // groups)


def _bytes(prepared: Prepared) -> int:
    """The bytes of the gradients of scores of the query heads of one key head."""
    array = _array(prepared, heads=prepared.signature.group)
    return math.prod(array.shape) * array.dtype.itemsize


def _array(prepared: Prepared, *, heads: int) -> jax.ShapeDtypeStruct:
    """The array of the gradients of scores of as many query heads."""
    signature = prepared.signature
    lengths = signature.query_size, signature.key_size
    return _layout(prepared).shape(heads, lengths, signature.dtype)
