"""Launches the kernels over items of work.

`_schedule` divides items among programs, and `_start` starts these. By `_any_length` one text
serves all lengths, where that is possible.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax

from shapeexec.attention.backends._base import Ref, Side
from shapeexec.attention.backends.mosaic_gpu import _any_length, _schedule
from shapeexec.attention.backends.mosaic_gpu._branches import branch, when
from shapeexec.attention.backends.mosaic_gpu._config import Config
from shapeexec.attention.backends.mosaic_gpu._interpreted import InterpretedProducts
from shapeexec.attention.backends.mosaic_gpu._merged import Kept
from shapeexec.attention.backends.mosaic_gpu._pallas import plgpu
from shapeexec.attention.backends.mosaic_gpu._products import Products
from shapeexec.attention.backends.mosaic_gpu._ring import Stream
from shapeexec.attention.backends.mosaic_gpu._scratch import Shared
from shapeexec.attention.backends.mosaic_gpu._start import OpenEnded, start
from shapeexec.attention.backends.mosaic_gpu._tiles import (
    ROWS,
    TILE,
    WARPGROUPS,
    Item,
    Table,
    free_all,
)

_COUNTER = "counter"
"""The name of the array from which programs take the next item."""


@dataclasses.dataclass(frozen=True)
class Block:
    """A running program, as one of its warpgroups sees it.

    Attributes:
        warpgroup: The number of the warpgroup; the last one moves memory.
        queue: The items.
        products: The products of this warpgroup.
        sizes: What `_any_length.keep` keeps, by name; empty if the kernel serves one length only.
    """

    warpgroup: Array
    queue: _schedule.Programs
    products: Products | InterpretedProducts
    sizes: dict[str, Kept]

    def first_row(self, item: Item) -> Array:
        """The position of the first of an item's rows that this warpgroup computes."""
        return item.row * TILE + self.warpgroup * ROWS


def launch(
    config: Config,
    body: "functools.partial[None]",
    *,
    inputs: dict[str, Any],
    outputs: dict[str, jax.ShapeDtypeStruct],
    scratch: dict[str, Any],
    side: Side,
    batch: int,
    slots: int,
    copies: int,
    accumulators: list[tuple[int, int]],
    updated: dict[str, Array] | None = None,
    after: Array | None = None,
    together: int = 1,
    halves: bool = False,
) -> list[Array]:
    """Run body(block, **inputs, **updated, **outputs, **scratch) in persistent programs.

    Args:
        config: The static part of the call.
        body: The kernel: a partial application of a module's function to hashable arguments.
        inputs: Pytrees of arrays; `sparsity` is among them.
        outputs: Shapes and dtypes of the results.
        scratch: Shared memory and barriers.
        side: Whether the rows of the items are of queries or of keys.
        batch: The number of examples.
        slots: The most items in flight at a time.
        copies: The number of copies that each item begins with.
        accumulators: The shapes of all accumulators held at a time, which the interpreter needs.
        updated: Arrays that the kernel changes.
        after: What the kernel before this one returned for it, or `nothing_before`: XLA runs
            kernels that have no result in common in any order, or copies what one of them changes.
        together: The number of items, one after the other, that one program takes in their order.
        halves: Whether two programs share an item, the rows of one warpgroup each, where there are
            at least twice as many programs as items; then `run` needs `skip`.

    Returns:
        The results, and the arrays of `updated`, by name, after the kernel; with `after` then that
        of the next kernel.
    """
    inputs = inputs if after is None else {**inputs, "after": after}
    # Where items are alike programs take turns: the counter takes as long as a tile.
    alike = together > 1 or inputs["sparsity"].longest == 1
    updated = {**(updated or {}), **({} if alike or config.interpret is not None else _counter())}
    own = {"schedule": _schedule.scratch(slots, copies), **_pool(config, accumulators)}
    whole = {**outputs, **{name: updated[name] for name in sorted(updated)}}
    axes = _any_length.axes_of(config, {**inputs, **whole})
    merged = functools.partial(_any_length.merged, axes)
    how = {"side": side, "copies": copies, "together": together, "halves": halves}
    results = start(
        functools.partial(_run_in_programs, config, body, axes=axes, **how),
        inputs=merged(inputs),
        updated=merged(updated),
        outputs=merged(outputs),
        scratch={**scratch, **own, **_any_length.scratch(axes)},
        programs=config.programs,
        interpret=config.interpret,
        open_ended=OpenEnded(
            _by_example(inputs, batch) if axes is None else _any_length.open_ended(axes, inputs),
            key=(*how.values(), body.func, body.args, tuple(jax.tree.leaves(axes))),
        ),
    )
    return _as_asked(whole, results, after)


def _as_asked(whole: dict[str, Any], results: list[Array], after: Array | None) -> list[Array]:
    """What `launch` returns, from arrays with merged axes."""
    made = {name: x.reshape(whole[name].shape) for name, x in zip(whole, results, strict=True)}
    counter = made.pop(_COUNTER, None)
    if after is None:
        return [*made.values()]
    return [*made.values(), after if counter is None else counter]


def nothing_before() -> Array:
    """What the first one of several kernels is after."""
    return _counter()[_COUNTER]


def _counter() -> dict[str, Array]:
    # Only the first of two elements is used: XLA fills two in a kernel, but copies a single one
    # from a constant of the program, which takes longer.
    return {_COUNTER: jnp.zeros((2,), jnp.int32)}


