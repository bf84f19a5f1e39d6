"""Hopper kernels whose text serves every length in whole tiles: which calls, and how they index."""

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental import pallas as pl

import shapeexec as sx
from shapeexec import _compat
from shapeexec.attention.backends import _device
from shapeexec.attention.masks import ALiBi, Dense, Mask

if jax.__version_info__ < (0, 11):
    pytest.skip("jax < 0.11 cannot lower these kernels", allow_module_level=True)

from shapeexec.attention.backends.mosaic_gpu import _any_length, _launch
from shapeexec.attention.backends.mosaic_gpu._any_length import rule_of_any_length
from shapeexec.attention.backends.mosaic_gpu._config import Sparsity
from shapeexec.attention.backends.mosaic_gpu._divided import QUOTIENTS
from shapeexec.attention.backends.mosaic_gpu._merged import Kept, Merged, located
from shapeexec.attention.backends.mosaic_gpu._rules import rule_of
from tests.attention.hopper import Case
from tests.attention.lowering import lowered, lowered_for_each_batch
from tests.attention.test_any_batch import ANY_ORDER, LENGTHS, WINDOW, Call, hashes_of

END = (("mask", sx.Causal(align="end")),)
WITH_ALIBI = (("mask", sx.Causal()), ("bias", ALiBi.for_heads(2)))
CALLS = {
    "forward": Call(),
    "two kernels": Call(gradient=True),
    "wide": Call(gradient=True, size=128, options=(("mask", sx.Full()),)),
    "window": Call(gradient=True, options=WINDOW),
    "a window in which the shortest rows are alike": Call(
        gradient=True, options=(("mask", sx.SlidingWindow(300, 300)),)
    ),
    "end": Call(gradient=True, options=END),
    "valid lengths": Call(gradient=True, lengths=LENGTHS),
    "valid lengths and a window": Call(gradient=True, lengths=LENGTHS[:1], options=WINDOW),
    "documents": Call(gradient=True, documents=True),
    "ALiBi": Call(options=WITH_ALIBI),
    "heads of no power of 2": Call(gradient=True, heads=3),
}


@pytest.mark.parametrize("name", CALLS)
def test_all_lengths_in_whole_tiles_have_the_same_kernels(name, monkeypatch):
    jax.clear_caches()
    call = dataclasses.replace(CALLS[name], length=384)
    first = call.hashes()
    monkeypatch.setattr(_compat, "mosaic_kernel", lowered_for_each_batch)
    for batch, length in ((2, 512), (3, 896), (2, 1024)):
        lines = dataclasses.replace(call, batch=batch, length=length).kernels()
        assert hashes_of(lines) == first
        assert all(f"tensor<{batch * length}x{call.heads}x" in line for line in lines)


