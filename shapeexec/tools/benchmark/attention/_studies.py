"""Further studies of our function: the cost of its lists, of padding, and its memory.

Each study compares two figures. `_run` makes the rows of the benchmark; studies of decoding and of
short sequences are in `_serving`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import shapeexec as sx
from shapeexec.attention._call_lists import call_lists
from shapeexec.tools.benchmark.attention._clock import clock
from shapeexec.tools.benchmark.attention._compiling import compile_times
from shapeexec.tools.benchmark.attention._contestant import (
    Program,
    compiled,
    operand_avals,
    operands,
)
from shapeexec.tools.benchmark.attention._finding import Finding
from shapeexec.tools.benchmark.attention._launches import launches
from shapeexec.tools.benchmark.attention._masks import mask_of
from shapeexec.tools.benchmark.attention._ours import DEFAULT
from shapeexec.tools.benchmark.attention._problems import (
    PASSES,
    TILE,
    Cell,
    Pass,
    Problem,
    Shape,
)
from shapeexec.tools.benchmark.attention._run import Plan, Row
from shapeexec.tools.benchmark.attention._serving import decode, short
from shapeexec.tools.benchmark.attention._traffic import traffic

Array = Any


def lists(plan: Plan, rows: Sequence[Row]) -> Iterator[Finding]:
    """The cost of making the lists of tiles on the device, relative to the attention itself.

    Only for masks with arrays; the lists of all other masks are constants. Forward needs the lists
    by query, backward also the lists by key. The lists are timed without the attention, so XLA
    cannot fuse the two.
    """
    known = {
        (row.shape, row.mask, row.passes): row.milliseconds
        for row in rows
        if row.contestant == DEFAULT and row.milliseconds
    }
    programs: dict[Any, Program] = {}  # masks of one kind share one
    places = [(shape, pattern) for shape in plan.shapes for pattern in plan.patterns]
    for (shape, pattern), passes in itertools.product(places, PASSES):
        attention = known.get((shape.name, pattern.name, passes))
        mask = mask_of(pattern, shape.length)
        if attention is None or not jax.tree.leaves(mask):
            continue
        key = (shape, passes, jax.tree.structure(mask))
        if key not in programs:
            programs[key] = compiled(_lists(shape, passes), (mask,))
        milliseconds = clock(programs[key].call, (mask,)).best_known
        name = Cell(Problem(shape, pattern), passes).name
        yield Finding(
            "lists", name, "ms", milliseconds, attention, "of the attention that they serve"
        )


def padding(plan: Plan, rows: Sequence[Row]) -> Iterator[Finding]:
    """A half-filled bucket of twice the length, relative to a full bucket; causal."""
    del rows
    valid = dataclasses.replace(plan.shapes[0], batch=max(1, plan.shapes[0].batch // 2))
    bucket = dataclasses.replace(valid, length=2 * valid.length)
    for passes in PASSES:
        times = {}
        for shape in (bucket, valid):
            lengths = jnp.full(shape.batch, valid.length, jnp.int32)
            arguments = (lengths, *operands(shape))
            program = compiled(_causal(passes, ragged=True), arguments)
            times[shape] = clock(program.call, arguments).best_known
        case = f"{bucket.batch} x {valid.length} in a bucket of {bucket.length}, {passes}"
        meaning = f"of a bucket of {valid.length}"
        yield Finding("padding", case, "ms", times[bucket], times[valid], meaning)


def memory(plan: Plan, rows: Sequence[Row]) -> Iterator[Finding]:
    """The temporaries at twice the length, relative to the length: 2 is linear, 4 quadratic."""
    del rows
    half = plan.shapes[0]
    long = dataclasses.replace(half, length=2 * half.length)
    for passes in PASSES:
        used = {}
        for shape in (long, half):
            program = compiled(_causal(passes, ragged=False), (None, *operand_avals(shape)))
            used[shape] = (program.temporary_bytes or 0) / 2**20
        case = f"{long.length} and {half.length} positions, {passes}"
        yield Finding("memory", case, "MiB", used[long], used[half], "of half the length")


STUDIES: dict[str, Callable[..., Iterator[Finding]]] = {
    "lists": lists,
    "padding": padding,
    "memory": memory,
    "decode": decode,
    "short": short,
    "launches": launches,
    "compile": compile_times,
    "bytes": traffic,
}


def _lists(shape: Shape, passes: Pass) -> Callable[[Any], Any]:
    def make(mask: Any) -> Any:
        length = (shape.length, shape.length)
        by_query, by_key = call_lists(
            mask, length, tile=(TILE, TILE), batch=shape.batch, heads=shape.heads
        )
        return by_query if passes == "forward" else (by_query, by_key)

    return make


def _causal(passes: Pass, *, ragged: bool) -> Callable[..., Any]:
    def attend(lengths: Array, q: Array, k: Array, v: Array) -> Array:
        given = lengths if ragged else None
        return sx.dot_product_attention(
            q, k, v, is_causal=True, query_seq_lengths=given, key_value_seq_lengths=given
        )

    def both(lengths: Array, q: Array, k: Array, v: Array, d_out: Array) -> Any:
        out, transpose = jax.vjp(functools.partial(attend, lengths), q, k, v)
        return out, transpose(d_out)

    return both if passes == "both" else lambda lengths, q, k, v, d_out: attend(lengths, q, k, v)
