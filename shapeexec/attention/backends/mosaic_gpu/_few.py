"""The forward pass of few queries: a flash attention whose keys are divided among programs.

All heads that share keys are rows of one tile, and each program attends to its share of the keys
of all heads and examples (flash-decoding, pytorch.org/blog/flash-decoding; stream-K, arXiv
2301.03598). `_join` joins the parts of a softmax, in a fixed order.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from shapeexec.attention.backends._base import Signature, whole_tiles
from shapeexec.attention.backends.mosaic_gpu import _any_length, _ring
from shapeexec.attention.backends.mosaic_gpu._any_length import Axes
from shapeexec.attention.backends.mosaic_gpu._config import Config, Sparsity
from shapeexec.attention.backends.mosaic_gpu._few_kernel import kernel, parts_of
from shapeexec.attention.backends.mosaic_gpu._scratch import Barriers, Shared
from shapeexec.attention.backends.mosaic_gpu._shares import Shares, can_be_shared
from shapeexec.attention.backends.mosaic_gpu._start import OpenEnded, start
from shapeexec.attention.backends.mosaic_gpu._threads import STORED_COLUMNS
from shapeexec.attention.backends.mosaic_gpu._tiles import ROWS, TILE, Packing

MOST_ROWS = 2 * ROWS
"""The most rows (queries of heads that share keys) that shared memory has room for."""

_MOST_QUERIES = 16  # with more queries one head fills a tile
_LARGEST_HEAD = 128  # of larger heads a ring would hold a single piece
_ROOM = 128 * 2**10
"""The bytes of shared memory for keys and values. With more on their way kernels were slower."""
_MOST_STEPS = 4  # the most pieces in a ring

PAGE_ROWS = TILE // 2
"""The page size must be a multiple of this: a page consists of whole pieces."""


def are_few(signature: Signature) -> bool:
    """Whether this kernel serves a call."""
    return (
        signature.query_size <= _MOST_QUERIES
        and max(signature.head_size, signature.value_size) <= _LARGEST_HEAD
        and not signature.is_backward
    )


def refusal_of_work(signature: Signature) -> str | None:
    """Why the work of a call with few queries cannot be divided; None if it can."""
    lists, tiles = signature.batch * signature.query_heads, -(-signature.key_size // TILE)
    if can_be_shared(lists, longest=tiles):
        return None
    return f"it divides work with numbers of 32 bits, and {lists} lists of {tiles} tiles are more"


class _Form(NamedTuple):
    """The sizes of a kernel.

    Attributes:
        warpgroups: The number of warpgroups that compute, each for 64 rows.
        slots: The number of segments of a share whose queries are in shared memory at a time.
        copies: The number of copies of the queries of a segment.
        key_rows: The number of keys in a piece.
        steps: The number of pieces in the ring of keys, and in the ring of values.
    """

    warpgroups: int
    slots: int
    copies: int
    key_rows: int
    steps: tuple[int, int]

    @staticmethod
    def of(config: Config, packing: Packing) -> "_Form":
        """Choose rings as deep as `_ROOM` and `_MOST_STEPS` allow."""
        warpgroups = -(-packing.rows // ROWS)
        slots, key_rows = (2, TILE) if warpgroups == 1 else (1, TILE // 2)
        most = _MOST_STEPS
        if (config.signature.page_size or 0) % key_rows:
            # More and shorter pieces, so that the pipeline holds as many keys.
            key_rows, most = PAGE_ROWS, most * key_rows // PAGE_ROWS
        key, value = (2 * key_rows * columns for columns in config.columns)
        of_keys = min(_ROOM // 2 // key, most)
        of_values = min((_ROOM - of_keys * key) // value, most)
        copies = packing.heads if packing.by_head else 1
        return _Form(warpgroups, slots, copies, key_rows, (of_keys, of_values))


@functools.partial(jax.jit, static_argnums=(0, 1))
def forward_of_few(
    config: Config,
    packing: Packing,
    sparsity: Sparsity,
    *,
    shares: Shares,
    q: Array,
    k: Array,
    v: Array,
    pages: Array | None,
) -> list[Array]:
    """The output and `Weights.statistics` of each part of each list; see `Shares.parts_of`.

    Args:
        config: The static part of the call.
        packing: The queries and heads that the rows hold.
        sparsity: The tiles, in lists by query of one row each.
        shares: The work of each program, in lists of examples and of packed heads.
        q: Queries; see `packed_queries`.
        k: Keys.
        v: Values.
        pages: The numbers of each example's pages, if k and v are pages; see `Work`.

    Returns:
        The output f32[places, rows or more, V or more], and statistics f32[places, rows or more]
        each; in places without a part, and in rows without a query, anything.
    """
    form = _Form.of(config, packing)
    outputs = _outputs(config, form, packing, shares=shares, columns=v.shape[3])
    if config.any_length:
        shares = dataclasses.replace(shares, groups=None)  # read when the kernel runs
    inputs = {"sparsity": sparsity, "shares": shares, "q": q, "k": k, "v": v, "pages": pages}
    axes = _axes_of(config, inputs) if config.any_length else None
    return start(
        functools.partial(kernel, config, packing, form.warpgroups, axes=axes),
        inputs=_any_length.merged(axes, inputs),
        outputs=outputs,
        scratch=_scratch(config, form, sparsity, dtype=q.dtype),
        programs=shares.programs,
        interpret=config.interpret,
        warpgroups=form.warpgroups,
        open_ended=OpenEnded(
            None if axes is None else _any_length.open_ended(axes, inputs),
            key=(config, packing, tuple(jax.tree.leaves(axes))),
        ),
    )


def _outputs(
    config: Config, form: _Form, packing: Packing, *, shares: Shares, columns: int
) -> dict[str, jax.ShapeDtypeStruct]:
    rows = form.warpgroups * min(packing.rows, ROWS)
    of_rows = jax.ShapeDtypeStruct((shares.places, rows), jnp.float32)
    values = (shares.places, rows, whole_tiles(columns, STORED_COLUMNS))
    statistics = range(len(config.weights.empty_statistics))
    return {
        "out": jax.ShapeDtypeStruct(values, jnp.float32),
        **{f"statistics_{i}": of_rows for i in statistics},
    }


def _axes_of(config: Config, inputs: dict[str, Any]) -> dict[str, Any]:
    """See `_any_length.axes_of`. Queries are not merged: their number fills no tile."""
    rows = _any_length.of_examples(inputs["k"])
    if inputs["pages"] is None:
        rows = Axes(("B", "S"))
    return {
        **jax.tree.map(_any_length.of_examples, inputs),
        "sparsity": _any_length.axes_of_sparsity(config, inputs["sparsity"]),
        "k": rows,
        "v": rows,
        "pages": jax.tree.map(lambda _: Axes(("B", "pages")), inputs["pages"]),
    }


def _scratch(config: Config, form: _Form, sparsity: Sparsity, *, dtype: Any) -> dict[str, Any]:
    readers, rows = form.warpgroups, form.key_rows
    key_columns, value_columns = config.columns
    ring = functools.partial(_ring.scratch, dtype=dtype, readers=readers)
    pieces = functools.partial(ring, rows=rows, copies=parts_of(config), tells=True)
    vectors = sparsity.column_dtypes(config, side="query")
    scratch = {
        "queries": ring(form.slots, rows=readers * ROWS, columns=key_columns, copies=form.copies),
        "keys": pieces(form.steps[0], columns=key_columns, vectors=vectors),
        "values": pieces(form.steps[1], columns=value_columns),
        "cleared": Barriers(arrivals=readers),
    }
    if config.interpret is None:
        return scratch
    shapes = [(ROWS, rows), (ROWS, value_columns)]
    return scratch | {"pool": [Shared((readers, *shape), jnp.float32) for shape in shapes]}
