"""The order in which the programs of a Hopper kernel take the rows of tiles, by arithmetic."""

import dataclasses
import heapq

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shapeexec.attention.backends._reach import Reach
from shapeexec.attention.backends.mosaic_gpu._divided import divided
from shapeexec.attention.backends.mosaic_gpu._prepared import prepare
from shapeexec.attention.backends.mosaic_gpu._tiles import (
    TILE,
    FirstTiles,
    Item,
    Lengths,
    ListRefs,
    Sections,
    Table,
)
from shapeexec.attention.masks import Causal, Full, SlidingWindow
from tests.attention.hopper import Case

PROGRAMS = 132
CAUSAL = FirstTiles(TILE, Reach(0))
SHAPES = [
    (1, 1, 1),
    (1, 3, 2),
    (4, 16, 32),
    (1, 16, 128),
    (3, 5, 7),
    (1, 21, 32),
    (16, 12, 8),
    (2, 2, 600),
]
"""Examples, heads, and rows of a head."""


@pytest.mark.parametrize(
    ("mask", "queries", "keys", "behind", "may_be_empty"),
    [
        (Causal(), 256, 256, (False, False), False),
        (Full(), 200, 256, (False, True), False),
        (Full(), 256, 200, (True, False), True),
        (Causal(-1), 256, 256, (False, False), True),
        (Causal(align="end"), 256, 128, (False, False), True),
        (SlidingWindow(3, 0), 256, 256, (False, False), True),
    ],
)
def test_kernels_know_what_cannot_happen(mask, queries, keys, behind, may_be_empty):
    case = Case("", mask, queries=queries, keys=keys)
    prepared = prepare(case.signature, case.work(), bias=None, interpret=None)
    assert tuple(map(prepared.config.reads_behind, ("query", "key"))) == behind
    table = prepared.sparsity(side="query").table(prepared.config, side="query", in_order=False)
    assert table.may_be_empty == may_be_empty
    ragged = dataclasses.replace(case, sizes=([queries], [keys]))
    prepared = prepare(ragged.signature, ragged.work(), bias=None, interpret=None)
    assert all(map(prepared.config.reads_behind, ("query", "key")))


@pytest.mark.parametrize(("batch", "heads", "rows"), SHAPES)
@pytest.mark.parametrize(
    ("lists", "in_order"),
    [(CAUSAL, False), (CAUSAL, True), (FirstTiles(TILE, Reach()), False)],
    ids=["causal", "causal in order", "full"],
)
def test_each_row_is_one_item(batch, heads, rows, lists, in_order):
    items, of_any_length = (
        items_of(lists, batch=batch, heads=heads, rows=rows, in_order=in_order, is_known=is_known)
        for is_known in (True, False)
    )
    np.testing.assert_array_equal(items, of_any_length)
    total = batch * heads * rows
    found = np.stack([items.batch, items.head, items.row], 1)
    assert (found[total:, 0] == -1).all(), "no work is left"
    expected = np.stack(np.unravel_index(np.arange(total), (batch, heads, rows)), 1)
    if in_order or lists is not CAUSAL:
        np.testing.assert_array_equal(found[:total], expected)
    np.testing.assert_array_equal(found[:total][np.lexsort(found[:total].T[::-1])], expected)


