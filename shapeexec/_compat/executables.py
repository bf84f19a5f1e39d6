"""Compiled programs as bytes, and what of JAX's settings changes how they are compiled.

JAX's own serialization (`jax.experimental.serialize_executable`) pickles: bytes that somebody else
wrote run code when they are loaded, before the program does.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
from jax.experimental import serialize_executable as _serialize_executable

from shapeexec._compat.kernels import find_mosaic_runtime
from shapeexec._compat.settings import is_as_unregistered

_load: Callable[..., Any] = cast(Any, _serialize_executable).deserialize_and_load
_UNHEARD = (
    "jax_array_garbage",
    "jax_captured_constants",
    "jax_check_tracer_leaks",
    "jax_compilation_cache",
    "jax_compiler_detailed_logging",
    "jax_debug_leaked",
    "jax_debug_log",
    "jax_dump",
    "jax_enable_checks",
    "jax_enable_compilation_cache",
    "jax_explain_cache_misses",
    "jax_include_debug_info",
    "jax_log",
    "jax_no_tracing",
    "jax_persistent_cache",
    "jax_pprint",
    "jax_raise_persistent_cache",
    "jax_thread_guard",
    "jax_tracer_error",
    "jax_traceback",
    "jax_transfer_guard",
)
"""How the settings begin that change no program: what is logged, checked or kept in caches."""
XLA_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE", "TF_CPP_VMODULE")


def compile_settings() -> dict[str, str]:
    """Each setting of JAX, and each variable that XLA reads, that may change a compiled program.

    It has those of the process; `config_fingerprint` has those of the thread, too. Flags of JAX
    that are off are not there; see `is_as_unregistered`.
    """
    values: dict[str, Any] = cast(Any, jax.config).values
    found = {
        name: repr(value)
        for name, value in values.items()
        if not (name.startswith(_UNHEARD) or is_as_unregistered(name, value))
    }
    return found | {name: os.environ.get(name, "") for name in XLA_VARIABLES}


def serialized(compiled: Any) -> bytes:
    """A `jax.stages.Compiled` as bytes.

    Raises:
        Exception: The back end, or the program, cannot be serialized; of many kinds.
    """
    return _serialize_executable.serialize(compiled)[0]


def devices_of_program(compiled: Any) -> tuple[int, ...]:
    """The ids of the devices on which a `jax.stages.Compiled` runs, in their order."""
    return tuple(device.id for device in compiled.runtime_executable().local_devices())


def deserialized(
    payload: bytes, trees: tuple[Any, Any], *, devices: Sequence[Any], check: Callable[..., None]
) -> tuple[Any, Callable[..., Any]]:
    """A compiled program, loaded, and what calls it by JAX's fast path.

    Args:
        payload: What `serialized` gave. **It is unpickled: it runs code if it holds any.**
        trees: The structures of the arguments, `((...), {})`, and of the result.
        devices: Those on which it runs.
        check: Called with the flat arguments of each call that JAX's fast path has not met.

    Raises:
        Exception: The bytes are no program, or not one for these devices; of any kind.
    """
    if devices[0].platform == "gpu":
        find_mosaic_runtime()  # the program may have kernels that nothing here has written
    compiled: Any = _load(payload, *trees, backend=devices[0].client, execution_devices=devices)
    executable = compiled._executable
    if len(executable.out_avals) != trees[1].num_leaves:
        raise ValueError("the program returns another number of arrays")  # `_saved` tells it
    params = compiled._params._replace(executable=_Checked(executable, check))
    call = executable.create_cpp_call(params)
    if call is None:
        raise ValueError("the program calls the host")  # the caller turns it into a warning
    return compiled, call


class _Checked:
    """An executable whose calls are checked first."""

    def __init__(self, executable: Any, check: Callable[..., None]) -> None:
        self._executable, self._check = executable, check

    def call(self, *args: Any) -> Any:
        """Run, or raise what `check` raises."""
        self._check(args)
        return self._executable.call(*args)
