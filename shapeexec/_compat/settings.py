"""The state of JAX: its settings, its traces, and its events of compilations.

It changes none of it: callers hold what they read against what they read before.
"""

# The functions that this takes of JAX are private, and have no types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax._src import config as _config
from jax._src import core as _core
from jax._src import util as _util
from jax._src import xla_bridge as _xla_bridge

_A = TypeVar("_A")
_B = TypeVar("_B")

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
"""The monitoring event that JAX records, with seconds, for each XLA compilation."""
LOWERED_EVENT = "/jax/core/compile/jaxpr_to_mlir_module_duration"
"""The one that it records, with seconds, when it has lowered a program."""
CACHED_EVENT = "/jax/compilation_cache/cache_hits"
"""The one that it records, without seconds, for each program from its own compilation cache."""

trace_state_clean: Callable[[], bool] = _core.trace_state_clean
"""False inside any `jit`, `grad`, `vmap` or `scan` body, even if no argument is traced."""


has_devices: Callable[[], bool] = _xla_bridge.backends_are_initialized
"""Whether JAX has started a back end; its threads do not survive a fork."""


def cache_of_traces(most: int) -> Callable[[Callable[[_A], _B]], Callable[[_A], _B]]:
    """As `functools.lru_cache(most)`, for what follows from a trace.

    So the settings that traces depend on are part of the key, and `jax.clear_caches` empties it.
    """
    return _util.cache(max_size=most)


def current_trace() -> object:
    """The trace of this thread now; a value of one trace must not be used outside of it."""
    return _core.trace_ctx.trace


def default_device() -> Any:
    """The device on which JAX puts what was put nowhere on purpose."""
    device: Any = _config.default_device.value
    if isinstance(device, str):  # a platform
        return jax.local_devices(backend=device)[0]
    return device or jax.local_devices()[0]


def config_fingerprint() -> tuple[Any, ...]:
    """The configuration of JAX that affects how a function is traced or compiled.

    Covers x64, matmul precision, numeric promotion, the generator, the mesh and the default
    device: everything JAX itself puts into the key of its caches, and `checks_results`.
    """
    return (_config.trace_context(), checks_results())


def named_settings(fingerprint: tuple[Any, ...]) -> dict[str, Any]:
    """The settings that a `config_fingerprint` holds, by the names that JAX gives them.

    One that was registered after it was taken is not there: JAX appends to its context.
    """
    context, are_checked = fingerprint
    named: dict[str, Any] = {}
    for i, (name, value) in enumerate(zip(_names_of_context(), context, strict=False)):
        named[f"{name} (setting {i})" if name in named else name] = value  # users' may share one
    return named | {"jax_debug_nans or jax_debug_infs": are_checked}


def deviating_settings(fingerprint: tuple[Any, ...]) -> dict[str, Any]:
    """The `named_settings` that differ from those of a process that knows none of them.

    Without JAX's axis environment, which has no identity; where it matters, a mesh is set, too.
    """
    return {
        name: value
        for name, value in named_settings(fingerprint).items()
        if name != "axis_env_state" and not is_as_unregistered(name, value)
    }


def is_as_unregistered(name: str, value: Any) -> bool:
    """Whether a setting has the effect that it has if it is not registered.

    Some modules of JAX, and users, register one when they are imported. Flags of JAX are off then,
    and contexts of users empty.
    """
    is_flag = name in _config.config_states or name in _UNLISTED
    return value is (False if is_flag else None)


_UNLISTED = ("pallas_fuser_disable_nested_fuse",)
"""Flags that modules of JAX register, from 0.12 on, without a place among its `config_states`."""


def _names_of_context() -> tuple[str, ...]:
    try:
        return _config.trace_context_names()
    except NotImplementedError:  # jaxlib before 0.10.2
        return _names_by_trial()


def _names_by_trial() -> tuple[str, ...]:
    """For each setting of JAX's context the one of a name that changes it, if any does."""
    names = [f"setting {i} of JAX" for i in range(len(_config.trace_context()))]
    mark = object()
    for name, state in (vars(_config) | _config.config_states).items():
        if isinstance(state, _config.config_ext.Config):
            before = state.swap_local(mark)
            try:
                changed = [i for i, value in enumerate(_config.trace_context()) if value is mark]
            finally:
                state.set_local(before)
            for i in changed:
                names[i] = name
    return tuple(names)


def checks_results() -> bool:
    """Whether JAX looks for NaN or infinity in all results: `jax_debug_nans`, `jax_debug_infs`."""
    return _config.debug_nans.value or _config.debug_infs.value


def threefry_is_partitionable() -> bool:
    """Which of its two layouts of counters threefry uses: `jax.threefry_partitionable`."""
    return _config.threefry_partitionable.value
