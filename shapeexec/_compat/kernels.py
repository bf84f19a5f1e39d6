"""Which ways of Pallas to write kernels this version of JAX has, and the kernels it has lowered.

It imports none of them, and which kernels need which is for the back ends to say.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import importlib.util
import sys
from typing import Any

import jax
import jax.numpy as jnp


def pallas_has(module: str) -> bool:
    """Whether `jax.experimental.pallas` has a module of this name, such as `"triton"`."""
    return importlib.util.find_spec(f"jax.experimental.pallas.{module}") is not None


def lowered_mosaic_kernels() -> dict[bytes, bytes]:
    """The Mosaic GPU kernels that this process has lowered so far: their code by its hash."""
    core = sys.modules.get("jax.experimental.mosaic.gpu.core")
    return dict(getattr(core, "KNOWN_KERNELS", {}))  # another thread may be importing it


def name_mosaic_kernel(name: str, context: Any) -> None:
    """Name a Mosaic GPU kernel, so that equal kernels have equal hashes.

    Else jax 0.11 numbers each one that is lowered, in a name for dumps that is part of the hash. So
    no kernel would be found compiled by another program of the process, nor in a cache on disk.

    Args:
        name: The name of files that Mosaic dumps; equal for equal kernels.
        context: What `plgpu.inline_mgpu` passes first.
    """
    from jaxlib.mlir import ir  # noqa: PLC0415 - not needed to import the package

    context.module.operation.attributes["mosaic_gpu.dump_basename"] = ir.StringAttr.get(name)


def compile_mosaic_kernel(digest: bytes, code: bytes) -> None:
    """Compile a kernel for the GPU at hand, so that any program with it finds it compiled.

    Mosaic keeps compiled kernels by their hash for the whole process, and compiles one when XLA
    makes the call, not when it runs. So a program with the call is compiled, and thrown away.

    Args:
        digest: The hash of the kernel.
        code: Its code, as `lowered_mosaic_kernels` has it.

    Raises:
        Exception: Whatever the compilation raises.
    """
    options = {
        "use_custom_barrier": False,
        "skip_device_barrier": False,
        "uses_xla_collective_metadata": False,
    }
    call = jax.ffi.ffi_call("mosaic_gpu_v2", jax.ShapeDtypeStruct((1,), jnp.float32))
    jax.jit(lambda: call(kernel_hash=digest, module=code, **options)).lower().compile()
