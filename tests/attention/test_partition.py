"""How a call is divided among devices, whatever compiles it."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.attention import _partition
from shapeexec.attention._numbered import Numbering, reads_numbers, whole_axes
from shapeexec.attention.masks import Mask, ScoreModifier
from shapeexec.attention.masks.kept import Kept
from tests.tolerance import assert_close

MESH = jax.sharding.AbstractMesh((2, 2, 3), ("a", "b", "c"))

# B, N and K; the mesh axes of B and N of the query, and of K; those that the call is divided over.
DIVISIONS = [
    ((4, 4, 4), ("a", "b", "b"), ("a", "b", "b")),
    ((4, 4, 4), ("ab", "", ""), ("ab", "", "")),
    ((4, 4, 4), ("", "ab", "ab"), ("", "ab", "ab")),
    ((6, 4, 4), ("ab", "", ""), ("a", "", "")),  # 6 examples on 4 devices
    ((4, 6, 6), ("", "ab", "ab"), ("", "a", "a")),
    ((4, 8, 2), ("", "ab", "a"), ("", "ab", "a")),  # two devices share a key head
    ((4, 8, 2), ("", "ab", ""), ("", "ab", "")),
    ((4, 8, 4), ("", "", "ab"), ("", "ab", "ab")),
    ((4, 8, 1), ("", "ab", ""), ("", "ab", "")),
    ((4, 6, 2), ("", "ba", "b"), ("", "b", "b")),
    ((4, 12, 4), ("", "ca", ""), ("", "", "")),  # 4 heads would be of two groups of 3
    ((4, 4, 4), ("a", "ab", "b"), ("a", "b", "b")),  # an axis of the mesh divides one axis
]


@pytest.mark.parametrize(("sizes", "given", "expected"), DIVISIONS)
def test_a_call_is_divided_where_devices_get_equal_parts_of_whole_groups(sizes, given, expected):
    layout = _partition._Layout(
        dict(zip("BNK", sizes, strict=True)), ("B-N-", "B-K-"), ("B-N-",), is_gradient=False
    )
    batch, heads, keys = map(tuple, given)
    specs = [(batch, (), heads, ()), (batch, (), keys, ()), ((), (), (), ())]
    assert _partition._divided(layout, MESH, specs=specs) == dict(
        zip("BNK", map(tuple, expected), strict=True)
    )


def test_shardings_propagate_by_examples_and_heads():
    sides = {"operands": ("B-N-", "B-K-"), "results": ("BN-",), "is_gradient": False}
    grouped = _partition._Layout({"B": 4, "N": 4, "K": 2}, **sides)
    assert grouped.rule == "b x0 n x1, b x2 k x3 -> b n x4"
    assert _partition._Layout({"B": 4, "N": 4, "K": 4}, **sides).rule.count("n") == 3
    assert grouped.without("N", "K").rule == "b x0 x1 x2, b x3 x4 x5 -> b x6 x7"


@dataclasses.dataclass(frozen=True, eq=False)
class OfTable(ScoreModifier):
    """It indexes its array by itself, where it should ask `at`."""

    axes: ClassVar = {"table": "BN"}

    table: object

    def modify(self, at, scores):
        return scores + jnp.asarray(self.table)[0, at.head]


@dataclasses.dataclass(frozen=True, eq=False)
class OfUnknown(Mask):
    """It does not tell the axes of its array."""

    ids: object

    def allows(self, at):
        return at.of_batch(self.ids) <= at.key

    def bounds(self, tiles):
        some = tiles.xp.ones((1, 1, 1, 1), bool)
        return sx.attention.masks._base.Bounds(some, ~some)


def by_example(b, h, q, k):
    return k <= q - b


SEEDS = np.arange(2, dtype=np.int32)
VALUES = {
    "positions": (sx.Causal() & sx.SlidingWindow(3), (False, False), ""),
    "arrays": (sx.Documents(np.zeros((2, 8), np.int32)), (False, False), ""),
    "slopes": (sx.ALiBi.for_heads(4), (False, False), ""),
    "examples": (~sx.MaskFunction(by_example) | sx.Causal(), (True, False), ""),
    "heads": (sx.Causal() & Kept(0.5, SEEDS), (False, True), ""),
    "tiles": (
        sx.BlockMask.from_mask(
            sx.MaskFunction(by_example), query_size=8, key_size=8, tile=(4, 4), batch=2
        ),
        (True, False),
        "",
    ),
    "own array": (OfTable(np.zeros((1, 4), np.float32)), (False, True), "NK"),
    "unknown axes": (OfUnknown(SEEDS), (False, False), "B"),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_reads_numbers_gets_those_of_the_whole_call(name):
    value, reads, whole = VALUES[name]
    assert reads_numbers(value) == reads
    assert whole_axes(value) == frozenset(whole)
    numbered = Numbering(2, 8, 4, 8).of(value)
    assert reads_numbers(numbered) == (False, False)
    assert (numbered is value) == (not any(reads))
    if isinstance(value, Mask):
        dense = [
            sx.attention._blocks.to_dense(mask, (8, 8), batch=2, heads=4)
            for mask in (value, numbered)
        ]
        assert_close(*map(np.asarray, dense))
