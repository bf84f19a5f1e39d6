"""Packs the queries of several heads into the rows of a tile, to read their shared keys once.

There is a row for each query of each of the heads. Masks and biases are evaluated for the query and
the head of each row, and their arrays by query or by head are laid out by row. The kernel is in
`_few`.
"""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from shapeexec.attention.backends._base import Signature, whole_tiles
from shapeexec.attention.backends.mosaic_gpu._rules import ArrayUse, Rule
from shapeexec.attention.backends.mosaic_gpu._scratch import ROW_GROUP
from shapeexec.attention.backends.mosaic_gpu._tiles import ROWS, Packing

_BY_HEAD = frozenset({"of_table", "of_tile"})  # roles whose arrays are read by one head at a time


def packing_of(signature: Signature, rule: Rule, *, list_heads: int, most_rows: int) -> Packing:
    """Pack as many heads of a group as fit into the rows and can be evaluated together.

    Args:
        signature: The call's signature.
        rule: The static part of mask and bias.
        list_heads: N of the lists: heads with different lists are not packed.
        most_rows: The greatest number of rows.
    """
    apart = list_heads > 1 or any(
        known.role in _BY_HEAD and known.shape[1] > 1 for known in rule.uses
    )
    group, queries = signature.group, signature.query_size
    fits = [n for n in range(1, group + 1) if group % n == 0 and n * queries <= most_rows]
    heads = 1 if apart else max(fits)
    return Packing(queries, heads, _pitch(queries, heads, rule))


def _pitch(queries: int, heads: int, rule: Rule) -> int:
    """The rows of a head: more than queries, if so the kernel can read each head, at no cost.

    A single query of each head need not be packed, and arrays of a mask or bias are made for rows
    without gaps.
    """
    pitch = whole_tiles(queries, ROW_GROUP)
    fills = [-(-heads * rows // ROWS) for rows in (queries, pitch)]  # warpgroups
    is_free = fills[0] == fills[1] and (pitch == queries or (not rule.uses and queries < ROW_GROUP))
    return pitch if queries > 1 and is_free else queries


def packed(rule: Rule, leaves: Sequence[Array], packing: Packing) -> tuple[Rule, list[Array]]:
    """A rule and its arrays for packed rows."""
    pairs = [_packed(use, leaf, packing) for use, leaf in zip(rule.uses, leaves, strict=True)]
    uses = tuple(use for use, _ in pairs)
    return dataclasses.replace(rule, uses=uses), [leaf for _, leaf in pairs]


def packed_queries(packing: Packing, q: Array) -> Array:
    """[B, T, N, H] as [lists, rows, 1, H]: a list for each example and its packed heads.

    Unchanged, if the kernel reads the queries of each head.
    """
    if packing.by_head:
        return q
    return q.transpose(0, 2, 1, 3).reshape(-1, packing.rows, 1, q.shape[3])


def unpacked(packing: Packing, x: Array, *, batch: int) -> Array:
    """[lists, rows, ...] as [B, N, T, ...]."""
    return x.reshape(batch, -1, packing.pitch, *x.shape[2:])[:, :, : packing.queries]


def _packed(use: ArrayUse, leaf: Array, packing: Packing) -> tuple[ArrayUse, Array]:
    """One array [B or 1, N or 1 ...] and its use, for packed rows."""
    shape = leaf.shape
    if use.role == "of_queries":
        return use, jnp.tile(leaf, (1, packing.heads))
    if packing.heads > 1 and use.role == "of_head" and shape[1] > 1:
        return _of_rows(use, leaf[:, :, None, None], packing)
    if use.role != "of_pairs":
        return use, leaf
    by_head = packing.heads > 1 and shape[1] > 1
    if shape[3] > 1 and (shape[2] > 1 or by_head):
        of_pairs = dataclasses.replace(use, side=None)
        return of_pairs, _by_row(leaf, packing)
    return _of_rows(use, leaf, packing) if shape[2] > 1 or by_head else (use, leaf)


def _of_rows(use: ArrayUse, leaf: Array, packing: Packing) -> tuple[ArrayUse, Array]:
    return dataclasses.replace(use, side=0), _by_row(leaf, packing)[..., 0]


def _by_row(leaf: Array, packing: Packing) -> Array:
    """[B or 1, N or 1, T or 1, S or 1] as [B or 1, packed heads or 1, rows, S or 1]."""
    batch, heads, _, keys = leaf.shape
    outer = max(heads // packing.heads, 1)
    leaf = leaf.reshape(batch, outer, -1 if heads > 1 else 1, leaf.shape[2], keys)
    whole = (batch, outer, packing.heads, packing.queries, keys)
    return jnp.broadcast_to(leaf, whole).reshape(batch, outer, packing.rows, keys)
