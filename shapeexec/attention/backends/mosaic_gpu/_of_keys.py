"""The backward pass for keys and values, or for all three: a persistent kernel over lists by key.

This module launches it; the kernel is in `_of_keys_kernel`.

Each of two warpgroups sums dk and dv of 64 keys in registers, or one of the two if heads are wide,
while queries pass by, head after head of the group. Scores are made with keys as rows, so that
weights and their gradients are multiplied from registers. Code shared with the kernel for queries
is in `_gradients`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from shapeexec.attention.backends.mosaic_gpu import _d_scores, _into_queries, _ring, _totals
from shapeexec.attention.backends.mosaic_gpu._config import Config, Sparsity
from shapeexec.attention.backends.mosaic_gpu._d_scores import Layout
from shapeexec.attention.backends.mosaic_gpu._gradients import PIECE, Rows, room
from shapeexec.attention.backends.mosaic_gpu._launch import launch
from shapeexec.attention.backends.mosaic_gpu._of_keys_kernel import SHAPE, run_of_keys
from shapeexec.attention.backends.mosaic_gpu._scratch import WIDE, Shared
from shapeexec.attention.backends.mosaic_gpu._tiles import ROWS, TILE, tiles_of

_MOST_COLUMNS = 256  # of dk and dv together, whose sums fit into registers


@functools.partial(jax.jit, static_argnums=0)
def backward_of_keys(
    config: Config, sparsity: Sparsity, *, rows: Rows, q: Array, k: Array, v: Array, d_out: Array
) -> list[Array]:
    """The gradients of keys and values, from lists by key; 0 behind the valid length.

    The contributions of a group's query heads to their key head are summed here, head by head.
    """
    inputs = {"q": q, "k": k, "v": v, "d_out": d_out}
    launched = functools.partial(_launched, config, sparsity, rows=rows, inputs=inputs)
    if sum(config.columns) <= _MOST_COLUMNS:
        return launched(outputs={"d_k": k, "d_v": v})
    # Else the compiler spills the sums, and waits for each product by itself: to make the scores
    # once more takes less.
    return [*launched(outputs={"d_k": k}), *launched(outputs={"d_v": v})]


@functools.partial(jax.jit, static_argnums=0)
def backward_at_once(
    config: Config, sparsity: Sparsity, *, rows: Rows, q: Array, k: Array, v: Array, d_out: Array
) -> list[Array]:
    """The gradients of queries, keys and values, from lists by key; 0 behind the valid length.

    If dq `crosses_programs`, it differs from run to run in the last bits.
    """
    outputs = _totals.outputs(config, q, key_tiles=tiles_of(k.shape[1]))
    d_k, d_v, total = _launched(
        config,
        sparsity,
        rows=rows,
        inputs={"q": q, "k": k, "v": v, "d_out": d_out},
        outputs={"d_k": k, "d_v": v, **outputs},
        updated=_totals.updated(config, q),
        into=_into_queries.scratch(config, q.dtype),
    )
    d_q = _totals.rounded(config, total, q) if _totals.crosses_programs(config) else total
    return [d_q, d_k, d_v]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def backward_into_scores(
    config: Config,
    layout: Layout,
    heads: int,
    sparsity: Sparsity,
    *,
    rows: Rows,
    others: dict[str, Array],
    after: Array,
    **inputs: Array,
) -> list[Array]:
    """The gradients of scores, keys and values of a span of heads, from lists by key.

    Args:
        config: The static part of the call.
        layout: That of the gradients of scores.
        heads: The number of query heads that there is room for.
        sparsity: The tiles of the span, in lists by key.
        rows: The numbers per query.
        others: "d_k" and "d_v" of other heads, which are left as they are; empty: there are none.
        after: See `launch`.
        **inputs: "q", "k", "v" and "d_out".

    Returns:
        The gradients of scores, keys and values, and what the next kernel is after.
    """
    q, k, v = (inputs[name] for name in ("q", "k", "v"))
    lengths = q.shape[1], k.shape[1]
    outputs = {"d_scores": layout.shape(heads, lengths, k.dtype)}
    return _launched(
        *(config, sparsity, layout),
        rows=rows,
        inputs=inputs,
        outputs=outputs if others else {**outputs, "d_k": k, "d_v": v},
        updated=others,
        into=_d_scores.scratch(k.dtype),
        after=after,
    )


def _launched(
    config: Config,
    sparsity: Sparsity,
    layout: Layout | None = None,
    *,
    rows: Rows,
    inputs: dict[str, Any],
    outputs: dict[str, Any],
    updated: dict[str, Array] | None = None,
    into: dict[str, Any] | None = None,
    after: Array | None = None,
) -> list[Array]:
    k = inputs["k"]
    key_columns, value_columns = config.columns
    adds_up = into is not None and layout is None
    slots, steps = _totals.room(config) if adds_up else room(config)
    scratch = _scratch(config, sparsity, rows=rows, dtype=k.dtype, slots=slots, steps=steps)
    return launch(
        config,
        functools.partial(run_of_keys, config, layout),
        inputs={"sparsity": sparsity, "rows": rows, **inputs},
        outputs={name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in outputs.items()},
        updated=updated,
        after=after,
        scratch={**scratch, **({} if into is None else {"into": into})},
        side="key",
        batch=k.shape[0],
        together=tiles_of(k.shape[1]) if adds_up and _totals.is_held(config) else 1,
        slots=slots,
        copies=1 + config.parts,
        accumulators=[SHAPE, SHAPE, SHAPE, (ROWS, key_columns), (ROWS, value_columns)],
    )


def _scratch(
    config: Config, sparsity: Sparsity, *, rows: Rows, dtype: Any, slots: int, steps: int
) -> dict[str, Any]:
    key_columns, value_columns = config.columns
    clears = config.reads_behind("key")
    ring = functools.partial(_ring.scratch, steps, rows=PIECE, dtype=dtype, clears=clears)
    tile = functools.partial(Shared, dtype=dtype, order=WIDE)
    of_weights = [x.dtype for x in rows.of_weights]
    of_columns = sparsity.column_dtypes(config, side="key")
    return {
        "keys": tile((slots, TILE, key_columns)),
        "values": tile((slots, TILE, value_columns)),
        "queries": ring(columns=key_columns, vectors=[*of_weights, *of_columns], tells=True),
        "d_outs": ring(columns=value_columns, vectors=[jnp.float32]),
    }
