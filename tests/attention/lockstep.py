"""Runs a lowered kernel of Mosaic GPU in NumPy: what Mosaic hands to LLVM, not what Pallas traces.

All threads of all programs go through the operations in step, so a value is an array [programs,
threads]. It knows the operations on numbers of single threads, and refuses all others. An address
is an i64: the number of its array, and the byte in it. Each access is checked: that it is inside,
aligned, of something that was written, and, in shared memory, that a barrier lies between a store
and another thread's access.
"""

import contextlib
import functools
import math
import operator

import jax
import numpy as np
from jax.experimental.mosaic.gpu import core
from jaxlib.mlir import ir

from tests.attention.lockstep_numbers import DTYPES, Numbers
from tests.attention.lockstep_vectors import Vectors
from tests.attention.lockstep_warps import Warps
from tests.attention.lowering import lowered
from tests.attention.modules import parsed

SHARED = 0
ARRAY = 32  # the bits of an address within an array


def kernel_of(function, *args):
    """The module of the only Mosaic kernel of a function, as bytes."""
    jax.clear_caches()
    core.KNOWN_KERNELS.clear()
    lowered(function, *args, platform="cuda")
    jax.clear_caches()
    (module,) = core.KNOWN_KERNELS.values()
    return module


def run(module, *inputs, unwritten=None):
    """The results of a kernel, as the arrays that follow the inputs.

    All places of them must be written, unless `unwritten` is given for those that are not.
    """
    with function_of(module) as function:
        launch = Launch(inputs)
        with np.errstate(over="ignore", invalid="ignore"):
            launch.host(function)
        return launch.results(unwritten)


def left_in_shared_memory(module, *inputs, before):
    """Each program's bytes of shared memory after a kernel; all of them are `before` at first."""
    with function_of(module) as function:
        launch = Launch(inputs, before)
        launch.host(function)
        return launch.arrays[SHARED].bytes


def shared_memory(module):
    """The bytes of shared memory of a program."""
    with function_of(module) as function:
        host = {op.operation.name: op.operation for op in blocks(function)[0]}
        size = list(host["gpu.launch"].operands)[-1].owner
        return size.attributes["value"].value


@contextlib.contextmanager
def function_of(module):
    with parsed(module) as whole:
        (function,) = [op for op in whole.body.operations if blocks(op)]
        yield function


def blocks(op):
    return [block for region in op.operation.regions for block in region]


class Memory:
    """An array: bytes [copies, size], who wrote each one, and when it was written and read."""

    def __init__(self, copies, size, data=None):
        self.bytes = np.zeros((copies, size), np.uint8)
        self.written = np.full((copies, size), -1)
        self.read = np.full((copies, size), -1)
        self.writer = np.full((copies, size), -1)
        if data is not None:
            self.bytes[0] = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            self.written[:] = 0


class Ref:
    """A memref: the address of its first array element, and how many elements lie before it."""

    def __init__(self, start, offset, kind):
        self.start, self.offset = start, offset
        self.dtype = np.dtype(DTYPES[str(kind.element_type)])
        self.shape = [d for d in kind.shape if d >= 0]
        self.strides = [math.prod(self.shape[i + 1 :]) for i in range(len(self.shape))]

    def at(self, *index):
        inside = [(i >= 0) & (i < size) for i, size in zip(index, self.shape, strict=True)]
        elements = sum((i * s for i, s in zip(index, self.strides, strict=True)), self.offset)
        is_inside = functools.reduce(operator.and_, inside, True)
        return self.start + elements * self.dtype.itemsize, is_inside


