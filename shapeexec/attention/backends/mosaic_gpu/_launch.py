"""Launches the kernels, and defines the operands that all of them take.

A kernel is a function of its inputs, outputs and scratch, each by name. `_schedule` divides items
among programs.
"""

# Pallas and cuDNN have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec import _compat
from shapeexec.attention.backends._base import Ref, Side, Signature
from shapeexec.attention.backends.mosaic_gpu import _any_batch, _schedule
from shapeexec.attention.backends.mosaic_gpu._branches import when
from shapeexec.attention.backends.mosaic_gpu._elements import Elements
from shapeexec.attention.backends.mosaic_gpu._products import InterpretedProducts, Products
from shapeexec.attention.backends.mosaic_gpu._ring import Stream
from shapeexec.attention.backends.mosaic_gpu._rules import Rule
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
) -> list[Array]:
    """Run body(block, **inputs, **updated, **outputs, **scratch) in persistent programs.

    Args:
        config: The static part of the call.
        body: The kernel: a partial application of a module's function to hashable arguments.
        inputs: Pytrees of arrays; `sparsity` is among them.
        outputs: Shapes and dtypes of the results.
        scratch: Shared memory and barriers, which follow from the config and the inputs' shapes.
        side: Whether the rows of the items are of queries or of keys.
        batch: The number of examples.
        slots: The most items in flight at a time.
        copies: The number of copies that each item begins with.
        accumulators: The shapes of all accumulators held at a time, which the interpreter needs.
        updated: Arrays that the kernel changes.
        together: The number of items, one after the other, that one program takes in their order.

    Returns:
        The results, and the arrays of `updated`, by name, after the kernel.
    """
    scratch = {**scratch, "schedule": _schedule.scratch(slots, copies)}
    updated = updated or {}
    # Where items are alike programs take turns: the counter takes as long as a tile.
    alike = together > 1 or inputs["sparsity"].lists.longest == 1
    if config.interpret is None and not alike:
        # Only the first of two elements is used: XLA fills two in a kernel, but copies a single one
        # from a constant of the program, which takes longer.
        updated = {**updated, "counter": jnp.zeros((2,), jnp.int32)}
    if config.interpret is not None:
        pool = [plgpu.SMEM((WARPGROUPS, *shape), jnp.float32) for shape in accumulators]
        scratch["pool"] = pool

    def kernel(**named: Any) -> None:
        own = {key: named.pop(key, None) for key in ("counter", "pool", "schedule")}
        sparsity = named["sparsity"]
        order = {"side": side, "in_order": together > 1, "batch": sparsity.batch[0]}
        table = sparsity.table(config.signature, **order)
        of_all = {"count": config.programs, "copies": copies, "together": together}
        body(_block(table, **of_all, **own), **named)

    results = start(
        config,
        kernel,
        inputs=inputs,
        updated=updated,
        outputs=outputs,
        scratch=scratch,
        programs=config.programs,
        batch=batch,
        key=(body.func, body.args, side, slots, copies, together),
    )
    names = [*outputs, *sorted(updated)]
    return [x for name, x in zip(names, results, strict=True) if name != "counter"]


