"""JAX's functions whose types are partly unknown, since its C extension has no stubs, with types.

Those of trees are in `shape._trees`.
"""

from collections.abc import Callable
from typing import Any, cast

import jax

jit = cast(Callable[..., Any], jax.jit)
eval_shape = cast(Callable[..., Any], jax.eval_shape)
device_put = cast(Callable[..., jax.Array], jax.device_put)
fori_loop = cast(Callable[[Any, Any, Callable[[Any, Any], Any], Any], Any], jax.lax.fori_loop)
dynamic_index_in_dim = cast(Callable[..., jax.Array], jax.lax.dynamic_index_in_dim)
local_device_count = cast(Callable[[], int], jax.local_device_count)
numpy_pad = cast(Callable[..., jax.Array], jax.numpy.pad)
JaxRuntimeError = cast(type[Exception], jax.errors.JaxRuntimeError)


def devices_of(sharding: jax.sharding.Sharding) -> set[Any]:
    """The devices that a sharding uses."""
    return sharding.device_set


def with_spec(sharding: jax.sharding.NamedSharding, *axes: Any) -> jax.sharding.NamedSharding:
    """The sharding on the same mesh that cuts each dim by other axes of it; None: by none."""
    return sharding.update(spec=jax.sharding.PartitionSpec(*axes))