class Launch(Numbers, Vectors, Warps):
    """A launch of a kernel.

    Attributes:
        shared: What each byte of shared memory is at first; None: it must not be read.
        values: What each MLIR value is: an array, or a `Ref`.
        arrays: The memory of each array, by its number; inputs and outputs are numbered from 1.
        now: The number of barriers that were passed, from 1 on.
        active: Which threads run, bool[programs, threads].
    """

    def __init__(self, inputs, shared=None):
        self.inputs, self.values, self.arrays, self.outputs, self.now = inputs, {}, {}, {}, 1
        self.shared = shared

    def host(self, function):
        for op in blocks(function)[0]:
            if op.operation.name == "gpu.launch":
                self.launch(op.operation)
            elif op.operation.name in {"arith.constant", "builtin.unrealized_conversion_cast"}:
                self.step(op.operation)

    def results(self, unwritten):
        results = []
        for ref, memory in (self.outputs[i] for i in sorted(self.outputs)):
            is_written = (memory.written[0].reshape(*ref.shape, -1) > 0).all(-1)
            result = memory.bytes[0].view(ref.dtype).reshape(ref.shape)
            if unwritten is None:
                assert is_written.all(), "a place of a result is not written"
            else:
                result[~is_written] = unwritten
            results.append(result)
        return results

    def launch(self, op):
        *sizes, shared = [int(self.get(x).item()) for x in list(op.operands)[-7:]]
        grid, block = sizes[:3], sizes[3:]
        threads = block[0]
        assert block == [threads, 1, 1]
        programs, (x, y, z) = math.prod(grid), grid
        assert max(y, z) < 1 << 16, "CUDA has no such grid"
        self.arrays[SHARED] = Memory(programs, shared)
        if self.shared is not None:
            self.arrays[SHARED].bytes[:], self.arrays[SHARED].written[:] = self.shared, 0
        program, self.thread = np.ix_(np.arange(programs), np.arange(threads))
        self.program = {"x": program % x, "y": program // x % y, "z": program // (x * y)}
        self.active = np.ones((programs, threads), bool)
        self.block(blocks(op)[0])

    def block(self, block):
        for op in block:
            if op.operation.name in {"scf.yield", "gpu.terminator"}:
                return [self.get(x) for x in op.operation.operands]
            self.step(op.operation)
        return []

    def get(self, value):
        return self.values[value]

    def step(self, op):
        names = {"scf.for": self.loop, "scf.if": self.branch, "scf.index_switch": self.switch}
        if op.name in names:
            return names[op.name](op)
        operands = [self.values.get(x) for x in op.operands]
        result = getattr(self, op.name.replace(".", "_"))(op, *operands)
        if len(op.results) == 1 and result is not None:
            kind = str(op.results[0].type)
            if kind in DTYPES:
                assert result.dtype == DTYPES[kind], (op.name, result.dtype, kind)
            self.values[op.results[0]] = result
        return None

    def loop(self, op):
        start, end, step, *carried = [self.get(x) for x in op.operands]
        (body,) = blocks(op)
        outer, i = self.active, start
        while (outer & (i < end)).any():
            self.active = outer & (i < end)
            self.values[body.arguments[0]] = i
            for argument, value in zip(list(body.arguments)[1:], carried, strict=True):
                self.values[argument] = value
            new = self.block(body)
            # Programs may leave the loop after another number of rounds each.
            carried = [np.where(self.active, x, old) for x, old in zip(new, carried, strict=True)]
            i = i + step
        self.active = outer
        for result, value in zip(op.results, carried, strict=True):
            self.values[result] = value

    def branch(self, op):
        assert not op.results
        assert len(blocks(op)) == 1
        self.only(self.get(op.operands[0]), blocks(op)[0])

    def switch(self, op):
        which, cases = self.get(op.operands[0]), list(op.attributes["cases"])
        default, *others = blocks(op)
        assert not op.results
        self.only(~np.isin(which, cases), default)
        for case, block in zip(cases, others, strict=True):
            self.only(which == case, block)

    def only(self, condition, block):
        outer = self.active
        self.active = outer & condition
        if self.active.any():
            self.block(block)
        self.active = outer

    # Memory.

    def builtin_unrealized_conversion_cast(self, op, source):
        if "mosaic_gpu.from_kernel_arg_idx" not in op.attributes:
            return source  # to the same memref, or to its fields
        number = op.attributes["mosaic_gpu.from_kernel_arg_idx"].value
        ref = Ref(np.full((1, 1), number + 1 << ARRAY, np.int64), 0, op.results[0].type)
        size = math.prod(ref.shape) * ref.dtype.itemsize
        if number < len(self.inputs):
            given = self.inputs[number]
            assert list(given.shape) == ref.shape
            assert given.dtype == ref.dtype
            self.arrays[number + 1] = Memory(1, size, given)
        else:
            self.arrays[number + 1] = Memory(1, size)
            self.outputs[number] = ref, self.arrays[number + 1]
        return ref

    def gpu_dynamic_shared_memory(self, op):
        return Ref(np.full((1, 1), SHARED << ARRAY, np.int64), 0, op.results[0].type)

    def memref_view(self, op, whole, start):
        return Ref(whole.start + start, 0, op.results[0].type)

    def memref_subview(self, op, whole, *dynamic):
        dynamic = list(dynamic)
        offsets = [
            dynamic.pop(0) if offset == ir.ShapedType.get_dynamic_size() else offset
            for offset in op.attributes["static_offsets"]
        ]
        assert not dynamic
        assert set(op.attributes["static_strides"]) == {1}
        part = Ref(whole.start, whole.offset, op.results[0].type)
        dropped = len(whole.shape) - len(part.shape)
        assert list(op.attributes["static_sizes"]) == [1] * dropped + part.shape
        part.strides = whole.strides[dropped:]
        part.offset = part.offset + sum(map(operator.mul, offsets, whole.strides))
        return part

    def memref_expand_shape(self, op, whole):
        split = Ref(whole.start, whole.offset, op.results[0].type)
        for stride, group in zip(whole.strides, op.attributes["reassociation"], strict=True):
            axes = [x.value for x in group]
            for i, axis in enumerate(axes):
                behind = [split.shape[j] for j in axes[i + 1 :]]
                split.strides[axis] = stride * math.prod(behind)
        return split

    def memref_load(self, op, ref, *index):
        address, inside = ref.at(*index)
        return self.read(address, ref.dtype, inside)

    def memref_store(self, op, value, ref, *index):
        address, inside = ref.at(*index)
        self.write(address, value, inside)

    def vector_load(self, op, ref, *index):
        address, inside = ref.at(*index)
        return self.read(address, np.dtype(DTYPES[str(op.results[0].type)]), inside)

    def vector_store(self, op, value, ref, *index):
        assert "alignment" in op.attributes, "it is compiled to a store for each element"
        assert op.attributes["alignment"].value == value.dtype.itemsize
        address, inside = ref.at(*index)
        self.write(address, value, inside)

    def llvm_extractvalue(self, op, ref):
        (field,) = op.attributes["position"]
        return {1: ref.start, 2: np.int64(0) + ref.offset}[field]

    def llvm_getelementptr(self, op, start, index):
        return start + index * np.dtype(DTYPES[str(op.attributes["elem_type"])]).itemsize

    def llvm_load(self, op, address):
        dtype = np.dtype(DTYPES[str(op.results[0].type)])
        if "alignment" in op.attributes:  # else it is that of the type
            assert op.attributes["alignment"].value == dtype.itemsize
        return self.read(address, dtype)

    def llvm_store(self, op, value, address):
        assert op.attributes["alignment"].value == value.dtype.itemsize
        self.write(address, value)

    def llvm_atomicrmw(self, op, address, value):
        assert op.attributes["bin_op"].value == 1, "only sums"
        _, memory, (copies, places), _ = self.places(address, 4, True)
        before = np.zeros(self.active.shape, np.int32)
        value, threads = np.broadcast_to(value, self.active.shape), np.argwhere(self.active)
        for thread, copy, place in zip(map(tuple, threads), copies, places, strict=True):
            word = memory.bytes[copy, place].view(np.int32)
            before[thread] = word.item()
            memory.bytes[copy, place] = (word + value[thread]).view(np.uint8)
        return before

    def places(self, address, width, inside):
        """Of each active thread, the array, the copy and the bytes that it accesses."""
        address, inside = np.broadcast_arrays(address, inside, self.active)[:2]
        assert inside[self.active].all(), "an index is out of range"
        address = address[self.active]
        (number,) = set((address >> ARRAY).tolist())
        memory, first = self.arrays[number], address & ((1 << ARRAY) - 1)
        assert (first % width == 0).all(), "an address is not aligned"
        assert (first + width <= memory.bytes.shape[1]).all(), "an address is behind the array"
        program, thread = np.nonzero(self.active)
        copy = program if number == SHARED else np.zeros_like(program)
        return number, memory, (copy[:, None], first[:, None] + np.arange(width)), thread[:, None]

    def read(self, address, dtype, inside=True):
        number, memory, at, thread = self.places(address, dtype.itemsize, inside)
        assert (memory.written[at] >= 0).all(), "what is read was not written"
        if number == SHARED:
            seen = (memory.written[at] < self.now) | (memory.writer[at] == thread)
            assert seen.all(), "no barrier lies between a store and another thread's load"
        memory.read[at] = self.now
        result = np.zeros(self.active.shape, dtype)
        result[self.active] = memory.bytes[at].view(dtype)[:, 0]
        return result

    def write(self, address, value, inside=True):
        number, memory, at, thread = self.places(address, value.dtype.itemsize, inside)
        value = np.broadcast_to(value, self.active.shape)[self.active]
        new = np.ascontiguousarray(value)[:, None].view(np.uint8)
        if number == SHARED:
            # Threads may store the same twice.
            is_used = (memory.written[at] == self.now) | (memory.read[at] == self.now)
            assert (~is_used | (memory.bytes[at] == new)).all(), "no barrier lies before a store"
        else:
            assert (memory.written[at] < 0).all(), "a place of a result is written twice"
        memory.bytes[at] = new
        assert (memory.bytes[at] == new).all(), "threads store different values in one place"
        memory.written[at], memory.writer[at] = self.now, thread

    # Threads.

    def gpu_thread_id(self, op):
        return self.thread if axis(op) == "x" else np.zeros((1, 1), np.int64)

    def gpu_block_dim(self, op):
        return np.full((1, 1), self.active.shape[1] if axis(op) == "x" else 1, np.int64)

    def gpu_block_id(self, op):
        return self.program[axis(op)]

    def gpu_barrier(self, op):
        assert self.active.all()
        self.now += 1

    def llvm_inline_asm(self, op, *operands):
        text = op.attributes["asm_string"].value
        if text == "bar.sync $0, 128;":
            assert self.active.shape[1] == 128, "other warpgroups would not wait"
            self.gpu_barrier(op)
        else:
            assert text.startswith("fence.mbarrier_init")

    def nvvm_elect_sync(self, op):
        return self.thread % 32 == 0


def axis(op):
    return str(op.attributes["dimension"])[-2]