def start(
    config: Config,
    body: Callable[..., None],
    *,
    inputs: dict[str, Any],
    outputs: dict[str, jax.ShapeDtypeStruct],
    scratch: dict[str, Any],
    programs: int,
    updated: dict[str, Array] | None = None,
    warpgroups: int = WARPGROUPS,
    batch: int | None = None,
    key: Hashable = None,
) -> list[Array]:
    """Run body(**inputs, **updated, **outputs, **scratch) in `programs` programs.

    `warpgroups` is the number of warpgroups that compute; one more moves memory. With `batch`, the
    kernel serves every batch; see `_any_batch.call` for `key`, and `launch` for what is returned.
    """
    changes = dict.fromkeys(updated or {}, True)
    operands = {**inputs, **(updated or {})}
    flat, structure = jax.tree.flatten(operands)
    changed = jax.tree.leaves({**jax.tree.map(_no, inputs), **changes})

    def kernel(*refs: Ref) -> None:
        named = jax.tree.unflatten(structure, refs[: len(flat)])
        named |= dict(zip([*outputs, *scratch], refs[len(flat) :], strict=True))
        if config.interpret is None:
            plgpu.inline_mgpu()(functools.partial(_compat.name_mosaic_kernel, name))()
        body(**named)

    def run(results: Sequence[jax.ShapeDtypeStruct], *arrays: Array) -> list[Array]:
        refs = [
            jax.new_ref(x) if changes else x for x, changes in zip(arrays, changed, strict=True)
        ]
        made = plgpu.kernel(
            kernel,
            out_type=list(results),
            scratch_types=list(scratch.values()),
            grid=(programs,),
            grid_names=("program",),
            num_threads=warpgroups + 1,
            thread_name="warpgroup",
            # By lane Mosaic need not infer layouts, which took half the time of lowering.
            compiler_params=plgpu.CompilerParams(
                approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Lane
            ),
            **({} if config.interpret is None else {"interpret": config.interpret}),
        )(*refs)
        return [*made, *(ref[...] for ref, is_so in zip(refs, changed, strict=True) if is_so)]

    name = f"attention_{'_'.join(outputs)}"
    results = list(outputs.values())
    if batch is None or config.interpret is not None:
        return run(results, *flat)
    return _any_batch.call(
        run,
        results,
        flat,
        changed=changed,
        by_example=_by_example(operands, batch),
        batch=batch,
        key=(key, name, structure, programs, warpgroups, repr(scratch)),
    )


def _by_example(operands: dict[str, Any], batch: int) -> list[bool]:
    """Whether the first axis of each array is the examples'."""

    def has_axis(x: Array) -> bool:
        return x.shape[0] == batch > 1

    sparsity = operands["sparsity"]
    shared = {name: False for name in operands if name == "counter"}
    own = dataclasses.replace(
        jax.tree.map(_yes, sparsity),
        lists=jax.tree.map(has_axis, sparsity.lists),
        leaves=jax.tree.map(_no, sparsity.leaves),  # masks may have tables
        batch=False,
    )
    return jax.tree.leaves({**jax.tree.map(_yes, operands), **shared, "sparsity": own})


def _yes(_: Any) -> bool:
    return True


def _no(_: Any) -> bool:
    return False


def _block(
    table: Table,
    *,
    count: int,
    copies: int,
    together: int,
    counter: Ref | None,
    pool: Sequence[Ref] | None,
    schedule: dict[str, Ref],
) -> Block:
    """The running program, from the inputs and scratch that `launch` adds for it."""
    warpgroup = lax.axis_index("warpgroup")
    schedule = {**schedule}
    word = schedule.pop("word")
    queue = _schedule.Programs(
        table=table,
        me=lax.axis_index("program"),
        count=count,
        copies=copies,
        together=together,
        counter=counter,
        word=None if counter is None else word,
        **schedule,
    )
    products = Products() if pool is None else InterpretedProducts(list(pool), warpgroup)
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
) -> None:
    """Run the warpgroups that compute and the one that moves memory.

    Args:
        block: The program.
        streams: The streams that it reads.
        kernel: Does the work of each item.
        registers: The registers of a thread that computes, and of one that moves memory.
        start: The first position in the rings: one for all, or a tuple with one for each stream.
    """

    @when(block.warpgroup < WARPGROUPS)
    def _compute() -> None:
        plgpu.set_max_registers(registers[0], action="increase")
        block.queue.consume(kernel.attend, start)
        plgpu.wait_smem_to_gmem(0)

    @when(block.warpgroup == WARPGROUPS)
    def _memory() -> None:
        plgpu.set_max_registers(registers[1], action="decrease")
        end = block.queue.produce(kernel.begin, kernel.stream, start)
        ends = end if isinstance(end, tuple) else (end,) * len(streams)
        for one, position in zip(streams, ends, strict=True):
            one.drain(position)
