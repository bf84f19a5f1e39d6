"""The schedule: a fixed number of persistent programs take items one after another.

On the device the next item goes to the first free program, by an atomic counter in device memory;
in the interpreter, which has no such counter, programs take turns. Where there are few items, two
programs may share one.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec.attention.backends._base import Ref
from shapeexec.attention.backends.mosaic_gpu import _i32 as i32
from shapeexec.attention.backends.mosaic_gpu import _threads
from shapeexec.attention.backends.mosaic_gpu._branches import branch
from shapeexec.attention.backends.mosaic_gpu._interpreted import InterpretedProducts
from shapeexec.attention.backends.mosaic_gpu._pallas import ir, llvm, memref, mgpu, plgpu
from shapeexec.attention.backends.mosaic_gpu._products import Products
from shapeexec.attention.backends.mosaic_gpu._scratch import Barriers, Shared
from shapeexec.attention.backends.mosaic_gpu._tiles import (
    WARPGROUPS,
    Item,
    Table,
    free_all,
    place_of,
)

_LAST = 4
"""Pieces of an item that are sent when the next item is looked up; see `LookUp.late`."""


@dataclasses.dataclass(frozen=True)
class LookUp:
    """Looks up the next item of a program: loads that depend on each other, microseconds in all.

    Attributes:
        call: Returns the item, and its number.
        before: An item and its number, for as long as the next one is not known.
    """

    call: Callable[[], tuple[Item, Array]]
    before: tuple[Item, Array]

    def __call__(self) -> tuple[Item, Array]:
        """What `call` returns."""
        return self.call()

    def amid(
        self, send: Callable[[Any, Any], Any], initial: Any, *, first: Array, count: Array
    ) -> tuple[Any, tuple[Item, Array]]:
        """Look up when the first pieces of an item are sent.

        Args:
            send: send(i, carry) sends piece i, and returns the next carry.
            initial: The first carry.
            first: The number of the first pieces.
            count: The number of all pieces.

        Returns:
            The last carry, and what `call` returned.
        """

        def part(number: Array, state: tuple[Any, Any]) -> tuple[Any, Any]:
            carry, following = state
            is_first = number == 0
            begin, end = i32.where(is_first, 0, first), i32.where(is_first, first, count)
            carry = lax.fori_loop(begin, end, send, carry)
            return carry, branch(is_first, self.call, lambda: following)

        return lax.fori_loop(0, 2, part, (initial, self.before))

    def late(
        self, send: Callable[[Any, Any], Any], initial: Any, count: Array
    ) -> tuple[Any, tuple[Item, Array]]:
        """`amid`, before the last pieces: a long item may end when other programs have no work.

        Who looks up earlier takes an item that it begins late, and another program would not.
        """
        return self.amid(send, initial, first=i32.maximum(count - _LAST, 0), count=count)

    def only_if(self, is_due: Array) -> "LookUp":
        """Looks up if it `is_due`, bool[]; else it returns what was known before."""
        return LookUp(lambda: branch(is_due, self.call, lambda: self.before), self.before)


@dataclasses.dataclass(frozen=True)
class Programs:
    """The two ends of the queue between the warpgroup that moves memory and those that compute.

    Attributes:
        table: The items.
        me: The number of this program, i32[].
        count: The number of programs.
        posts: i32[slots, 8] in shared memory: the items in flight.
        ready: A barrier for each slot: the first operands of the slot's item have arrived.
        free: A barrier for each slot: the slot's item has been computed.
        copies: The number of copies that arrive at `ready` for an item.
        together: The number of items, one after the other, that one program takes.
        halves: Whether two programs share an item, the rows of one warpgroup each, where there are
            at least twice as many programs as items: see docs/adr/0009.
        products: The products of this warpgroup.
        counter, word: See `take`; None: programs take turns.
    """

    table: Table
    me: Array
    count: int
    posts: Ref
    ready: Ref
    free: Ref
    copies: int
    together: int
    halves: bool
    products: Products | InterpretedProducts
    counter: Ref | None
    word: Ref | None

    @property
    def slots(self) -> int:
        return self.posts.shape[0]

    def rests(self, warpgroup: Array) -> Array:
        """Whether another program computes the rows of this warpgroup, bool[]."""
        return self._are_shared & (lax.rem(self.me, i32.constant(WARPGROUPS)) != warpgroup)

    @property
    def _are_shared(self) -> Array:
        """Whether two programs share an item, bool[]: else half of them would have none."""
        return self.table.total <= self.count // WARPGROUPS

    def first(self) -> Array:
        """The number of the first item of this program."""
        first = self.me * self.together
        if not self.halves:
            return first
        return i32.where(self._are_shared, lax.div(first, i32.constant(WARPGROUPS)), first)

    def produce(self, begin: Callable[..., Any], stream: Callable[..., Any], start: Any = 0) -> Any:
        """Take items and stream their operands; for the warpgroup that moves memory.

        Args:
            begin: begin(item, slot) starts the `copies` copies that arrive at `ready`.
            stream: stream(item, slot, ring, look_up) starts the others and returns the next ring
                position, and what the `LookUp` returned.
            start: The first position in the ring; or a tuple, for several rings.

        Returns:
            The final position in the ring.
        """

        def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            item, taken, ring, number = carry
            slot = self._post(item, taken)
            begin(item, slot)

            def look_up() -> tuple[Item, Array]:
                following = self.following(number)
                return self.table.item(following), following

            next_one = LookUp(look_up, (item, number))
            ring, (following, number) = stream(item, slot, ring, next_one)
            return following, taken + 1, ring, number

        ring = jax.tree.map(i32.constant, start)
        first = self.first()
        start = (self.table.item(first), i32.constant(0), ring, first)
        item, taken, ring, _ = lax.while_loop(lambda carry: carry[0].batch >= 0, step, start)
        slot = self._post(item, taken)
        for _ in range(self.copies):
            plgpu.barrier_arrive(self.ready.at[slot])
        self.products.drain(self.free, taken + 1, taken + self.slots)
        return ring

    def consume(self, compute: Callable[..., Any], start: Any = 0) -> None:
        """Compute items as they come; for the warpgroups that compute.

        Args:
            compute: compute(item, slot, ring) returns the next ring position. It must not use the
                slot after it returns.
            start: See `produce`.
        """

        def receive(taken: Array) -> Item:
            slot = place_of(taken, self.slots)
            plgpu.barrier_wait(self.ready.at[slot])
            return self.posted(slot)

        def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            item, taken, ring = carry
            slot = place_of(taken, self.slots)
            ring = compute(item, slot, ring)
            plgpu.barrier_arrive(self.free.at[slot])
            return receive(taken + 1), taken + 1, ring

        free_all(self.free)
        start = (receive(i32.constant(0)), i32.constant(0), jax.tree.map(i32.constant, start))
        lax.while_loop(lambda carry: carry[0].batch >= 0, step, start)

    def posted(self, slot: Array) -> Item:
        """The item of a slot; to be read again, it need not lie in registers meanwhile."""
        return Item(*self.products.numbers(self.posts.at[slot], len(Item._fields)))

    def _post(self, item: Item, taken: Array) -> Array:
        slot = place_of(taken, self.slots)
        plgpu.barrier_wait(self.free.at[slot])
        self.products.put(self.posts.at[slot], item)
        return slot

    def following(self, number: Array) -> Array:
        """The number of the item that this program takes after this one."""
        if self.counter is None:
            following = number + 1
            is_last = lax.rem(following, i32.constant(self.together)) == 0
            return following + i32.where(is_last, (self.count - 1) * self.together, 0)
        return self.count + take(self.counter, self.word)


def scratch(slots: int, copies: int) -> dict[str, Any]:
    """The scratch that `Programs` needs, by the names of its attributes."""
    return {
        "posts": Shared((slots, 8), jnp.int32),
        "ready": Barriers(count=slots, arrivals=copies),
        "free": Barriers(count=slots, arrivals=WARPGROUPS),
        "word": Shared((1,), jnp.int32),
    }


def take(counter: Ref, word: Ref) -> Array:
    """Add one, and return the previous count to all threads of the warpgroup.

    Args:
        counter: i32[1 or more] in device memory, whose first element all programs share.
        word: i32[1] in shared memory, used by this warpgroup only.
    """
    scalar = plgpu.ShapeDtypeStruct((), np.dtype(np.int32), layout=plgpu.Layout.WG_SPLAT)

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.RefType()), return_type=scalar)
    def count_up(_: Any, counter: Any, word: Any) -> Any:
        utils = mgpu.utils
        i32 = ir.IntegerType.get_signless(32)
        first = [utils.c(0, ir.IndexType.get())]
        with _threads.one_thread():
            one = utils.c(1, i32)
            address = utils.memref_ptr(counter)
            relaxed = llvm.AtomicOrdering.monotonic
            old = llvm.atomicrmw(llvm.AtomicBinOp.add, address, one, relaxed)
            memref.store(old, word, first)
        utils.warpgroup_barrier()
        seen = memref.load(word, first)
        utils.warpgroup_barrier()  # all threads have read the word before it is overwritten
        return _threads.splat(_threads.Number(seen))

    return count_up(counter, word)