def _pool(config: Config, accumulators: list[tuple[int, int]]) -> dict[str, Any]:
    if config.interpret is None:
        return {}
    return {"pool": [Shared((WARPGROUPS, *shape), jnp.float32) for shape in accumulators]}


def _run_in_programs(
    config: Config,
    body: Callable[..., None],
    *,
    side: Side,
    copies: int,
    together: int,
    halves: bool,
    axes: dict[str, Any] | None,
    **named: Any,
) -> None:
    kept, sizes = named.pop("kept", None), {}
    if axes is not None:
        sizes = _any_length.kept_sizes(kept)
        named = _any_length.told_apart(axes, named, sizes=sizes)
    named.pop("after", None)
    own = {key: named.pop(key, None) for key in (_COUNTER, "pool", "schedule")}
    sparsity = named["sparsity"]
    sections = sparsity.sections()
    table = sparsity.table(config, side=side, in_order=together > 1, sections=sections)
    how = {"copies": copies, "together": together, "halves": halves}
    block = _block(table, count=config.programs, sizes=sizes, **how, **own)
    if axes is not None:
        keep = functools.partial(_any_length.keep, first=sections.first, side=side)
        moves_memory = block.warpgroup == WARPGROUPS
        when(moves_memory)(lambda: keep(kept, sparsity.sizes, block.products))
    body(block, **named)


def _by_example(inputs: dict[str, Any], batch: int) -> dict[str, Any]:
    """Whether the first axis of each array is the examples', of which there are `batch`."""

    def has_axis(x: Array) -> bool:
        return x.shape[0] == batch > 1

    sparsity = inputs["sparsity"]
    of_sparsity = dataclasses.replace(
        jax.tree.map(_yes, sparsity),
        lists=jax.tree.map(has_axis, sparsity.lists),
        leaves=[False] * len(sparsity.leaves),  # masks may have tables
        sizes=False,
    )
    found = {**jax.tree.map(_yes, inputs), "sparsity": of_sparsity}
    pairs = zip(jax.tree.leaves(inputs), jax.tree.leaves(found), strict=True)
    assert all(x.shape[0] == batch for x, is_so in pairs if is_so), "else what lies behind is read"
    return found


def _yes(_: Any) -> bool:
    return True


def _block(
    table: Table,
    *,
    count: int,
    sizes: dict[str, Kept],
    copies: int,
    together: int,
    halves: bool,
    counter: Ref | None,
    pool: Sequence[Ref] | None,
    schedule: dict[str, Ref],
) -> Block:
    """The running program, from the inputs and scratch that `launch` adds for it."""
    warpgroup = lax.axis_index("warpgroup")
    schedule = {**schedule}
    word = schedule.pop("word")
    products = Products() if pool is None else InterpretedProducts(list(pool), warpgroup)
    queue = _schedule.Programs(
        table=table,
        me=lax.axis_index("program"),
        count=count,
        copies=copies,
        together=together,
        halves=halves,
        products=products,
        counter=counter,
        word=None if counter is None else word,
        **schedule,
    )
    return Block(warpgroup, queue, products, sizes)


class Kernel(Protocol):
    """The work for each item; see `Programs.produce` and `Programs.consume`."""

    def begin(self, item: Item, slot: Array) -> None:
        """Start the copies that a slot holds."""
        ...

    def stream(
        self, item: Item, slot: Array, start: Any, look_up: _schedule.LookUp
    ) -> tuple[Any, Any]:
        """Start the copies into the rings from `start` on, and finish those into the slot.

        Returns:
            Where the next item's begin, and what was looked up.
        """
        ...

    def attend(self, item: Item, slot: Array, start: Any) -> Any:
        """Compute the item whose copies begin at `start`; return where the next item's begin."""
        ...


def run(
    block: Block,
    streams: tuple[Stream, ...],
    *,
    kernel: Kernel,
    registers: tuple[int, int],
    start: Any = 0,
    skip: Callable[[Item, Any], Any] | None = None,
) -> None:
    """Run the warpgroups that compute and the one that moves memory.

    Args:
        block: The program.
        streams: The streams that it reads.
        kernel: Does the work of each item.
        registers: The registers of a thread that computes, and of one that moves memory.
        start: The first position in the rings: one for all, or a tuple with one for each stream.
        skip: skip(item, start) lets go of an item's copies unread, where another program computes
            these rows, and returns what `Kernel.attend` does.
    """

    @when(block.warpgroup < WARPGROUPS)
    def _compute() -> None:
        plgpu.set_max_registers(registers[0], action="increase")
        free_all(*(stream.free for stream in streams))
        block.queue.consume(_unless_shared(block, kernel.attend, skip), start)
        plgpu.wait_smem_to_gmem(0)

    @when(block.warpgroup == WARPGROUPS)
    def _memory() -> None:
        plgpu.set_max_registers(registers[1], action="decrease")
        end = block.queue.produce(kernel.begin, kernel.stream, start)
        ends = end if isinstance(end, tuple) else (end,) * len(streams)
        for one, position in zip(streams, ends, strict=True):
            one.drain(position)


def _unless_shared(
    block: Block,
    attend: Callable[[Item, Array, Any], Any],
    skip: Callable[[Item, Any], Any] | None,
) -> Callable[[Item, Array, Any], Any]:
    """`attend`, or `skip` in a warpgroup whose rows another program computes."""
    assert block.queue.halves == (skip is not None)
    if skip is None:
        return attend
    rests = block.queue.rests(block.warpgroup)
    return lambda item, slot, start: branch(
        ~rests, lambda: attend(item, slot, start), lambda: skip(item, start)
    )