def test_one_kernel_for_all_gradients_serves_all_lengths_too():
    jax.clear_caches()
    call = Call(length=2048, gradient=True, options=ANY_ORDER)
    assert call.hashes() == dataclasses.replace(call, length=4096, batch=1).hashes()


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of decoding that is lowered."""

    batch: int = 2
    keys: int = 384
    queries: int = 1
    heads: tuple[int, int] = (4, 2)
    is_ragged: bool = False
    page_rows: int | None = None
    options: Callable[["Step"], dict[str, Any]] = lambda _: {}

    def hashes(self):
        """Those of the kernel that joins parts, and of the one that makes them."""
        rows, number = (self.batch, self.keys), None
        if self.page_rows:
            rows, number = (7 * self.batch, self.page_rows), self.keys // self.page_rows
        q = jax.ShapeDtypeStruct((self.batch, self.queries, self.heads[0], 64), jnp.bfloat16)
        k = jax.ShapeDtypeStruct((*rows, self.heads[1], 64), jnp.bfloat16)
        numbers = jax.ShapeDtypeStruct((self.batch,), jnp.int32)

        def step(q, k, numbers):
            lengths = numbers if self.is_ragged else None
            pages = number and jnp.broadcast_to(numbers[:, None], (self.batch, number))
            return sx.dot_product_attention(
                *(q, k, k), pages=pages, key_value_seq_lengths=lengths, **self.options(self)
            )

        with _device.assumed(_device.HOPPER):
            text = lowered(step, q, k, numbers, platform="cuda")
        lines = [line for line in text.splitlines() if "@mosaic_gpu" in line]
        return hashes_of(line for line in lines if "attention_lists" not in line)


def masked(make):
    return lambda step: {"mask": make(step)}


def scaled(factor):
    return lambda _: {"scale": factor}


STEPS = {
    "one query": Step(),
    "causal": Step(queries=4, options=masked(lambda _: sx.Causal(align="end"))),
    "valid lengths": Step(is_ragged=True),
    "a window": Step(queries=4, is_ragged=True, options=masked(lambda _: sx.SlidingWindow(900, 0))),
    "documents": Step(
        options=masked(
            lambda s: sx.Documents(np.zeros((s.batch, 1), int), np.zeros((s.batch, s.keys), int))
        ),
    ),
    "ALiBi": Step(options=lambda _: {"bias": ALiBi.for_heads(4)}),
    "pages": Step(keys=512, page_rows=64, is_ragged=True),
    "large pages": Step(keys=512, page_rows=128, queries=16),
    "heads of no power of 2": Step(queries=3, heads=(9, 3)),
}


@pytest.mark.parametrize("name", STEPS)
def test_few_queries_have_one_kernel_for_all_caches_and_one_that_joins_for_each_batch(name):
    jax.clear_caches()
    step = STEPS[name]
    sizes = (2, step.keys), (2, 2048), (2, 4096), (5, 2048)
    steps = [dataclasses.replace(step, batch=batch, keys=keys).hashes() for batch, keys in sizes]
    (_, long, longer, more), makes = zip(*steps, strict=True)
    assert len(set(makes)) == 1
    assert long == longer != more


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class KeysOfHeads(Mask):
    """Pairs by an array of heads and keys, whose tiles are alike for all heads."""

    axes: ClassVar = {"array": "BNTS"}

    array: object

    def allows(self, at):
        return at.of_pairs(self.array)

    def bounds(self, tiles):
        return sx.Full().bounds(tiles)


OWN_STEPS = {
    "queries": [Step(queries=n) for n in (1, 2)],
    "heads": [Step(heads=n) for n in ((4, 2), (4, 1))],
    "valid lengths": [Step(), Step(is_ragged=True)],
    "page sizes": [Step(keys=512, page_rows=n) for n in (64, 128)],
    "few tiles": [Step(keys=n) for n in (128, 256, 384)],
    "a tile that overhangs": [Step(keys=n) for n in (392, 400, 512)],
    "batches of such tiles": [Step(n, 400) for n in (2, 3)],
    "scales of such tiles": [Step(keys=400, options=scaled(x)) for x in (0.1, 0.2)],
    "windows of such tiles": [
        Step(keys=400, queries=4, options=masked(lambda _, n=n: sx.SlidingWindow(n, 0)))
        for n in (100, 200)
    ],
    "pairs": [
        Step(keys=n, queries=2, options=masked(lambda s: np.ones((1, 1, 2, s.keys), bool)))
        for n in (384, 512)
    ],
    "keys of each head, in the rows of a tile": [
        Step(keys=n, options=masked(lambda s: KeysOfHeads(np.ones((1, 4, 1, s.keys), bool))))
        for n in (384, 512)
    ],
}


@pytest.mark.parametrize("name", OWN_STEPS)
def test_few_queries_have_kernels_of_their_own_where_one_cannot_serve(name):
    jax.clear_caches()
    kernels = [step.hashes()[1] for step in OWN_STEPS[name]]
    assert len(set(kernels)) == len(kernels)


@pytest.mark.parametrize("batches", [(2, 3), (1, 2), (2, 1)])
def test_few_queries_read_shared_lists_and_lists_of_examples_by_other_kernels(batches):
    window = masked(lambda _: sx.SlidingWindow(200, 0))
    steps = [Step(n, 512, queries=2, is_ragged=True, options=window) for n in batches]
    jax.clear_caches()
    together = [step.hashes() for step in steps]
    assert (together[0][1] == together[1][1]) == (1 not in batches)
    for step, hashes in zip(steps, together, strict=True):
        jax.clear_caches()
        assert step.hashes() == hashes


@pytest.mark.parametrize("lengths", [(128, 256), (256, 384), (384, 392), (392, 400)], ids=str)
def test_few_tiles_and_a_tile_that_overhangs_have_kernels_of_their_own(lengths):
    jax.clear_caches()
    one, other = (Call(length=length).hashes() for length in lengths)
    assert one != other


def test_the_size_of_a_piece_that_lengths_choose_is_that_of_a_kernel():
    jax.clear_caches()
    calls = [Call(length=n, lengths=LENGTHS, gradient=True) for n in (384, 1024, 1152, 2048)]
    short, long, *others = [call.hashes() for call in calls]
    assert short == long
    assert others[0] == others[1]
    assert short[0] != others[0][0]
    assert short[1:] == others[0][1:]  # backward has one size


class Halved(sx.Documents):
    """Documents whose keys are in the second half, which it finds by the array's shape."""

    def allows(self, at):
        return super().allows(at) & (at.key >= self.key_ids.shape[-1] // 2)


class OfOneSize(sx.Documents):
    """Documents that are allowed everything if there are 512 keys."""

    def allows(self, at):
        allowed = super().allows(at)
        return allowed | (at.key >= 0) if self.key_ids.shape == (2, 512) else allowed


class Asserted(sx.Documents):
    """Documents of some numbers of keys."""

    def allows(self, at):
        assert self.key_ids.shape[-1] in (384, 512)
        return super().allows(at)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Swapped(Mask):
    """Keys between two numbers, which change places if there are 512 keys."""

    axes: ClassVar = {"low": "B", "high": "B", "ids": "BS"}

    low: object
    high: object
    ids: object
    in_order: bool = False

    def allows(self, at):
        is_swapped = self.ids.shape[-1] == 512
        arrays = (self.high, self.low) if is_swapped else (self.low, self.high)
        if self.in_order:  # the same reads, of which each stands for the other one
            low, high = at.of_batch(self.low), at.of_batch(self.high)
            low, high = (high, low) if is_swapped else (low, high)
        else:
            low, high = map(at.of_batch, arrays)
        return (at.key >= low) & (at.key < high) & (at.of_keys(self.ids) >= 0)

    def bounds(self, tiles):
        raise NotImplementedError


LOW, HIGH = np.array([3, 3], np.int32), np.array([300, 300], np.int32)
IDS = np.zeros((2, 512), np.int32)
KINDS = np.ones((4, 4), np.uint8)
RULES = {
    "causal": (sx.Causal(), {}, True),
    "documents": (sx.Documents(IDS), {}, True),
    "numbers of examples": (sx.Causal(np.array([3, 5], np.int32)), {}, True),
    "numbers of heads": (sx.Full(), {"bias": ALiBi.for_heads(2)}, True),
    "it computes with a shape": (Halved(IDS), {}, False),
    "it compares a shape": (OfOneSize(IDS), {}, False),
    "it reads other arrays by a shape": (Swapped(LOW, HIGH, IDS), {}, False),
    "it takes one read for another": (Swapped(LOW, HIGH, IDS, True), {}, False),
    "it asserts a shape": (Asserted(IDS), {}, False),
    "it compares a shape, another one": (OfOneSize(IDS[:1]), {}, True),
    "pairs": (Dense(np.zeros((1, 1, 512, 512), bool)), {}, False),
    "keys": (Dense(np.zeros((1, 1, 1, 512), bool)), {}, True),
    "blocks": (sx.BlockMask(KINDS, (128, 128), (512, 512)), {}, False),
    "a table": (sx.Full(), {"bias": sx.RelativeBias(np.zeros((2, 5), np.float32))}, False),
    "a bias": (sx.Full(), {"bias": np.zeros((1, 1, 512, 1), np.float32)}, False),
    "a tile that overhangs": (sx.Full(), {"keys": 520}, False),
    "few tiles of queries": (sx.Full(), {"queries": 256}, False),
    "more examples than can be divided": (sx.Full(), {"batch": QUOTIENTS // 2}, False),
    "more queries than i32 counts": (sx.Full(), {"queries": 2**30}, False),
    "more tiles than i32 counts": (sx.Full(), {"queries": 2**22, "keys": 2**22}, False),
    "many tiles": (sx.Full(), {"queries": 2**21, "keys": 2**21}, True),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_serves_all_lengths_if_it_asks_for_none(name):
    mask, options, does = RULES[name]
    case = Case("", mask, **{"queries": 512, "keys": 512, "batch": 2, **options})
    is_array = hasattr(case.bias, "shape")
    rule = rule_of(mask, None if is_array else case.bias)
    general = rule_of_any_length(case.signature, rule, lengths="TS")
    assert (general is not None) == does
    sizes = {size for use in getattr(general, "uses", ()) for size in use.shape}
    assert 512 not in sizes


@pytest.mark.parametrize("batches", [(1, 2), (2, 3)], ids=str)
def test_lists_that_examples_share_and_lists_of_their_own_are_read_by_other_kernels(batches):
    calls = [Call(batch, 512, options=WINDOW, lengths=LENGTHS[1:]) for batch in batches]
    jax.clear_caches()
    together = [call.hashes() for call in calls]
    assert (together[0] == together[1]) == (1 not in batches)
    for call, hashes in zip(calls, together, strict=True):
        jax.clear_caches()
        assert call.hashes() == hashes


NAMES = {
    "T": ("q", "out", "d_out", "d_q", "total", "rows", "addend", "statistics_0"),
    "S": ("k", "v", "d_k", "d_v"),
}


@pytest.mark.parametrize(("length", "name"), [(n, x) for n, names in NAMES.items() for x in names])
def test_axes_of_queries_and_of_keys_have_their_own_sizes(length, name):
    config = SimpleNamespace(any_length=True)
    arrays = {name: [jnp.zeros((2, 3, 4, 5)), jnp.zeros((2, 3, 4)), jnp.zeros(2)]}
    found = [one.sizes for one in _any_length.axes_of(config, arrays)[name]]
    assert found == [("B", length), ("B", 3, length), ()]


class Array:
    """A NumPy array that is indexed as a reference is."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def __getitem__(self, index):
        index = index if isinstance(index, tuple) else (index,)
        slices = (slice(i.start, i.start + i.size) if isinstance(i, pl.Slice) else i for i in index)
        return self.array[tuple(slices)]

    @property
    def at(self):
        return self


@given(st.data())
def test_merged_axes_are_indexed_as_if_they_were_not(data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple))
    merged = data.draw(st.integers(1, len(shape)))
    whole = np.arange(np.prod(shape)).reshape(shape)
    sizes = Array(np.array(shape[:merged]))
    known = [
        Kept(sizes, i) if data.draw(st.booleans()) else n for i, n in enumerate(shape[:merged])
    ]
    if data.draw(st.booleans()):
        known[0] = None  # no place depends on it
    mine = Merged(Array(whole.reshape(-1, *shape[merged:])), tuple(known))
    index = [data.draw(st.integers(0, n - 1)) for n in shape]
    assert mine[tuple(index)] == whole[tuple(index)]
    first, length = index[merged - 1], data.draw(st.integers(1, 4))
    length = min(length, shape[merged - 1] - first)
    cut = tuple([*index[: merged - 1], pl.ds(first, length), *index[merged:]])
    want = Array(whole)[cut]
    np.testing.assert_array_equal(mine.at[cut], want)
    if merged > 1:
        alone, place = located(mine, cut[0])
        np.testing.assert_array_equal(alone.at[place, *cut[1:]], want)
    for parts in range(1, merged):
        part = mine.at[cut[0] if parts == 1 else cut[:parts]]
        np.testing.assert_array_equal(part.at[cut[parts:]], want)


def test_an_array_that_has_fewer_rows_than_examples_is_none_of_theirs():
    sparsity = Sparsity(None, None, None, [], jnp.zeros(4, jnp.int32), longest=1)
    inputs = {"sparsity": sparsity, "q": jnp.zeros((4, 8)), "k": jnp.zeros((3, 8))}
    with pytest.raises(AssertionError, match="what lies behind is read"):
        _launch._by_example(inputs, 4)
