"""Calls of attention that tests of the kernels for Hopper make."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec.attention._blocks import BlockMask
from shapeexec.attention._call_lists import call_lists
from shapeexec.attention._positions import Gathered
from shapeexec.attention.backends._base import Signature, Work
from shapeexec.attention.masks import (
    ALiBi,
    Causal,
    Dense,
    Documents,
    Full,
    Global,
    Lengths,
    PrefixLM,
    RelativeBias,
    SlidingWindow,
)
from shapeexec.attention.masks.kept import Kept
from tests.attention.kernels import bias_as_array, poisoned
from tests.attention.reference import Reference

RNG = np.random.default_rng(0)


@dataclasses.dataclass(frozen=True)
class Case:
    """A call; `sizes` are valid lengths of queries and keys, behind which operands are NaN."""

    name: str
    mask: object
    queries: int = 192
    keys: int = 192
    heads: tuple[int, int] = (2, 1)
    head_sizes: tuple[int, int] = (64, 64)
    batch: int = 1
    sizes: tuple[list[int], list[int]] | None = None
    dtype: str = "bfloat16"
    bias: object = None
    piece: int | None = None

    @property
    def signature(self) -> Signature:
        return Signature(
            batch=self.batch,
            query_size=self.queries,
            key_size=self.keys,
            query_heads=self.heads[0],
            key_heads=self.heads[1],
            head_size=self.head_sizes[0],
            value_size=self.head_sizes[1],
            dtype=self.dtype,
            scale=self.head_sizes[0] ** -0.5,
            bias=getattr(self.bias, "shape", None if self.bias is None else type(self.bias)),
            is_ragged=self.sizes is not None,
            tile=(128, 128),
            piece=self.piece,
        )

    @property
    def valid(self) -> list[np.ndarray]:
        """Which queries and which keys count, bool[B, T] and bool[B, S]."""
        lengths = (self.queries, self.keys)
        sizes = self.sizes or [[length] * self.batch for length in lengths]
        return [
            np.arange(n) < np.asarray(size)[:, None] for n, size in zip(lengths, sizes, strict=True)
        ]

    def work(self) -> Work:
        lengths = (self.queries, self.keys)
        queries, keys = sizes = [valid.sum(1).astype(np.int32) for valid in self.valid]
        lists = call_lists(
            self.mask,
            lengths,
            tile=(128, 128),
            batch=self.batch,
            heads=self.heads[0],
            query_lengths=queries,
            key_lengths=keys,
            shares=True,
        )
        given = sizes if self.sizes is None else map(jnp.asarray, sizes)
        return Work(self.mask & Lengths(), *given, *lists)

    def bias_as_array(self) -> np.ndarray:
        """f64, broadcastable to [B, N, T, S]."""
        return bias_as_array(self.bias, np.arange(self.keys) - np.arange(self.queries)[:, None])

    def poisoned_bias(self) -> object:
        """The bias; where examples have one each, NaN is behind their valid lengths."""
        bias = self.bias
        if self.sizes is not None and hasattr(bias, "shape") and bias.shape[0] > 1:
            for axis, sizes in ((2, self.sizes[0]), (3, self.sizes[1])):
                bias = poisoned(bias, np.array(sizes), axis) if bias.shape[axis] > 1 else bias
        return jax.tree.map(jnp.asarray, bias)

    def operands(self) -> list[np.ndarray]:
        """q, k, v and the gradient of the output, rounded to the dtype."""
        (heads, key_heads), (size, value_size) = self.heads, self.head_sizes
        shapes = (
            (self.batch, self.queries, heads, size),
            (self.batch, self.keys, key_heads, size),
            (self.batch, self.keys, key_heads, value_size),
            (self.batch, self.queries, heads, value_size),
        )
        made = (np.random.default_rng(i).standard_normal(shape) for i, shape in enumerate(shapes))
        return [np.asarray(jnp.asarray(x, self.dtype), np.float64) for x in made]

    def with_nan_behind(self) -> list[jax.Array]:
        """The `operands`, with NaN behind the valid lengths."""
        by_queries, by_keys = self.valid
        sides = by_queries, by_keys, by_keys, by_queries
        return [
            jnp.asarray(np.where(valid[:, :, None, None], x, np.nan), self.dtype)
            for x, valid in zip(self.operands(), sides, strict=True)
        ]

    def reference(self) -> Reference:
        q, k, v, _ = self.operands()
        heads, _ = self.heads
        by_queries, by_keys = self.valid
        sizes = self.batch, heads, self.queries, self.keys
        at = (np.arange(n, dtype=np.int32) for n in sizes)
        lengths = (x.sum(1).astype(np.int32).reshape(-1, 1, 1, 1) for x in self.valid)
        allowed = self.mask.allows(Gathered(*np.ix_(*at), *lengths))
        allowed = np.broadcast_to(allowed, sizes)
        allowed = allowed & by_queries[:, None, :, None] & by_keys[:, None, None, :]
        return Reference(q, k, v, self.bias_as_array(), allowed, self.signature.scale)


def random_bias(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def extreme_bias(queries: int, keys: int) -> np.ndarray:
    bias = random_bias(1, 1, queries, keys)
    bias[..., ::3] = -np.inf
    bias[..., 1, :] = -np.inf  # nothing to attend to
    bias[..., 2, 1] = 1e30
    bias[..., 3, :] = -1e30  # all alike
    bias[..., 4, :] = np.finfo(np.float32).min  # all alike
    bias[..., 129, 140] = 1e30  # forbidden
    bias[..., 129, :128] = -np.inf  # nothing in one of the pieces
    bias[..., 128, 128:] = -np.inf
    return bias


IDS = np.sort(RNG.integers(0, 5, (1, 192)), axis=1).astype(np.int32)
IDS_OF_MANY = np.sort(RNG.integers(0, 2, (1, 512)), axis=1).astype(np.int32)
BLOCKS = np.array([[2, 0], [1, 2]], np.uint8)
BLOCKS_OF_HEADS = np.array(
    [[[2, 1], [2, 1]], [[2, 1], [0, 1]], [[1, 1], [2, 1]], [[2, 0], [1, 1]]], np.uint8
)
CASES = [
    Case("full tiles, then partial ones", Causal(), queries=200, keys=200),
    Case("documents, by vectors of rows and columns", Documents(IDS) & Causal()),
    Case("an array of booleans", Dense(RNG.random((1, 2, 192, 192)) < 0.3)),
    Case("a mask of keys", ~Dense(RNG.random((1, 1, 1, 192)) < 0.3), heads=(2, 2)),
    Case("blocks", BlockMask(BLOCKS, (128, 128), (256, 256), Causal()), queries=256, keys=256),
    Case(
        "tiles of each head",
        BlockMask(BLOCKS_OF_HEADS, (128, 128), (190, 256), Causal()),
        queries=190,
        keys=256,
        heads=(4, 2),
    ),
    Case("more keys than queries", Causal(align="end"), queries=5, keys=136),
    Case("ragged", Full(), batch=2, sizes=([192, 33], [130, 64])),
    Case("a random share", Kept(0.4, np.array([-5, 2**30], np.int32)) & Causal(), batch=2),
    Case("no keys at all", Full(), batch=2, sizes=([192, 70], [0, 192])),
    Case("rows without keys", ~SlidingWindow(150, 0)),
    Case("narrow heads, other values", Causal(), head_sizes=(40, 64), heads=(1, 1)),
    Case("wide heads", Causal(), head_sizes=(136, 192), heads=(1, 1), queries=72, keys=72),
    Case("the widest heads", Causal(), head_sizes=(256, 256), heads=(1, 1), queries=72, keys=72),
    Case("fp16", SlidingWindow(9, 2) | Global(3), heads=(1, 1), dtype="float16"),
    Case("ALiBi, full tiles and partial ones", Causal(), bias=ALiBi.for_heads(2), queries=200),
    Case("a bias by distance", Full(), bias=RelativeBias(random_bias(2, 150), left=100)),
    Case(
        "a bias of pairs, NaN behind",
        Documents(IDS),
        bias=random_bias(2, 1, 192, 192),
        batch=2,
        sizes=([192, 33], [130, 64]),
        dtype="float16",
    ),
    Case("a bias of keys", Full(), bias=random_bias(1, 2, 1, 192), heads=(2, 2)),
    Case("a bias of queries", Causal(), bias=random_bias(1, 1, 192, 1)),
    Case("a bias of heads", Causal(), bias=random_bias(1, 2, 1, 1)),
    Case("extreme biases", Causal(), bias=extreme_bias(130, 192), queries=130),
    # Heads of one tile, whose dq is stored by the kernel for keys: halves of it and whole ones
    # without queries, or without keys.
    Case("one tile", Causal(), queries=100, keys=72, head_sizes=(40, 64)),
    Case(
        "one tile, ragged",
        Full(),
        queries=128,
        keys=128,
        batch=8,
        sizes=([128, 33, 64, 65, 0, 100, 128, 63], [128, 64, 100, 33, 64, 0, 63, 127]),
    ),
    Case("one tile, few queries", Full(), queries=4, keys=100, heads=(2, 2)),
    Case(
        "one tile, ragged, wide",
        Documents(IDS[:, :128]),
        queries=128,
        keys=128,
        heads=(1, 1),
        head_sizes=(128, 128),
        batch=2,
        sizes=([64, 120], [120, 30]),
    ),
    # Two tiles of narrow heads, whose dq one program sums.
    Case("two tiles, causal", Causal(), queries=200, keys=200, heads=(2, 2)),
    Case(
        "two tiles, ragged",
        Full(),
        queries=256,
        keys=256,
        heads=(1, 1),
        batch=7,
        sizes=([256, 33, 64, 129, 0, 190, 256], [256, 192, 100, 33, 64, 0, 128]),
    ),
    Case(
        "two tiles, blocks",
        BlockMask(BLOCKS, (128, 128), (256, 256), Causal()),
        queries=256,
        keys=256,
        heads=(2, 2),
        head_sizes=(40, 64),
    ),
    Case("two tiles, the second one longer", ~Causal(), queries=200, keys=256, heads=(1, 1)),
    Case("two tiles of queries", Causal(), queries=250, keys=100, heads=(1, 1)),
    Case("two tiles of keys", Causal(align="end"), queries=70, keys=180, heads=(1, 1)),
    Case("whole tiles, rows without keys", Causal(-128), queries=256, keys=256, heads=(1, 1)),
    Case(
        "whole tiles, blocks, rows without keys",
        BlockMask(np.array([[0, 0], [2, 1]]), (128, 128), (256, 256), Causal()),
        queries=256,
        keys=256,
        heads=(1, 1),
    ),
    Case("whole tiles of queries", Full(), queries=128, keys=192, heads=(1, 1)),
    # Kernels that serve every length in whole tiles, from three on.
    Case("any length, causal", Causal(), queries=384, keys=384, heads=(4, 2), batch=2),
    Case(
        "any length, more keys",
        Causal(align="end"),
        queries=384,
        keys=512,
        heads=(1, 1),
        batch=3,
        sizes=([384, 65, 200], [512, 129, 0]),
    ),
    Case(
        "any length, fewer keys",
        Full(),
        queries=512,
        keys=384,
        heads=(2, 2),
        batch=2,
        sizes=([512, 100], [300, 384]),
        dtype="float16",
    ),
    Case(
        "any length, window", SlidingWindow(150, 20), queries=512, keys=512, heads=(2, 1), batch=2
    ),
    Case(
        "any length, documents of examples",
        Documents(np.sort(RNG.integers(0, 3, (2, 384)), axis=1).astype(np.int32)) & Causal(),
        queries=384,
        keys=384,
        batch=2,
    ),
    Case(
        "any length, numbers of examples and heads",
        PrefixLM(np.array([40, 300], np.int32)),
        bias=ALiBi.for_heads(2),
        queries=384,
        keys=384,
        batch=2,
        sizes=([384, 200], [384, 260]),
    ),
    Case(
        "any length, window, ragged",
        SlidingWindow(130, 0),
        queries=384,
        keys=384,
        heads=(2, 2),
        batch=2,
        sizes=([300, 384], [200, 384]),
        head_sizes=(128, 128),
    ),
    Case("one tile, no full piece", SlidingWindow(3, 0), queries=60, keys=60, head_sizes=(64, 128)),
]
