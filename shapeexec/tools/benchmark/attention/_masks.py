"""Turns patterns into masks of this library, and computes their share of tiles with work.

Patterns are defined in `_problems`, and `_ours` computes with the masks.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import functools
import operator

import jax.numpy as jnp

import shapeexec as sx
from shapeexec.attention.masks import Dense, Mask
from shapeexec.tools.benchmark.attention._problems import TILE, Pattern


def mask_of(pattern: Pattern, length: int) -> Mask:
    """A pattern as a mask of this library."""
    if pattern.density is not None:
        kinds = pattern.tiles(length).astype("uint8") * 2
        return sx.BlockMask(kinds, (TILE, TILE), (length, length))
    if pattern.pair_share is not None:
        return Dense(jnp.asarray(pattern.elements(length)))
    masks: list[Mask] = []
    if pattern.is_causal:
        masks.append(sx.Causal())
    if pattern.window is not None:
        masks.append(sx.SlidingWindow(pattern.window - 1, 0 if pattern.is_causal else None))
    if pattern.documents:
        masks.append(sx.Documents(jnp.asarray(pattern.document_ids(length))))
    return functools.reduce(operator.and_, masks or [sx.Full()])


@functools.lru_cache(maxsize=64)  # each row of a table asks
def tiles_of(pattern: Pattern, length: int) -> sx.BlockMask:
    """The 128-tiles that a pattern leaves, each with its kind."""
    if pattern.pair_share is not None:  # NumPy finds the tiles of a NumPy array, without compiling
        return sx.BlockMask.from_dense(pattern.elements(length), (TILE, TILE))
    mask = mask_of(pattern, length)
    return sx.BlockMask.from_mask(mask, query_size=length, key_size=length, tile=(TILE, TILE))


def tile_density(pattern: Pattern, length: int) -> float:
    """The share of 128-tiles that hold an unmasked pair: `BlockMask.density`."""
    return float(tiles_of(pattern, length).density)
