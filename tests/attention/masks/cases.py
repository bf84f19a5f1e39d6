"""Masks beside what they mean, written down a second time with NumPy."""

import dataclasses
from collections.abc import Callable

import numpy as np

from shapeexec.attention.masks import (
    Causal,
    Dense,
    Dilated,
    Documents,
    Full,
    Global,
    Lengths,
    Mask,
    MaskFunction,
    PrefixLM,
    SlidingWindow,
)
from shapeexec.attention.masks.kept import Kept


@dataclasses.dataclass(frozen=True)
class Call:
    """The sizes of a call; `queries` and `keys` are how many there are truly, of each example."""

    batch: int
    heads: int
    length: tuple[int, int]
    queries: np.ndarray
    keys: np.ndarray

    def grids(self) -> tuple[np.ndarray, ...]:
        """b, h, q and k of every pair, and the true sizes, all [B, N, T, S] by broadcasting."""
        b, h, q, k = np.ogrid[: self.batch, : self.heads, : self.length[0], : self.length[1]]
        return b, h, q, k, self.queries.reshape(-1, 1, 1, 1), self.keys.reshape(-1, 1, 1, 1)

    def inside(self) -> np.ndarray:
        _, _, q, k, queries, keys = self.grids()
        return self.full((q < queries) & (k < keys))

    def full(self, pairs: np.ndarray) -> np.ndarray:
        return np.broadcast_to(pairs, (self.batch, self.heads, *self.length))


def call(length, *, batch=2, heads=2, shorter=(0, 0)) -> Call:
    """Examples of length `length`, every second one shorter by `shorter`."""
    odd = np.arange(batch) % 2
    queries, keys = (np.maximum(n - odd * less, 0) for n, less in zip(length, shorter, strict=True))
    return Call(batch, heads, length, queries.astype(np.int32), keys.astype(np.int32))


@dataclasses.dataclass(frozen=True)
class Case:
    """A mask for a call, and the pairs that it allows.

    Attributes:
        make: Of a call and a generator of random numbers: the mask, and bool[B, N, T, S].
        exact: Whether its tiles must be exact without a closer look.
    """

    name: str
    make: Callable[[Call, np.random.Generator], tuple[Mask, np.ndarray]]
    exact: bool = True


def _of_positions(name, mask, pairs, *, exact=True) -> Case:
    return Case(name, lambda c, _: (mask, c.full(pairs(*c.grids()))), exact)


def _by_example(c: Call, *values: int) -> np.ndarray:
    return np.resize(np.array(values, np.int32), c.batch)


def _offsets(c, _):
    offset = _by_example(c, 3, -4)
    _, _, q, k, _, _ = c.grids()
    return Causal(offset), c.full(k - q <= offset.reshape(-1, 1, 1, 1))


def _windows(c, _):
    left, right = _by_example(c, 9, 2), _by_example(c, 0, 5)
    _, _, q, k, _, _ = c.grids()
    low, high = -left.reshape(-1, 1, 1, 1), right.reshape(-1, 1, 1, 1)
    return SlidingWindow(left, right), c.full((k - q >= low) & (k - q <= high))


def _prefixes(c, _):
    n = _by_example(c, 6, 0, 70)
    _, _, q, k, _, _ = c.grids()
    return PrefixLM(n), c.full((k < n.reshape(-1, 1, 1, 1)) | (k <= q))


def _lengths(c, _):
    n = _by_example(c, 5, 66)
    _, _, q, k, _, keys = c.grids()
    return Lengths(queries=n), c.full((q < n.reshape(-1, 1, 1, 1)) & (k < keys))


def _packed(c, rng):
    # Ids that ascend, of queries and keys that are the same tokens.
    ids = np.sort(rng.integers(0, 4, (c.batch, max(c.length))), axis=1).astype(np.int32)
    query_ids, key_ids = ids[:, : c.length[0]], ids[:, : c.length[1]]
    pairs = query_ids[:, None, :, None] == key_ids[:, None, None, :]
    return Documents(query_ids, key_ids), c.full(pairs)


def _shuffled(c, rng):
    query_ids, key_ids = (rng.integers(-2, 6, n).astype(np.int32) for n in c.length)
    pairs = query_ids[None, None, :, None] == key_ids[None, None, None, :]
    return Documents(query_ids, key_ids), c.full(pairs)


def _strangers(c, rng):
    # Odd and even ids: the ranges of two tiles meet, and never an id.
    query_ids, key_ids = (2 * rng.integers(0, 9, n) + odd for odd, n in enumerate(c.length))
    return Documents(query_ids, key_ids), c.full(np.zeros((1, 1, 1, 1), bool))


def _dense(*axes):
    def make(c: Call, rng):
        whole = (c.batch, c.heads, *c.length)
        shape = [n if axis else 1 for n, axis in zip(whole, axes, strict=True)]
        # Runs of allowed pairs, so that there are full and empty tiles too.
        array = np.cumsum(rng.choice([-1, 0, 1], shape, p=(0.02, 0.96, 0.02)), axis=-1) % 3 > 0
        return Dense(array), c.full(array)

    return make


