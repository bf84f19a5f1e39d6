"""The back end of Pallas kernels for TPUs, block-sparse by lists in scalar memory.

This module decides which calls it can run and how large a tile is; the kernels are beside it.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
import itertools
from typing import Any

import jax
import numpy as np
from jax import Array

from shapeexec._errors import BackendError
from shapeexec.attention._call_lists import call_lists
from shapeexec.attention.backends._base import (
    Residuals,
    Signature,
    Tiling,
    Work,
    refusal_of_sizes,
    whole_tiles,
)
from shapeexec.attention.backends._elementwise import refusal_of_rule
from shapeexec.attention.backends.mosaic_tpu import _backward, _forward
from shapeexec.attention.backends.mosaic_tpu._operands import (
    NO_TABLES,
    Asked,
    asked_by_mask,
    check_tiles,
    named,
    numbers_for,
)
from shapeexec.attention.backends.mosaic_tpu._steps import SCALAR_BYTES, Setting, words
from shapeexec.attention.masks import Mask, RelativeBias
from shapeexec.attention.masks.scores import Added

_DTYPES = ("bfloat16", "float32")
_LARGEST_HEAD = 256
_LANES = 128
_SIDE = 512
"""The most queries or keys of a tile: large enough for products to hide the fetches."""
_SIDES = (256, 128)
"""Smaller sides that `tune` tries."""


@dataclasses.dataclass(frozen=True)
class _MosaicTpu:
    """See the module.

    Attributes:
        interpret: Whether kernels run in Pallas' interpreter, on any device.
        name: See `TunableBackend`.
    """

    interpret: bool = False
    name: str = "mosaic_tpu"

    def tile(self, signature: Signature, mask: Mask) -> tuple[int, int]:
        """Tiles of `_SIDE`; with a block mask, tiles as small as the lanes."""
        has_tiles = asked_by_mask(named(mask), _at_side(signature, _LANES)).tiles
        side = _LANES if has_tiles else _SIDE
        queries, keys = (
            min(side, whole_tiles(size, _LANES))
            for size in (signature.query_size, signature.key_size)
        )
        return queries, keys

    def tilings(self, signature: Signature, mask: Mask) -> tuple[Tiling, ...]:
        """The default, and smaller tiles whose lists fit into scalar memory."""
        own = self.tile(signature, mask)
        queries, keys = ((side, *(n for n in _SIDES if n < side)) for side in own)
        first, *others = itertools.product(queries, keys)
        asked = asked_by_mask(named(mask), _at_side(signature, _LANES))
        fits = functools.partial(_refusal_of_lists, signature, mask, asked=asked)
        return Tiling(first), *(Tiling(tile) for tile in others if fits(tile=tile) is None)

    def refuses(self, signature: Signature, mask: Mask, *, platform: str) -> str | None:
        """See `Backend`. It takes masks of positions, arrays, tiles; biases without a table."""
        if platform != "tpu" and not self.interpret:
            return f"it is made for TPUs, not for {platform}"
        if reason := refusal_of_sizes(
            signature, _DTYPES, largest_head=_LARGEST_HEAD, memory="vector memory"
        ):
            return reason
        if signature.bias_gradient:
            return "its kernels make no gradient of a bias"
        if isinstance(signature.bias, type) and issubclass(signature.bias, RelativeBias):
            return NO_TABLES
        if isinstance(signature.bias, type) and issubclass(signature.bias, Added):
            return "it cannot add a number per row to another bias"
        if reason := refusal_of_rule(mask):
            return reason
        try:
            at_side = _at_side(signature, _LANES)
            asked = asked_by_mask(named(mask), at_side)
            check_tiles(asked, at_side.tile)
        except BackendError as error:
            return error.why
        return _refusal_of_lists(signature, mask, asked=asked, tile=self.tile(signature, mask))

    def forward(
        self, signature: Signature, work: Work, *, q: Array, k: Array, v: Array, bias: Any
    ) -> tuple[Array, Array]:
        """See `Backend`."""
        return _forward.forward(
            work, q=q, k=k, v=v, bias=bias, setting=self._setting(signature, work)
        )

    def backward(
        self,
        signature: Signature,
        work: Work,
        *,
        residuals: Residuals,
        d_out: Array,
        d_logsumexp: Array | None,
        deterministic: bool,
        bias_gradient: bool,
    ) -> tuple[Array, Array, Array, None]:
        """See `Backend`. It is always deterministic."""
        setting = self._setting(signature, work)
        gradients = _backward.backward(
            work, residuals, d_out=d_out, d_logsumexp=d_logsumexp, setting=setting
        )
        return *gradients, None

    def _setting(self, signature: Signature, work: Work) -> Setting:
        return Setting(signature, work.by_query.kinds, self.interpret)


def _refusal_of_lists(
    signature: Signature, mask: Mask, *, asked: Asked, tile: tuple[int, int]
) -> str | None:
    """Why the lists and the mask's scalars do not fit into scalar memory; None: they do."""

    def make(mask: Mask, size: Array | None) -> Any:
        lists = call_lists(
            mask,
            (signature.query_size, signature.key_size),
            tile=tile,
            batch=signature.batch,
            heads=signature.query_heads,
            query_lengths=size,
            key_lengths=size,
        )
        return lists, numbers_for(asked, jax.tree.leaves(mask))

    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), mask)
    size = jax.ShapeDtypeStruct((signature.batch,), np.int32)
    lists, numbers = jax.eval_shape(make, shapes, size if signature.is_ragged else None)
    of_one = max(words((own.tiles, own.full, own.counts)) for own in lists)
    needed = 4 * (of_one + words(numbers) + 2 * signature.batch)
    if needed > SCALAR_BYTES:
        return f"scalar memory holds {SCALAR_BYTES} bytes, and its lists of tiles need {needed}"
    return None


def _at_side(signature: Signature, side: int) -> Signature:
    return dataclasses.replace(signature, tile=(side, side))


backend = _MosaicTpu()
