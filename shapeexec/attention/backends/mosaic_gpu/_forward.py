"""The forward pass: a persistent flash attention over lists of tiles, for Hopper.

Each program has two warpgroups that compute 64 queries each and one that moves memory. Per query
tile the listed key tiles are streamed through a ring in shared memory; the scores of the next
ones are computed while the softmax of the last ones still is multiplied with the values
(FlashAttention-3, arXiv 2407.08608, section 3.2). Biases, dropout and f32 are somebody else's job.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends._base import Signature
from shapeexec.attention.backends.mosaic_gpu import _schedule
from shapeexec.attention.backends.mosaic_gpu._copies import copy_in, copy_in_valid, copy_out
from shapeexec.attention.backends.mosaic_gpu._products import (
    InterpretedProducts,
    Products,
    along_rows,
    vector,
)
from shapeexec.attention.backends.mosaic_gpu._tiles import (
    ROWS,
    TILE,
    WARPGROUPS,
    WIDE,
    Item,
    ListRefs,
    Table,
    TilePositions,
    rebuild,
    whole_tiles,
)

Array = Any
Ref = Any

LOG2E = math.log2(math.e)


@dataclasses.dataclass(frozen=True)
class Forward:
    """What is static about a forward call.

    Attributes:
        signature: The call's, with head sizes that the kernel takes.
        mask: The mask's structure.
        bools: Which of the mask's arrays are boolean.
        turns: Whether the two warpgroups take turns at the tensor cores. It pays where partial
            tiles are many (causal, windows, documents) and costs where all are full.
        programs: How many run at a time: one for each multiprocessor.
        interpret: Parameters of the interpreter; None on the device.
    """

    signature: Signature
    mask: Any
    bools: tuple[bool, ...]
    turns: bool
    programs: int
    interpret: Any = None

    @property
    def keys(self) -> int:
        """Keys of a step: wide heads leave no room for a whole tile."""
        return TILE if self.widest <= 128 else TILE // 2

    @property
    def widest(self) -> int:
        """The larger head size."""
        return max(self.columns)

    @property
    def columns(self) -> tuple[int, int]:
        """Columns of keys and of values in shared memory."""
        return tuple(-(-size // 64) * 64 for size in self._sizes)  # pyright: ignore[reportReturnType]

    @property
    def _sizes(self) -> tuple[int, int]:
        return self.signature.head_size, self.signature.value_size

    @property
    def slots(self) -> int:
        """Query tiles in shared memory at a time."""
        return 2 if self.widest <= 192 else 1


STEPS = 2  # how many pieces of keys and values the ring holds


@functools.partial(jax.jit, static_argnums=0)
def forward(
    config: Forward,
    lists: ListRefs,
    sizes: list[Array],
    leaves: list[Array],
    q: Array,
    k: Array,
    v: Array,
) -> tuple[Array, Array]:
    """The output [B, T, N, value size], and the log-sum-exp f32[B, N, whole tiles of queries].

    What lies behind a valid length is 0, and -inf.
    """
    batch, queries, heads, _ = q.shape
    value_size = v.shape[3]
    key_columns, value_columns = config.columns
    wide = functools.partial(plgpu.SMEM, dtype=q.dtype, transforms=WIDE)
    barriers = functools.partial(plgpu.Barrier, num_barriers=STEPS)
    scratch = {
        "schedule": _schedule.scratch(config.slots, copies=1),
        "q_or_out": wide((config.slots, TILE, config.widest)),
        "k": wide((STEPS, config.keys, key_columns)),
        "v": wide((STEPS, config.keys, value_columns)),
        "logsumexp": plgpu.SMEM((WARPGROUPS, ROWS), jnp.float32),
        "k_ready": barriers(),
        "v_ready": barriers(),
        "k_free": barriers(num_arrivals=WARPGROUPS),
        "v_free": barriers(num_arrivals=WARPGROUPS),
        "turns": plgpu.Barrier(num_arrivals=WARPGROUPS),
        "v_landed": plgpu.Barrier(),
    }
    if config.interpret is not None:
        shapes = ((ROWS, config.keys), (ROWS, value_columns))
        scratch["pool"] = [plgpu.SMEM((WARPGROUPS, *shape), jnp.float32) for shape in shapes]
    total = batch * heads * lists.counts.shape[2]
    programs = min(config.programs, total)
    counter = [] if config.interpret else [jax.new_ref(jnp.zeros((1,), jnp.int32))]
    inputs = (q, k, v, lists, sizes, leaves, counter)
    flat, structure = jax.tree.flatten(inputs)
    names = tuple(scratch)

    def kernel(*refs: Ref) -> None:
        inputs = jax.tree.unflatten(structure, refs[: len(flat)])
        out, logsumexp, *rest = refs[len(flat) :]
        _kernel(config, programs, *inputs, out, logsumexp, **dict(zip(names, rest, strict=True)))

    return plgpu.kernel(
        kernel,
        out_type=[
            jax.ShapeDtypeStruct((batch, queries, heads, value_size), q.dtype),
            jax.ShapeDtypeStruct((batch, heads, whole_tiles(queries)), jnp.float32),
        ],
        scratch_types=list(scratch.values()),
        grid=(programs,),
        grid_names=("program",),
        num_threads=WARPGROUPS + 1,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        **({} if config.interpret is None else {"interpret": config.interpret}),
    )(*flat)


def _kernel(
    config: Forward,
    programs: int,
    q_ref: Ref,
    k_ref: Ref,
    v_ref: Ref,
    lists: ListRefs,
    sizes: list[Ref],
    leaves: list[Ref],
    counter: list[Ref],
    out_ref: Ref,
    logsumexp_ref: Ref,
    *,
    schedule: dict[str, Ref],
    pool: list[Ref] | None = None,
    **shared: Ref,
) -> None:
    warpgroup = lax.axis_index("warpgroup")
    table = Table(lists, q_ref.shape[2], 1, *sizes)
    word = schedule.pop("word")
    queue = _schedule.Programs(
        table=table,
        me=lax.axis_index("program"),
        count=programs,
        copies=1,
        counter=counter[0] if counter else None,
        word=word if counter else None,
        **schedule,
    )
    ring = _Ring(config, table, **{name: shared.pop(name) for name in _RING})

    @pl.when(warpgroup < WARPGROUPS)
    def _compute() -> None:
        plgpu.set_max_registers(232, action="increase")
        products = Products() if pool is None else InterpretedProducts(list(pool), warpgroup)
        mask = rebuild(config.mask, leaves, config.bools)
        rows = _Rows(config, products, ring, mask, sizes, warpgroup, **shared)
        queue.consume(functools.partial(rows.attend, out_ref, logsumexp_ref))
        plgpu.wait_smem_to_gmem(0)

    @pl.when(warpgroup == WARPGROUPS)
    def _memory() -> None:
        plgpu.set_max_registers(40, action="decrease")
        group = config.signature.query_heads // config.signature.key_heads

        def begin(item: Item, slot: Array) -> None:
            at = (item.batch, pl.ds(item.row * TILE, TILE), item.head)
            place = shared["q_or_out"].at[slot, :, pl.ds(0, config.columns[0])]
            copy_in(q_ref, at, place, queue.ready.at[slot])

        def stream(item: Item, position: Array) -> Array:
            return ring.fill(k_ref, v_ref, item, lax.div(item.head, jnp.int32(group)), position)

        ring.drain(queue.produce(begin, stream))


_RING = ("k", "v", "k_ready", "v_ready", "k_free", "v_free", "v_landed")


@dataclasses.dataclass(frozen=True)
class _Ring:
    """Keys and values on their way through shared memory."""

    config: Forward
    table: Table
    k: Ref
    v: Ref
    k_ready: Ref
    v_ready: Ref
    k_free: Ref
    v_free: Ref
    v_landed: Ref

    @property
    def pieces(self) -> int:
        """How many steps a tile of the lists takes."""
        return TILE // self.config.keys

    def first_key(self, item: Item, step: Array) -> Array:
        """Where the keys of a step begin."""
        pieces = jnp.int32(self.pieces)
        tile = self.table.tile(item.batch, item.head, item.row, lax.div(step, pieces))
        return tile * TILE + lax.rem(step, pieces) * self.config.keys

    def fill(self, k_ref: Ref, v_ref: Ref, item: Item, head: Array, position: Array) -> Array:
        """Start all copies of an item, each as soon as its place is free."""

        def step(i: Array, position: Array) -> Array:
            place = lax.rem(position, jnp.int32(STEPS))
            first = self.first_key(item, i)
            at = (item.batch, pl.ds(first, self.config.keys), head)
            pl.when(position >= STEPS)(lambda: plgpu.barrier_wait(self.k_free.at[place]))
            copy_in(k_ref, at, self.k.at[place], self.k_ready.at[place])
            pl.when(position >= STEPS)(lambda: plgpu.barrier_wait(self.v_free.at[place]))
            # A weight of 0 times a value behind the valid length may be NaN.
            valid = self.table.column_sizes[item.batch] - first
            copy_in_valid(v_ref, at, self.v.at[place], self.v_ready.at[place], self.v_landed, valid)
            return position + 1

        return lax.fori_loop(0, item.count * self.pieces, step, position)

    def drain(self, position: Array) -> None:
        """Wait until everything was read: the interpreter wants each barrier drained."""

        @pl.loop(jnp.maximum(position - STEPS, 0), position)
        def _(i: Array) -> None:
            place = lax.rem(i, jnp.int32(STEPS))
            plgpu.barrier_wait(self.k_free.at[place])
            plgpu.barrier_wait(self.v_free.at[place])


@dataclasses.dataclass(frozen=True)
class _Rows:
    """One warpgroup's 64 queries of each item."""

    config: Forward
    products: Products | InterpretedProducts
    ring: _Ring
    mask: Any
    sizes: list[Ref]
    warpgroup: Array
    q_or_out: Ref
    logsumexp: Ref
    turns: Ref

    def attend(self, out_ref: Ref, logsumexp_ref: Ref, item: Item, slot: Array, start: Array):
        """Compute an item whose keys are in the ring from `start` on, and store what comes out."""
        mine = self.q_or_out.at[slot, pl.ds(self.warpgroup * ROWS, ROWS)]
        out = mine.at[:, pl.ds(0, self.config.columns[1])]
        first_query = item.row * TILE + self.warpgroup * ROWS
        # The store of the item before reads from here.
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)

        @pl.when(item.count == 0)
        def _nothing() -> None:
            out[...] = plgpu.layout_cast(jnp.zeros(out.shape, out.dtype), plgpu.Layout.WGMMA)
            self.logsumexp.at[self.warpgroup][...] = vector(-jnp.inf, ROWS)

        @pl.when(item.count > 0)
        def _something() -> None:
            # This one starts a turn late, and so stays one turn behind the other.
            pl.when(self.warpgroup == 1)(self.turn)
            total, largest, weight = self._softmax(item, mine, first_query, start)
            valid = plgpu.broadcasted_iota(jnp.int32, total.shape, 0, layout=plgpu.Layout.WGMMA) < (
                self.sizes[0][item.batch] - first_query
            )
            alive = largest > self._masked * self._scale / 2
            share = jnp.where(alive, 1 / weight, 0.0)
            valid &= along_rows(alive, total.shape)
            out[...] = jnp.where(valid, total * along_rows(share, total.shape), 0.0).astype(
                out.dtype
            )
            value = (largest + jnp.log2(weight)) * math.log(2)
            self.logsumexp.at[self.warpgroup][...] = jnp.where(alive, value, -jnp.inf)

        plgpu.commit_smem()
        at = (item.batch, pl.ds(first_query, ROWS), item.head)
        copy_out(out, out_ref, at)
        at = (item.batch, item.head, pl.ds(first_query, ROWS))
        plgpu.copy_smem_to_gmem(
            self.logsumexp.at[self.warpgroup], logsumexp_ref.at[at], commit_group=False
        )
        plgpu.commit_smem_to_gmem_group()
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        return start + item.count * self.ring.pieces

    def turn(self) -> None:
        """Let the other warpgroup have the tensor cores, and wait until it gives them back."""
        if self.config.turns:
            plgpu.barrier_arrive(self.turns)
            plgpu.barrier_wait(self.turns)

    def give_turn(self, *, last: Array) -> None:
        """As `turn`, but the warpgroup that is behind has nobody to meet at the end of an item.

        Were they to meet in the next item, the one ahead might wait for an item that is only
        posted when the one behind is done.
        """
        pl.when((self.warpgroup == 0) | ~last)(self.turn)

    @property
    def _scale(self) -> float:
        return self.config.signature.scale * LOG2E

    @property
    def _masked(self) -> float:
        # Finite, lest a row without a key in its first tile meets inf - inf; so low that the
        # next allowed score wipes out what it weighed; and still finite when scaled.
        return -1e38 / max(1.0, self._scale)

    def _softmax(self, item: Item, q: Ref, first_query: Array, start: Array) -> tuple:
        """Weighted sum of values [64, columns], largest scaled score [64], sum of weights [64]."""
        config, ring, products = self.config, self.ring, self.products
        shape = (ROWS, config.keys)
        q = q.at[:, pl.ds(0, config.columns[0])]
        count, full = item.count * ring.pieces, item.full * ring.pieces
        dtype = self.q_or_out.dtype

        def place(step: Array) -> Array:
            return lax.rem(start + step, jnp.int32(STEPS))

        def masked(scores: Array, step: Array) -> Array:
            at = TilePositions(
                item.batch,
                item.head,
                first_query,
                ring.first_key(item, step),
                shape=shape,
                by_key=False,
                sizes=(self.sizes[0][item.batch], self.sizes[1][item.batch]),
            )
            allowed = self.mask.allows(at) & (at.key < at.key_size)
            return jnp.where(allowed, scores, self._masked)

        def weigh(scores: Array, largest: Array, weight: Array) -> tuple:
            new = jnp.maximum(largest, scores.max(axis=1) * self._scale)
            decay = jnp.exp2(largest - new)
            weights = jnp.exp2(scores * self._scale - along_rows(new, shape))
            return weights, new, weight * decay + weights.sum(axis=1), decay

        def first(accumulator: Ref) -> tuple:
            at = place(jnp.int32(0))
            plgpu.barrier_wait(ring.k_ready.at[at])
            products.add(accumulator, q, ring.k.at[at].transpose((1, 0)))
            self.turn()
            scores = products.read(accumulator)
            plgpu.barrier_arrive(ring.k_free.at[at])
            scores = lax.cond(full == 0, lambda x: masked(x, jnp.int32(0)), lambda x: x, scores)
            weights, largest, weight, _ = weigh(scores, vector(-jnp.inf, ROWS), vector(0, ROWS))
            weights = weights.astype(dtype)
            self.give_turn(last=count == 1)
            return weights, largest, weight

        def rest(total: Ref, carry: tuple) -> tuple:
            def step(i: Array, carry: tuple, *, partial: bool) -> tuple:
                weights, largest, weight = carry
                at, before = place(i), place(i - 1)
                plgpu.barrier_wait(ring.k_ready.at[at])

                def overlapped(accumulator: Ref) -> tuple:
                    products.add(accumulator, q, ring.k.at[at].transpose((1, 0)))
                    plgpu.barrier_wait(ring.v_ready.at[before])
                    products.add(total, weights, ring.v.at[before])
                    self.turn()
                    scores = products.read(accumulator, pending=1)
                    plgpu.barrier_arrive(ring.k_free.at[at])
                    return weigh(masked(scores, i) if partial else scores, largest, weight)

                carry = products.hold(overlapped, shape)
                # What a product reads from registers must be made while none is on its way, or
                # the compiler lets each wait for the one before.
                *carry, sofar = lax.optimization_barrier((*carry, products.read(total)))
                weights, largest, weight, decay = carry
                weights = weights.astype(dtype)
                plgpu.barrier_arrive(ring.v_free.at[before])
                products.write(total, sofar * along_rows(decay, sofar.shape))
                self.give_turn(last=i + 1 == count)
                return weights, largest, weight

            step_of = functools.partial(functools.partial, step)
            carry = lax.fori_loop(1, full, step_of(partial=False), carry)
            carry = lax.fori_loop(jnp.maximum(full, 1), count, step_of(partial=True), carry)
            weights, largest, weight = carry
            last = place(count - 1)
            plgpu.barrier_wait(ring.v_ready.at[last])
            products.add(total, weights, ring.v.at[last])
            result = products.read(total)
            plgpu.barrier_arrive(ring.v_free.at[last])
            return result, largest, weight

        carry = products.hold(first, shape)
        return products.hold(lambda total: rest(total, carry), (ROWS, config.columns[1]))