def _mixed(x):
    # lowbias32, with the shifts of unsigned numbers.
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def _kept(c: Call, _):
    seeds = _by_example(c, 7, -(2**31), 2**31 - 1)
    _, h, q, k, _, _ = (np.asarray(x).astype(np.uint32) for x in c.grids())
    of_head = seeds.astype(np.uint32).reshape(-1, 1, 1, 1) + h * np.uint32(0x9E3779B1)
    number = _mixed(_mixed(of_head + q * np.uint32(0x85EBCA77)) ^ (k * np.uint32(0xC2B2AE3D)))
    # The lowest numbers of all are those of the smallest signed ones.
    return Kept(0.3, seeds), c.full((number ^ np.uint32(2**31)) >= 0.3 * 2**32)


def _function(c: Call, _):
    b, h, q, k, _, _ = c.grids()
    mask = MaskFunction(lambda b, h, q, k: (k - q <= 5 * h) & (q - k <= 7 + 20 * b))
    return mask, c.full((k - q <= 5 * h) & (q - k <= 7 + 20 * b))


def _shared_function(c: Call, _):
    _, _, q, k, _, _ = c.grids()
    return MaskFunction(lambda b, h, q, k: q // 9 == k // 9), c.full(q // 9 == k // 9)


CASES = [
    _of_positions("full", Full(), lambda b, h, q, k, t, s: q >= 0),
    _of_positions("causal", Causal(), lambda b, h, q, k, t, s: k <= q),
    _of_positions("causal, offset 9", Causal(9), lambda b, h, q, k, t, s: k <= q + 9),
    _of_positions("causal, offset -70", Causal(-70), lambda b, h, q, k, t, s: k <= q - 70),
    _of_positions(
        "causal, end", Causal(align="end"), lambda b, h, q, k, t, s: (t - 1 - q) <= (s - 1 - k)
    ),
    Case("causal, an offset for each example", _offsets),
    _of_positions(
        "window 5, 3", SlidingWindow(5, 3), lambda b, h, q, k, t, s: (q - 5 <= k) & (k <= q + 3)
    ),
    _of_positions(
        "window 70, 0", SlidingWindow(70), lambda b, h, q, k, t, s: (q - 70 <= k) & (k <= q)
    ),
    _of_positions("window, no right", SlidingWindow(0, None), lambda b, h, q, k, t, s: k >= q),
    _of_positions("window, no limits", SlidingWindow(None, None), lambda b, h, q, k, t, s: q >= 0),
    Case("windows, one for each example", _windows),
    _of_positions("global 7", Global(7), lambda b, h, q, k, t, s: ~((q >= 7) & (k >= 7))),
    _of_positions("global 63", Global(63), lambda b, h, q, k, t, s: ~((q >= 63) & (k >= 63))),
    _of_positions("global 64", Global(64), lambda b, h, q, k, t, s: ~((q >= 64) & (k >= 64))),
    _of_positions("dilated 5", Dilated(5), lambda b, h, q, k, t, s: abs(q - k) % 5 == 0),
    _of_positions("dilated 1", Dilated(1), lambda b, h, q, k, t, s: q >= 0),
    _of_positions("dilated 90", Dilated(90), lambda b, h, q, k, t, s: abs(q - k) % 90 == 0),
    _of_positions("prefix 9", PrefixLM(9), lambda b, h, q, k, t, s: (k < 9) | (k <= q)),
    _of_positions("prefix 63", PrefixLM(63), lambda b, h, q, k, t, s: (k < 63) | (k <= q)),
    _of_positions("prefix 64", PrefixLM(64), lambda b, h, q, k, t, s: (k < 64) | (k <= q)),
    Case("prefixes, one for each example", _prefixes),
    _of_positions("lengths of the call", Lengths(), lambda b, h, q, k, t, s: (q < t) & (k < s)),
    Case("lengths of queries", _lengths),
    Case("packed documents", _packed),
    Case("shuffled documents", _shuffled, exact=False),
    Case("documents that never meet", _strangers, exact=False),
    Case("dense", _dense(1, 1, 1, 1)),
    Case("dense, all that counts", lambda c, _: (Dense(c.inside()), c.inside())),
    Case("dense, shared", _dense(0, 0, 1, 1), exact=False),
    Case("dense, by key", _dense(1, 0, 0, 1)),
    Case("dense, by query", _dense(1, 1, 1, 0)),
    Case("a random share", _kept, exact=False),
    Case("function of all", _function),
    Case("function of positions", _shared_function),
    _of_positions(
        "function of late queries",  # in a shorter example all behind its length
        MaskFunction(lambda b, h, q, k: q >= 46),
        lambda b, h, q, k, t, s: q >= 46,
    ),
    _of_positions(
        "causal and window",
        Causal(1) & SlidingWindow(30, 40),
        lambda b, h, q, k, t, s: (k <= q + 1) & (k >= q - 30),
    ),
    _of_positions(
        "bands that do not meet",
        Causal(-9) & SlidingWindow(4, 4),
        lambda b, h, q, k, t, s: (k < q) & (k > q),
    ),
    _of_positions(
        "not a window",
        ~SlidingWindow(20, 20),
        lambda b, h, q, k, t, s: abs(q - k) > 20,
    ),
    _of_positions(
        "window or global",
        Causal() & SlidingWindow(9) | Global(3),
        lambda b, h, q, k, t, s: ((k <= q) & (k >= q - 9)) | (q < 3) | (k < 3),
        exact=False,
    ),
]
