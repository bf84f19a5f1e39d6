"""The cost of attention: the matrix products of its tiles with work, by the density of its mask.

`costing` adds up programs, and `_blocks` finds the tiles of a mask.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from shapeexec.attention._blocks import BlockMask
from shapeexec.attention._call import Call, key_size, split
from shapeexec.attention._primitive import attention_p, gradient_p, tangent_p
from shapeexec.costing import Row, Use, add_row
from shapeexec.costing._polynomial import Polynomial, constant, make_factor
from shapeexec.costing._table import product

_TILE = (128, 128)


def _pairs(use: Use) -> Polynomial:
    """The pairs of query and key, of all examples and heads, in tiles with work."""
    call: Call = use.params["call"]
    operands, _ = split(call, use.operands)
    batch, queries, heads, _ = operands.query
    keys = key_size(operands.key, operands.pages)
    return product((batch, queries, keys, heads)) * _density(call, queries=queries, keys=keys)


def _density(call: Call, *, queries: Polynomial, keys: Polynomial) -> Polynomial:
    """The share of tiles with work; 1 where only values of a mask's arrays tell it."""
    if call.mask.num_leaves:
        return constant(1 if call.density is None else call.density)
    mask = jax.tree.unflatten(call.mask, [])

    def at(sizes: Mapping[str, Any]) -> Any:
        of_pairs = np.vectorize(lambda *lengths: _share(mask, lengths), otypes=[float])
        return of_pairs(queries(sizes), keys(sizes))

    return make_factor(f"density({mask}, {queries}, {keys})", at)


@functools.lru_cache(maxsize=4096)
def _share(mask: Any, lengths: tuple[float, float]) -> float:
    queries, keys = (max(1, int(length)) for length in lengths)
    found = BlockMask.from_mask(mask, query_size=queries, key_size=keys, tile=_TILE)
    return float(found.density)


def _products(count: int) -> Row:
    """The row of a pass with this many matrix products for each pair."""

    def flops(use: Use) -> Polynomial:
        return _pairs(use) * use.operands[0][3] * (2 * count)

    return Row(flops=flops, transcendentals=_pairs)


add_row(attention_p.name, _products(2))
add_row(tangent_p.name, _products(4))
add_row(gradient_p.name, _products(5))
