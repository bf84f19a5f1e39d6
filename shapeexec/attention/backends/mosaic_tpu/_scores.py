"""The scores of one tile in a TPU kernel, and the operands of masks and biases.

`_operands` moves their blocks to vector memory.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shapeexec.attention.backends import _softmax
from shapeexec.attention.backends._base import Ref, TileLists, Work
from shapeexec.attention.backends.mosaic_tpu._operands import (
    Asked,
    At,
    asked_by_bias,
    asked_by_mask,
    blocks_for,
    is_number,
    named,
    numbers_for,
)
from shapeexec.attention.backends.mosaic_tpu._steps import (
    Scalars,
    Setting,
    Where,
    scalars_of,
)


@dataclasses.dataclass(frozen=True)
class Given:
    """The static part of a call, for which a kernel is compiled.

    Attributes:
        setting: The setting of the kernel.
        mask, bias: Both with `Leaf`s for arrays.
        asked: The reads of the mask, and of the bias.
    """

    setting: Setting
    mask: Any
    bias: Any
    asked: tuple[Asked, Asked]

    def scores(
        self, where: Where, scalars: Scalars, blocks: "Blocks", q: Array, k: Array, *, masked: bool
    ) -> _softmax.Scores:
        """The scores of a tile, queries along the first axis.

        Args:
            where: The tile.
            scalars: References to the scalars.
            blocks: References to the blocks.
            q: [queries, head size].
            k: [keys, head size].
            masked: Whether pairs may be forbidden.
        """
        of_mask = sum(is_number(how) for _, how in self.asked[0].questions)
        at_mask = self._at(where, self.asked[0], scalars.more[:of_mask], blocks.mask)
        at_bias = self._at(where, self.asked[1], scalars.more[of_mask:], blocks.bias)
        plain = _softmax.times_transposed(q, k) * np.float32(self.setting.signature.scale)
        scores, before_bias = _softmax.biased(self.bias, at_bias, plain)
        if masked:
            scores = _softmax.masked(self.mask, at_mask, scores)
        return _softmax.Scores(scores, before_bias)

    def _at(self, where: Where, asked: Asked, numbers: list[Ref], blocks: list[Ref]) -> At:
        rest_of_numbers, rest_of_blocks = iter(numbers), iter(blocks)
        answers = {
            question: next(rest_of_numbers if is_number(question[1]) else rest_of_blocks)
            for question in asked.questions
        }
        return At(where, self.setting.signature.tile, answers)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Blocks:
    """The blocks that a mask and a bias read: `Block`s, or references.

    Attributes:
        mask: The blocks of the mask.
        bias: The blocks of the bias.
    """

    mask: list[Any]
    bias: list[Any]


def prepared(
    setting: Setting, lists: TileLists, *, work: Work, bias: Any
) -> tuple[Given, Scalars, Blocks]:
    """The static part of a call, and the operands of mask, bias and lists."""
    tile = setting.signature.tile
    mask, bias_named = named(work.mask), named(bias)
    asked = (
        asked_by_mask(mask, setting.signature),
        asked_by_bias(bias_named, setting.signature),
    )
    leaves = (jax.tree.leaves(work.mask), jax.tree.leaves(bias))
    numbers = [
        x for own, arrays in zip(asked, leaves, strict=True) for x in numbers_for(own, arrays)
    ]
    of_mask, of_bias = (
        blocks_for(own, arrays, tile=tile, held=held)
        for own, arrays, held in zip(asked, leaves, (True, False), strict=True)
    )
    given = Given(setting, mask, bias_named, asked)
    return given, scalars_of(lists, work, more=numbers), Blocks(of_mask, of_bias)


def by_head(x: Array) -> Array:
    """[B, T or S, heads, size] as [B, heads, T or S, size], where rows can be cut into blocks."""
    return jnp.swapaxes(x, 1, 2)
