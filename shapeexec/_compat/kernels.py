"""Which ways of Pallas to write kernels this version of JAX has, and the kernels it has lowered.

It imports none of them, and which kernels need which is for the back ends to say.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportMissingTypeStubs=false
# pyright: reportUnknownMemberType=false

import dataclasses
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from shapeexec._compat.disk_cache import kept_however_fast
from shapeexec._compat.places import without_caller

_TARGET = "mosaic_gpu_v2"
_FLAGS = ("use_custom_barrier", "skip_device_barrier", "uses_xla_collective_metadata")
_OPTIONS = tuple((flag, False) for flag in _FLAGS)
_RUNTIME = "MOSAIC_GPU_RUNTIME_LIB_PATH"
_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")  # as JAX looks for the library in them
_DESCRIPTOR_BITS = 512  # a descriptor of a copy has twice as many
_known: dict[bytes, bytes] = {}
"""The code, by its hash, of kernels that other processes have lowered."""


def pallas_has(module: str) -> bool:
    """Whether `jax.experimental.pallas` has a module of this name, such as `"triton"`."""
    return importlib.util.find_spec(f"jax.experimental.pallas.{module}") is not None


def lowered_mosaic_kernels() -> dict[bytes, bytes]:
    """The Mosaic GPU kernels that this process has lowered or found: their code by its hash."""
    core = sys.modules.get("jax.experimental.mosaic.gpu.core")
    # Another thread may be importing it.
    return {**getattr(core, "KNOWN_KERNELS", {}), **_known}


def know_mosaic_kernel(kernel: "MosaicKernel") -> None:
    """Have `lowered_mosaic_kernels` tell of a kernel that was lowered by another process."""
    _known[kernel.digest] = kernel.code


@functools.cache
def find_mosaic_runtime() -> None:
    """Tell XLA where the library is that Mosaic GPU kernels need when they are compiled or loaded.

    JAX does so when it imports what writes kernels. A process that found all of them written need
    not import that, and without the library XLA fails.
    """
    for plugin in _PLUGINS:
        if (spec := importlib.util.find_spec(plugin)) is not None and spec.origin is not None:
            library = Path(spec.origin).with_name("libmosaic_gpu_runtime.so")
            if library.exists():
                os.environ[_RUNTIME] = str(library)  # a parent's may be of another version
                return
    if jax.default_backend() == "gpu":
        importlib.import_module("jax.experimental.mosaic.gpu.core")


def begin_mosaic_kernel(name: str, context: Any) -> None:
    """What each Mosaic GPU kernel is to do first: it gets a name, and cheaper code for the host.

    Equal kernels then have equal hashes. Else jax 0.11 numbers each one that is lowered, in a name
    for dumps that is part of the hash. So no kernel would be found compiled by another program of
    the process, nor in a cache on disk.

    Args:
        name: The name of files that Mosaic dumps; equal for equal kernels.
        context: What `plgpu.inline_mgpu` passes first.
    """
    from jaxlib.mlir import ir  # noqa: PLC0415 - not needed to import the package

    context.module.operation.attributes["mosaic_gpu.dump_basename"] = ir.StringAttr.get(name)
    descriptors: Any = getattr(context, "scratch", None)
    if hasattr(descriptors, "_find_alloc_load_and_device_ptr"):
        finalize = descriptors.finalize_size
        descriptors.finalize_size = functools.partial(_finalized, descriptors, finalize)


def _finalized(descriptors: Any, finalize: Callable[[], None]) -> None:
    """Pass the descriptors of copies to a kernel as few numbers of `_DESCRIPTOR_BITS`.

    JAX passes them as an array of bytes, and LLVM optimizes the copy of each byte: a tenth to a
    quarter of the time to compile a kernel. What the GPU runs is the same.
    """
    from jaxlib.mlir import ir  # noqa: PLC0415 - see `begin_mosaic_kernel`
    from jaxlib.mlir.dialects import llvm  # noqa: PLC0415 - the same

    count, rest = divmod(8 * descriptors.next_offset, _DESCRIPTOR_BITS)
    if not count or rest:
        return finalize()
    allocated, loaded, _ = descriptors._find_alloc_load_and_device_ptr()
    finalize()
    kind = llvm.ArrayType.get(ir.IntegerType.get_signless(_DESCRIPTOR_BITS), count)
    allocated.elem_type = ir.TypeAttr.get(kind)
    loaded.result.set_type(kind)


def part_of_tiles(ref: Any, place: Any, *, rows: Any = None) -> Any:
    """`ref.at[place]`, or `ref.at[place, rows]`, of arrays that are tiled and swizzled in memory.

    JAX keeps an index behind these transforms, and moves it before them wherever the part is used,
    each time by traces of their own: a tenth of the time to lower a kernel. Here it comes first, if
    `TransformedRef` is what it was.

    Args:
        ref: [places, rows, columns] in shared memory, tiled along its last two axes.
        place: i32[] or int.
        rows: A `pl.Slice`, of whole groups of the rows of a tile; None: all.
    """
    tiled = getattr(ref, "ref", ref)
    if len(tiled.shape) != len(ref.shape) + 2:
        return ref.at[place] if rows is None else ref.at[place, rows]
    index, group = (place,), tiled.shape[-2]
    if rows is not None:
        assert rows.size % group == 0, "it cuts a group of rows"
        assert not isinstance(rows.start, int) or rows.start % group == 0
        first = jax.lax.div(jnp.int32(rows.start), jnp.int32(group))
        index = place, dataclasses.replace(rows, start=first, size=rows.size // group)
    part = tiled.at[index]
    return type(ref)(tiled, (*part.transforms, *ref.transforms))


@dataclasses.dataclass(frozen=True)
class MosaicKernel:
    """A Mosaic GPU kernel as XLA's call has it.

    Attributes:
        digest: The hash of the code.
        code: The code.
        options: The other attributes of the call.
    """

    digest: bytes
    code: bytes
    options: tuple[tuple[str, bool], ...]


def mosaic_kernel(
    function: Callable[..., Any], operands: Sequence[jax.ShapeDtypeStruct]
) -> MosaicKernel | None:
    """The kernel of a function that is one Mosaic GPU kernel of its operands, and nothing else.

    Args:
        function: Its results are the kernel's.
        operands: Their shapes and dtypes.

    Returns:
        The kernel; None if something else is lowered, too, or JAX writes it in another way.
    """
    with without_caller():  # else its text has a line of the first caller's
        lowered = jax.jit(function).trace(*operands).lower(lowering_platforms=("cuda",))
    module: Any = lowered.compiler_ir()
    (body,) = module.body.operations[0].regions[0].blocks
    call, *rest = body.operations
    is_alone = (
        call.operation.name == "stablehlo.custom_call"
        and list(call.operands) == list(body.arguments)
        and [list(one.operands) for one in rest] == [list(call.results)]
    )
    if not is_alone or "mhlo.backend_config" not in call.attributes:
        return None
    options = {one.name: one.attr for one in call.attributes["mhlo.backend_config"]}
    digest, code = (options.pop(name, None) for name in ("kernel_hash", "module"))
    if digest is None or code is None:
        return None
    flags = tuple((name, bool(flag.value)) for name, flag in options.items())
    return MosaicKernel(digest.value_bytes, code.value_bytes, flags)


def call_mosaic_kernel(
    kernel: MosaicKernel,
    operands: Sequence[jax.Array],
    *,
    results: Sequence[jax.ShapeDtypeStruct],
    aliases: dict[int, int],
) -> list[jax.Array]:
    """Call a kernel with operands and results of other shapes than it was lowered for.

    Args:
        kernel: The kernel.
        operands: Arrays.
        results: The shapes and dtypes of its results.
        aliases: The numbers of results by those of the operands that they overwrite.
    """
    find_mosaic_runtime()
    call = jax.ffi.ffi_call(_TARGET, results, input_output_aliases=aliases)
    attributes = {"kernel_hash": kernel.digest, "module": kernel.code, **dict(kernel.options)}
    return list(call(*operands, **attributes))


def compile_mosaic_kernel(digest: bytes, code: bytes) -> None:
    """Compile a kernel for the GPU at hand, so that any program with it finds it compiled.

    Mosaic keeps compiled kernels by their hash for the whole process, and compiles one when XLA
    makes the call, not when it runs. So a program with the call is compiled, and thrown away. JAX's
    compilation cache keeps it, if there is one: to load it is as good as to compile it.

    Args:
        digest: The hash of the kernel.
        code: Its code, as `lowered_mosaic_kernels` has it.

    Raises:
        Exception: Whatever the compilation raises.
    """
    kernel = MosaicKernel(digest, code, _OPTIONS)
    results = [jax.ShapeDtypeStruct((1,), jnp.float32)]
    call = functools.partial(call_mosaic_kernel, kernel, [], results=results, aliases={})
    with kept_however_fast():
        jax.jit(call).lower().compile()
