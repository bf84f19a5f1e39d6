"""The problems: shapes and patterns, in a form that every contestant can translate.

It knows no contestant, and imports NumPy but not JAX.
"""

import dataclasses
import functools
import re
from typing import Literal

import numpy as np

from shapeexec._errors import ConfigError

Pass = Literal["forward", "both"]
PASSES: tuple[Pass, ...] = ("forward", "both")
"""Forward: the result only. Both: also the gradients by query, key and value."""

TILE = 128
"""Queries and keys of a random tile."""

_OPERATIONS = {"forward": 1.0, "both": 3.5}  # two products forward, five backward


@dataclasses.dataclass(frozen=True)
class Shape:
    """A call's sizes: q [batch, length, heads, head_size], k and v with `key_heads` heads."""

    name: str
    batch: int
    length: int
    heads: int
    key_heads: int
    head_size: int
    dtype: str = "bfloat16"


@dataclasses.dataclass(frozen=True)
class Pattern:
    """The allowed pairs of query and key: those that satisfy all fields.

    Attributes:
        name: The mask's name on the command line.
        is_causal: Keys up to the query's own position only.
        window: How many keys up to its own position a query sees; None: all.
        documents: How many documents of uneven length there are; keys of the same one only.
        density: The share of 128-tiles, chosen at random, that are left; the diagonal is kept.
            It stands alone.
        pair_share: The share of single pairs, chosen at random, that are left; the diagonal is
            kept. It stands alone.
        has_alibi: Whether ALiBi's bias is added to the scores.
    """

    name: str
    is_causal: bool = False
    window: int | None = None
    documents: int = 0
    density: float | None = None
    pair_share: float | None = None
    has_alibi: bool = False

    def document_lengths(self, length: int) -> np.ndarray:
        """The length of each document, i64[documents], the same in each example."""
        if length < self.documents:
            raise ConfigError(
                f"mask {self.name} at length {length}.",
                option="masks",
                why=f"it is of {self.documents} documents, none of them empty",
                fix=f"choose shapes whose length is {self.documents} or more",
            )
        random = np.random.default_rng(0)
        cuts = np.sort(random.choice(np.arange(1, length), self.documents - 1, replace=False))
        return np.diff(cuts, prepend=0, append=length)

    def document_ids(self, length: int) -> np.ndarray:
        """The document of each position, i32[length]."""
        lengths = self.document_lengths(length)
        return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)

    def tiles(self, length: int) -> np.ndarray:
        """Which tiles are left, bool[length / 128, length / 128]."""
        assert self.density is not None
        if length % TILE:
            raise ConfigError(
                f"mask {self.name} at length {length}.",
                option="masks",
                why=f"random tiles are {TILE} queries by {TILE} keys",
                fix=f"choose shapes whose length is a multiple of {TILE}",
            )
        count = length // TILE
        chosen = np.eye(count, dtype=bool)
        more = max(0, round(self.density * count * count) - count)
        rest = np.flatnonzero(~chosen.ravel())
        chosen.ravel()[np.random.default_rng(0).choice(rest, more, replace=False)] = True
        return chosen

    def elements(self, length: int) -> np.ndarray:
        """Which pairs are left, bool[length, length]; see `pair_share`."""
        assert self.pair_share is not None
        return random_pairs(self.pair_share, length)

    def ranges(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """The first key of each query, and the end of its keys (exclusive); i64[length] each.

        Only for patterns without random tiles or pairs.
        """
        position = np.arange(length)
        first, behind = np.zeros(length, np.int64), np.full(length, length)
        if self.documents:
            ends = np.cumsum(self.document_lengths(length))
            document = self.document_ids(length)
            first, behind = np.append(0, ends[:-1])[document], ends[document]
        if self.is_causal:
            behind = np.minimum(behind, position + 1)
        if self.window is not None:
            first = np.maximum(first, position - (self.window - 1))
        return first, behind

    def pairs(self, length: int) -> int:
        """The number of unmasked pairs of query and key, in one head."""
        if self.density is not None:
            return int(self.tiles(length).sum()) * TILE * TILE
        if self.pair_share is not None:
            return int(self.elements(length).sum())
        first, behind = self.ranges(length)
        return int((behind - first).sum())


@functools.lru_cache(maxsize=2)  # a run alternates between two of them
def random_pairs(share: float, length: int) -> np.ndarray:
    """A random share of all pairs, and the diagonal: bool[length, length]."""
    random, pairs = np.random.default_rng(0), np.eye(length, dtype=bool)
    for row in range(length):  # all numbers at once would be four times the mask
        pairs[row] |= random.random(length, np.float32) < share
    pairs.flags.writeable = False
    return pairs


@dataclasses.dataclass(frozen=True)
class Problem:
    """A pattern at a shape."""

    shape: Shape
    pattern: Pattern

    @functools.cached_property
    def density(self) -> float:
        """The share of pairs that are unmasked."""
        return self.pattern.pairs(self.shape.length) / self.shape.length**2

    def operations(self, passes: Pass) -> float:
        """The operations of the matrix products on unmasked pairs only."""
        shape = self.shape
        forward = 4.0 * shape.batch * shape.heads * shape.head_size
        return forward * self.pattern.pairs(shape.length) * _OPERATIONS[passes]


@dataclasses.dataclass(frozen=True)
class Cell:
    """A problem and a pass, for which each contestant is measured."""

    problem: Problem
    passes: Pass

    @property
    def name(self) -> str:
        """Shape, mask and pass."""
        return f"{self.problem.shape.name}/{self.problem.pattern.name}/{self.passes}"


# 16,384 tokens in all, so that only the length changes the work per token.
SHAPES = {
    shape.name: shape
    for shape in (
        Shape("4k_128", 4, 4096, 16, 16, 128),
        Shape("16k_128", 1, 16384, 16, 16, 128),
        Shape("4k_64", 4, 4096, 16, 16, 64),
        Shape("4k_gqa", 4, 4096, 16, 4, 128),
        Shape("1k_128", 16, 1024, 16, 16, 128),
        Shape("16k_64", 1, 16384, 16, 16, 64),
        Shape("4k_cpu", 1, 4096, 4, 4, 64, "float32"),
    )
}
PATTERNS = {
    pattern.name: pattern
    for pattern in (
        Pattern("full"),
        Pattern("causal", is_causal=True),
        Pattern("window", is_causal=True, window=1024),
        Pattern("documents", is_causal=True, documents=8),
        Pattern("random50", density=0.5),
        Pattern("random25", density=0.25),
        Pattern("random10", density=0.1),
        Pattern("random5", density=0.05),
        Pattern("alibi", is_causal=True, has_alibi=True),
        Pattern("random90", density=0.9),
        Pattern("random70", density=0.7),
        Pattern("random30", density=0.3),
        Pattern("elements50", pair_share=0.5),
        Pattern("elements10", pair_share=0.1),
    )
}
_OF_DEVICE = {
    "gpu": (tuple(name for name in SHAPES if name != "4k_cpu"), tuple(PATTERNS)),
    "cpu": (("4k_cpu",), ("full", "causal", "random10")),
}


def defaults(device: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the shapes and masks that are measured by default."""
    return _OF_DEVICE.get(device, _OF_DEVICE["gpu"])


def shape_of(name: str) -> Shape:
    """A shape by its name, or by its sizes: `BxTxNxKxD` or `BxTxNxKxD:dtype`.

    Raises:
        ConfigError: `name` is neither.
    """
    if name in SHAPES:
        return SHAPES[name]
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+)x(\d+)x(\d+)(?::(bfloat16|float16|float32))?", name)
    if found is None or not all(sizes := [int(size) for size in found.groups()[:5]]):
        raise ConfigError(
            f"there is no shape {name!r}.",
            option="shapes",
            fix=f"{', '.join(SHAPES)}; or batch x length x heads x key heads x head size, such "
            "as 1x512x4x2x64:float32",
        )
    batch, length, heads, key_heads, head_size = sizes
    return Shape(name, batch, length, heads, key_heads, head_size, found.group(6) or "bfloat16")


def pattern_of(name: str) -> Pattern:
    """A mask by its name.

    `randomP` has P percent of the tiles, `elementsP` P percent of the single pairs.

    Raises:
        ConfigError: There is no such mask.
    """
    if name in PATTERNS:
        return PATTERNS[name]
    found = re.fullmatch(r"(random|elements)(\d+)", name)
    if found is None or not 0 < int(found.group(2)) <= 100:
        raise ConfigError(
            f"there is no mask {name!r}.",
            option="masks",
            fix=f"{', '.join(PATTERNS)}, or random or elements and a percentage",
        )
    share = int(found.group(2)) / 100
    if found.group(1) == "random":
        return Pattern(name, density=share)
    return Pattern(name, pair_share=share)