@pytest.mark.parametrize("lists", [CAUSAL, FirstTiles(TILE, Reach())], ids=["causal", "full"])
@pytest.mark.parametrize(("first", "heads"), [(0, 1), (5, 1), (3, 7), (0, 12), (11, 1)])
def test_a_span_of_heads_has_the_items_of_these(lists, first, heads):
    items = items_of(lists, batch=3, heads=4, rows=5, span=(first, heads))
    found = np.stack([items.batch * 4 + items.head, items.row], 1)[: heads * 5]
    expected = np.stack(np.meshgrid(np.arange(first, first + heads), np.arange(5)), -1)
    assert sorted(map(tuple, found)) == sorted(map(tuple, expected.reshape(-1, 2)))
    assert (items.batch[heads * 5 :] == -1).all(), "no work is left"


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("tiles", [1, 2, 5, 8])
def test_tall_rows_are_of_two_tiles(tiles, is_known):
    lists = FirstTiles(2 * TILE, Reach(0))
    items = items_of(lists, batch=2, heads=3, rows=tiles, is_known=is_known)
    rows = -(-tiles // 2)
    assert (items.batch >= 0).sum() == 2 * 3 * rows
    np.testing.assert_array_equal(items.count[:rows], np.minimum(2 * items.row[:rows] + 2, tiles))


def test_rows_without_an_order_are_taken_in_turn():
    counts = jnp.ones((1, 1, 8), jnp.int32)
    items = items_of(ListRefs(counts[..., None], counts, counts, None), batch=2, heads=3, rows=8)
    np.testing.assert_array_equal(items.row[: 2 * 3 * 8], np.tile(np.arange(8), 2 * 3))


@pytest.mark.parametrize("group", [1, 3])
def test_rows_are_taken_in_the_order_of_their_heads_lists(group):
    batch, heads, rows = 2, 20, 8
    random = np.random.default_rng(0)
    of_lists = batch, heads * group, rows
    order = np.argsort(random.random(of_lists), axis=2).astype(np.int32)
    counts = jnp.ones(of_lists, jnp.int32)
    lists = ListRefs(counts[..., None], counts, counts, jnp.asarray(order))
    items = items_of(lists, batch=batch, heads=heads, rows=rows, group=group)
    for b, h in np.ndindex(batch, heads):
        mine = (items.batch == b) & (items.head == h)
        np.testing.assert_array_equal(items.row[mine], order[b, h * group])


@pytest.mark.parametrize("columns", [64, 128, 256])
@pytest.mark.parametrize(
    ("batch", "rows", "most"),
    [
        (4, 32, 1.01),
        (1, 32, 1.02),
        (1, 128, 1.01),
        (16, 8, 1.03),
        (16, 4, 1.05),
        (8, 3, 1.04),
        (8, 2, 1.04),
        (32, 2, 1.04),
    ],
)
def test_programs_end_together(batch, rows, most, columns):
    """Where the longest rows are the first of each head only, 4 x 32 rows take 1.06 of the mean."""
    items = items_of(CAUSAL, batch=batch, heads=16, rows=rows, columns=columns)
    ends = [0] * PROGRAMS
    counts = items.count[: batch * 16 * rows]
    for count in counts:
        heapq.heapreplace(ends, ends[0] + int(count))
    assert max(ends) <= most * counts.sum() / PROGRAMS


def test_few_heads_are_at_work_at_a_time():
    """Or their keys and values outgrow the second-level cache."""
    items = items_of(CAUSAL, batch=8, heads=16, rows=32)
    all_heads = items.batch * 16 + items.head
    early = all_heads[: (8 * 16 - 16) * 32]
    at_work = [len(set(early[i : i + PROGRAMS])) for i in range(len(early) - PROGRAMS)]
    assert max(at_work) <= 8


@pytest.mark.parametrize(
    ("rows", "columns", "heads"),
    [
        (2, 64, 128),
        (2, 128, 128),  # 256 rows at least
        (4, 64, 128),
        (4, 96, 96),  # 85, and what all sections before it cannot have
        (4, 128, 64),
        (6, 128, 71),
        (6, 192, 50),
        (6, 256, 50),  # 256 rows at least
        (8, 128, 64),
        (16, 128, 32),  # 512 rows at most
    ],
)
def test_the_last_section_has_few_heads_where_rows_are_short(rows, columns, heads):
    """Else the memory is busy until all their keys are read, and then idle."""
    items = items_of(CAUSAL, batch=32, heads=16, rows=rows, columns=columns)
    all_heads, total = items.batch * 16 + items.head, 32 * 16 * rows
    assert len(set(all_heads[total - heads : total])) == heads, "their shortest rows end the call"
    assert (items.row[total - heads : total] == 0).all()
    assert items.row[total - heads - 1] == 1


@pytest.mark.parametrize(
    ("side", "heads", "columns"),
    [("query", (4, 4), 128), ("key", (4, 4), 128), ("query", (4, 1), 32), ("key", (4, 1), 512)],
)
def test_heads_share_the_columns_that_they_read(side, heads, columns):
    case = Case("", Causal(), 512, 512, heads=heads, head_sizes=(64, 128))
    prepared = prepare(case.signature, case.work(), bias=None, interpret=None)
    assert prepared.config.read_columns(side) == columns


@pytest.mark.parametrize(("of_row", "rows"), [(TILE, 4), (2 * TILE, 2)])
def test_kernels_are_told_of_the_sections_of_their_rows(of_row, rows):
    case = Case("", Causal(), 512, 384, heads=(4, 2))
    prepared = prepare(case.signature, case.work(), bias=None, interpret=None)
    by_query = prepared.sparsity(side="query", of_row=of_row, span=(1, 2))
    assert by_query.sections() == Sections.of(1, 2, rows=rows, columns=32)
    by_key = prepared.sparsity(side="key")
    assert by_key.sections() == Sections.of(0, 2 * case.batch, rows=3, columns=128)


@pytest.mark.parametrize(
    ("batch", "heads", "rows"),
    [(8191, 128, 2047), (1, 1048575, 2000), (3, 127, 5_000_000), (65_000, 16, 3), (1, 2, 2**20)],
)
def test_numbers_of_31_bits_are_divided_without_error(batch, heads, rows):
    total = batch * heads * rows
    random = np.random.default_rng(0).integers(0, total, 500)
    numbers = np.unique([*random, 0, total - 1, total - 512, total - 513])
    items = items_of(CAUSAL, numbers, batch=batch, heads=heads, rows=rows, is_known=False)
    of_last = np.clip(64, max(1, 256 // rows), max(1, 512 // rows))
    at_once, last = max(1, 128 // rows), max(batch * heads - of_last, 0)
    last -= last % at_once  # so all sections before it are whole
    first = np.where(numbers >= last * rows, last, numbers // (at_once * rows) * at_once)
    ends = np.where(first == last, batch * heads, first + at_once)
    place, head = np.divmod(numbers - first * rows, ends - first)
    np.testing.assert_array_equal(items.batch * heads + items.head, first + head)
    np.testing.assert_array_equal(items.row, rows - 1 - place)


def items_of(
    lists,
    numbers=None,
    *,
    batch,
    heads,
    rows,
    group=1,
    in_order=False,
    is_known=True,
    span=None,
    columns=128,
) -> Item:
    """The items of some numbers; by default of all, and of some numbers behind them."""

    def item(sections, number):
        size = rows * TILE if is_known else jnp.int32(rows * TILE)
        table = Table(
            lists=lists,
            sections=Sections(*sections),
            heads=heads,
            group=group,
            lengths=Lengths((None, None), (size, size)),
            side="query",
            longest=rows,
            has_one_column=False,
            overhangs=False,
            in_order=in_order,
            divide=divided,
        )
        return table.item(number)

    numbers = np.arange(batch * heads * rows + 3) if numbers is None else numbers
    span, of_list = span or (0, batch * heads), lists.of_row // TILE
    sections = Sections.of(*span, rows=-(-rows // of_list), columns=columns)
    made = jax.jit(jax.vmap(item, in_axes=(None, 0)))(jnp.int32(sections), np.int32(numbers))
    return Item(*map(np.asarray, made))
