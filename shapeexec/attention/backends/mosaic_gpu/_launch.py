"""Launches the kernels over items of work, and defines the operands that all of them take.

`_schedule` divides items among programs, and `_start` starts these.
"""

# Pallas and cuDNN have partly unknown types.
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
from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends._base import Ref, Side, Signature
from shapeexec.attention.backends.mosaic_gpu import _schedule
from shapeexec.attention.backends.mosaic_gpu._branches import branch, when
from shapeexec.attention.backends.mosaic_gpu._elements import Elements
from shapeexec.attention.backends.mosaic_gpu._products import InterpretedProducts, Products
from shapeexec.attention.backends.mosaic_gpu._ring import Stream
from shapeexec.attention.backends.mosaic_gpu._rules import Rule
from shapeexec.attention.backends.mosaic_gpu._start import Examples, start
from shapeexec.attention.backends.mosaic_gpu._tiles import (
    TILE,
    WARPGROUPS,
    FirstTiles,
    Item,
    Lengths,
    ListRefs,
    Packing,
    Table,
)
from shapeexec.attention.backends.mosaic_gpu._weights import BiasedWeights, Weights

_COUNTER = "counter"
"""The name of the array from which programs take the next item."""


@dataclasses.dataclass(frozen=True)
class Config:
    """The static part of a call.

    Attributes:
        signature: The call's signature, with head sizes that the kernels take, and no batch.
        rule: The static part of mask and bias.
        programs: The number of programs that run at a time: one for each multiprocessor.
        interpret: Parameters of the interpreter; None on the device.
    """

    signature: Signature
    rule: Rule
    programs: int
    interpret: Any = None

    @property
    def columns(self) -> tuple[int, int]:
        """The numbers of columns of keys and of values in shared memory."""
        sizes = self.signature.head_size, self.signature.value_size
        key, value = (-(-size // 64) * 64 for size in sizes)
        if key + value > 384:
            # Shared memory has room for the output only if it takes that of the queries.
            key = value = max(key, value)
        return key, value

    @property
    def is_biased(self) -> bool:
        """Whether something is added to the scores."""
        return self.signature.bias is not None

    @property
    def weights(self) -> Weights | BiasedWeights:
        """The formulas that turn scores into weights."""
        return BiasedWeights() if self.is_biased else Weights(self.signature.scale)

    @property
    def overhangs(self) -> bool:
        """Whether a tile with work may extend past the last valid key."""
        return self.signature.is_ragged or self.signature.key_size % TILE > 0

    @property
    def parts(self) -> int:
        """The number of parts in which a tile is copied: a ragged one's rows may all be padding."""
        return WARPGROUPS if self.signature.is_ragged else 1

    @property
    def crosses_ends(self) -> bool:
        """Whether the mask may allow keys behind the valid length in a tile with work."""
        return self.overhangs and not self.is_biased


@dataclasses.dataclass(frozen=True)
class Sparsity:
    """The block sparsity of a call, as kernels read it from device memory.

    Attributes:
        lists: The tiles.
        query_lengths, key_lengths: Valid lengths, i32[B]; None: all positions are valid.
        leaves: The arrays of mask and bias.
        batch: The number of examples, i32[1].
    """

    lists: ListRefs | FirstTiles
    query_lengths: Array | None
    key_lengths: Array | None
    leaves: list[Array]
    batch: Array

    def column_dtypes(self, config: Config, *, side: Side) -> list[Any]:
        """The dtypes of the arrays of mask and bias with one element per column."""
        return [self.leaves[i].dtype for i in config.rule.of_side(int(side == "query"))]

    def elements(
        self,
        config: Config,
        products: Products | InterpretedProducts,
        *,
        side: Side,
        columns: Sequence[Ref],
        packing: Packing | None = None,
    ) -> Elements:
        """The mask and the bias inside a kernel; see `Elements`."""
        look_up = products.look_up
        return Elements(
            config.rule,
            self.leaves,
            side,
            list(columns),
            look_up,
            config.signature.scale if config.is_biased else None,
            config.weights.masked,
            config.crosses_ends,
            packing,
        )

    def table(
        self,
        signature: Signature,
        *,
        side: Side,
        in_order: bool,
        batch: Array | None = None,
    ) -> Table:
        """The table of a kernel whose rows are queries, or keys; see `Table`."""
        heads, group, columns = signature.query_heads, 1, signature.key_size
        if side == "key":
            heads, group, columns = signature.key_heads, signature.group, signature.query_size
        return Table(
            lists=self.lists,
            batch=batch,
            heads=heads,
            group=group,
            lengths=Lengths(
                (self.query_lengths, self.key_lengths), (signature.query_size, signature.key_size)
            ),
            side=side,
            overhangs=signature.is_ragged or columns % TILE > 0,
            in_order=in_order,
        )


jax.tree_util.register_dataclass(Sparsity)


@dataclasses.dataclass(frozen=True)
class Block:
    """A running program, as one of its warpgroups sees it.

    Attributes:
        warpgroup: The number of the warpgroup; the last one moves memory.
        queue: The items.
        products: The products of this warpgroup.
    """

    warpgroup: Array
    queue: _schedule.Programs
    products: Products | InterpretedProducts


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
        together: The number of items, one after the other, that one program takes in their order.
        halves: Whether two programs share an item, the rows of one warpgroup each, where there are
            at least twice as many programs as items; then `run` needs `skip`.

    Returns:
        The results, and the arrays of `updated`, by name, after the kernel.
    """
    # Where items are alike programs take turns: the counter takes as long as a tile.
    alike = together > 1 or inputs["sparsity"].lists.longest == 1
    updated = {**(updated or {}), **({} if alike or config.interpret is not None else _counter())}
    own = {"schedule": _schedule.scratch(slots, copies), **_pool(config, accumulators)}
    how = {"side": side, "copies": copies, "together": together, "halves": halves}
    key = (*how.values(), body.func, body.args)
    results = start(
        functools.partial(_run_in_programs, config, body, **how),
        inputs=inputs,
        updated=updated,
        outputs=outputs,
        scratch={**scratch, **own},
        programs=config.programs,
        interpret=config.interpret,
        examples=Examples(batch, _by_example(inputs, batch), key),
    )
    names = [*outputs, *sorted(updated)]
    return [x for name, x in zip(names, results, strict=True) if name != _COUNTER]


def _counter() -> dict[str, Array]:
    # Only the first of two elements is used: XLA fills two in a kernel, but copies a single one
    # from a constant of the program, which takes longer.
    return {_COUNTER: jnp.zeros((2,), jnp.int32)}


def _pool(config: Config, accumulators: list[tuple[int, int]]) -> dict[str, Any]:
    if config.interpret is None:
        return {}
    return {"pool": [plgpu.SMEM((WARPGROUPS, *shape), jnp.float32) for shape in accumulators]}


def _run_in_programs(
    config: Config,
    body: Callable[..., None],
    *,
    side: Side,
    copies: int,
    together: int,
    halves: bool,
    **named: Any,
) -> None:
    own = {key: named.pop(key, None) for key in (_COUNTER, "pool", "schedule")}
    sparsity = named["sparsity"]
    order = {"side": side, "in_order": together > 1, "batch": sparsity.batch[0]}
    table = sparsity.table(config.signature, **order)
    how = {"copies": copies, "together": together, "halves": halves}
    block = _block(table, count=config.programs, **how, **own)
    body(block, **named)


def _by_example(inputs: dict[str, Any], batch: int) -> dict[str, Any]:
    """Whether the first axis of each array is the examples'."""

    def has_axis(x: Array) -> bool:
        return x.shape[0] == batch > 1

    sparsity = inputs["sparsity"]
    of_sparsity = dataclasses.replace(
        jax.tree.map(_yes, sparsity),
        lists=jax.tree.map(has_axis, sparsity.lists),
        leaves=[False] * len(sparsity.leaves),  # masks may have tables
        batch=False,
    )
    return {**jax.tree.map(_yes, inputs), "sparsity": of_sparsity}


def _yes(_: Any) -> bool:
    return True


def _block(
    table: Table,
    *,
    count: int,
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
    return Block(warpgroup, queue, products)


class Kernel(Protocol):
    """The work for each item; see `Programs.produce` and `Programs.consume`."""

    def begin(self, item: Item, slot: Array) -> None:
        """Start the copies that a slot holds."""
        ...

    def stream(
        self, item: Item, slot: Array, start: Any, look_up: Callable[[], Any]
    ) -> tuple[Any, Any]:
        """Start the copies into the rings from `start` on, and finish those into the slot.

        Returns:
            Where the next item's begin, and what `look_up` returned.
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
