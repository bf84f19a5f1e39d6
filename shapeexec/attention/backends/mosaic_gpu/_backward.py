"""The gradients of a call: which kernels make them, and what they need."""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import functools
import operator
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import Array

from shapeexec.attention.backends import _device
from shapeexec.attention.backends._base import Residuals, is_valid, whole_tiles
from shapeexec.attention.backends.mosaic_gpu import _in_groups
from shapeexec.attention.backends.mosaic_gpu._forward import forward
from shapeexec.attention.backends.mosaic_gpu._gradients import Rows
from shapeexec.attention.backends.mosaic_gpu._into_queries import is_possible
from shapeexec.attention.backends.mosaic_gpu._of_keys import backward_at_once, backward_of_keys
from shapeexec.attention.backends.mosaic_gpu._of_queries import backward_of_queries
from shapeexec.attention.backends.mosaic_gpu._prepared import Prepared, as_copied
from shapeexec.attention.backends.mosaic_gpu._tiles import TILE
from shapeexec.attention.backends.mosaic_gpu._totals import crosses_programs

Passes = Literal["by side", "by scores", "at once"]
"""The kernels of a backward pass: one for queries and one for keys, which make the scores each; one
for keys that stores the gradients of scores, and one that makes dq of these; one for all."""

_LONG = 8
"""From this mean number of tiles in a row on, one kernel is faster than one by side, with 128
columns of keys; with 64 from half of it on. See docs/adr/0009."""


def passes_of(prepared: Prepared, *, deterministic: bool) -> Passes:
    """The kernels that are allowed, and fastest.

    If dq does not cross programs, one kernel gives the same bits in each run. Else it needs an f32
    array that is zeroed, added to and rounded, which is worth its cost if rows of tiles are known
    to be long. Where memory is fast it is faster to store the gradients of scores. They are not
    stored for narrow heads, whose other products take less than the store.
    """
    config = prepared.config
    if not crosses_programs(config):
        return "at once" if is_possible(config) else "by side"
    is_long = prepared.mean_row >= _LONG * config.columns[0] / 128
    is_one = not deterministic and is_possible(config) and is_long
    is_wide = config.columns[0] > 64
    stores = is_wide and _in_groups.is_possible(prepared) and _in_groups.pays(prepared)
    if stores and (_device.memory_is_fast() or not is_one):
        return "by scores"
    return "at once" if is_one else "by side"


def gradients(
    prepared: Prepared,
    passes: Passes,
    residuals: Residuals,
    d_out: Array,
    d_logsumexp: Array | None,
) -> tuple[Array, ...]:
    """The gradients of q, k and v; see `Backend.backward`."""
    operands, config = (residuals.q, residuals.k, residuals.v), prepared.config
    arrays = as_copied(q=residuals.q, k=residuals.k, v=residuals.v)
    ends = as_copied(out=residuals.out, d_out=d_out)
    dead, of_weights = _of_queries(prepared, residuals, arrays)
    given = [] if d_logsumexp is None else [d_logsumexp]
    d_logsumexps = [jnp.where(dead, 0.0, _whole(prepared, x)) for x in given]
    with_d_out = {**arrays, "d_out": ends["d_out"]}
    if passes == "by side":
        by_query, by_key = (prepared.sparsity(side=side) for side in ("query", "key"))
        d_q, addend = backward_of_queries(
            config, by_query, of_weights=of_weights, d_logsumexp=d_logsumexps, **arrays, **ends
        )
        rows = Rows(of_weights, addend)
        made = [d_q, *backward_of_keys(config, by_key, rows=rows, **with_d_out)]
    else:
        addend = _whole(prepared, -_sum_of_products(residuals.out, d_out))
        addend = functools.reduce(operator.add, d_logsumexps, jnp.where(dead, 0.0, addend))
        rows = Rows(of_weights, addend)
        if passes == "by scores":
            made = _in_groups.backward_in_groups(prepared, rows=rows, **with_d_out)
        else:
            by_key = prepared.sparsity(side="key")
            made = backward_at_once(config, by_key, rows=rows, **with_d_out)
    pairs = zip(made, operands, strict=True)
    return tuple(gradient[:, : x.shape[1], :, : x.shape[3]] for gradient, x in pairs)


def _of_queries(
    prepared: Prepared, residuals: Residuals, arrays: dict[str, Array]
) -> tuple[Array, list[Array]]:
    """Which queries have no gradient, bool[B, N, whole tiles], and `Rows.of_weights`."""
    config = prepared.config

    def again() -> list[Array]:
        _, *statistics = forward(config, prepared.sparsity(side="query"), **arrays)
        return statistics

    logsumexp = _whole(prepared, residuals.logsumexp, padding=-jnp.inf)
    alive = is_valid(prepared.work.query_lengths, logsumexp.shape[2])[:, None]
    dead = ~alive | (logsumexp == -jnp.inf)
    return dead, config.weights.of_gradient(logsumexp, dead, again)


def _whole(prepared: Prepared, x: Array, *, padding: float = 0.0) -> Array:
    """Numbers per query, [B, N, T], for whole tiles."""
    queries = prepared.signature.query_size
    widths = ((0, 0), (0, 0), (0, whole_tiles(queries, TILE) - queries))
    return jnp.pad(x, widths, constant_values=padding)


def _sum_of_products(out: Array, d_out: Array) -> Array:
    product = out.astype(np.float32) * d_out.astype(np.float32)
    return product.sum(-1).transpose(0, 2, 1)
