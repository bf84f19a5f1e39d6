"""Which ways of Pallas to write kernels this version of JAX has, and the kernels it has lowered.

It imports none of them, and which kernels need which is for the back ends to say.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import importlib.util
import sys

import jax
import jax.numpy as jnp


def pallas_has(module: str) -> bool:
    """Whether `jax.experimental.pallas` has a module of this name, such as `"triton"`."""
    return importlib.util.find_spec(f"jax.experimental.pallas.{module}") is not None


def lowered_mosaic_kernels() -> dict[bytes, bytes]:
    """The Mosaic GPU kernels that this process has lowered so far: their code by its hash."""
    core = sys.modules.get("jax.experimental.mosaic.gpu.core")
    return dict(getattr(core, "KNOWN_KERNELS", {}))  # another thread may be importing it


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
