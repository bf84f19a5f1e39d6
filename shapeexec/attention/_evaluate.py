"""Evaluates every pair of some tiles, in bounded memory, to find their exact kinds.

It runs at trace time, for masks whose arrays are known.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec.attention._positions import Gathered, block
from shapeexec.attention.masks._base import Array, Tile

_ELEMENTS = 1 << 20  # pairs evaluated at once


def look_into(
    mask: Any, tiles: np.ndarray, *, tile: Tile, lengths: tuple[Array, Array]
) -> tuple[np.ndarray, np.ndarray]:
    """Whether any, and whether all pairs of some tiles are allowed.

    Args:
        mask: A mask, its arrays known.
        tiles: int[n, 4]: the example, the head, the query tile and the key tile of each.
        tile: Queries and keys of a tile.
        lengths: Valid lengths of queries and keys, i32[B or 1] or ints. Pairs behind them are
            ignored.

    Returns:
        bool[n] each. Takes time for n * tile[0] * tile[1] pairs, and memory for some 2**20.
    """
    at_once = max(1, _ELEMENTS // (tile[0] * tile[1]))
    known = [np.asarray(length, np.int32).reshape(-1) for length in lengths]
    some, every = np.zeros(len(tiles), bool), np.zeros(len(tiles), bool)
    # Under a caller's trace the results would be tracers.
    with jax.ensure_compile_time_eval():
        mask = jax.tree.map(jnp.asarray, mask)  # to the device once, not with every part
        for start in range(0, len(tiles), at_once):
            part = tiles[start : start + at_once].astype(np.int32)
            filled = np.resize(part, (at_once, 4)) if len(tiles) > at_once else part
            answers = _look(mask, filled, lengths=(known[0], known[1]), tile=tile)
            stop = start + len(part)
            some[start:stop], every[start:stop] = (np.asarray(a)[: len(part)] for a in answers)
    return some, every


def asks_for(mask: Any) -> tuple[bool, bool]:
    """Whether a mask may depend on the example, and on the head."""
    two = np.arange(2, dtype=np.int32)
    one = np.zeros((1, 1, 1, 1), np.int32)
    at = Gathered(two.reshape(2, 1, 1, 1), two.reshape(1, 2, 1, 1), one, one, one + 1, one + 1)
    # A mask that depends on the example or the head broadcasts against its number.
    shape = jax.eval_shape(lambda: jnp.asarray(mask.allows(at))).shape
    batch, heads = ((1,) * 4 + shape)[-4:-2]
    return batch > 1, heads > 1


@functools.partial(jax.jit, static_argnames="tile")
def _look(
    mask: Any, tiles: Array, *, lengths: tuple[Array, Array], tile: Tile
) -> tuple[Array, Array]:
    def one(number: Array) -> tuple[Array, Array]:
        batch, head, query_tile, key_tile = number
        first = (query_tile * tile[0], key_tile * tile[1])
        at = block(first, tile, lengths=lengths, batch=batch, head=head)
        inside = (at.query < at.query_length) & (at.key < at.key_length)
        allowed = jnp.asarray(mask.allows(at))
        return jnp.any(allowed & inside), jnp.all(allowed | ~inside)

    return jax.vmap(one)(tiles)
