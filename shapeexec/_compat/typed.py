"""JAX's functions whose types are partly unknown, since its C extension has no stubs, with types.

Those of trees are in `shape._trees`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, cast

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from jax.typing import ArrayLike

from shapeexec._compat.jaxprs import ClosedJaxpr

jit = cast(Callable[..., Any], jax.jit)
fori_loop = cast(Callable[[Any, Any, Callable[[Any, Any], Any], Any], Any], lax.fori_loop)
dynamic_index_in_dim = cast(Callable[..., Array], lax.dynamic_index_in_dim)
local_device_count = cast(Callable[[], int], jax.local_device_count)
JaxRuntimeError = cast(type[Exception], jax.errors.JaxRuntimeError)
eval_shape = cast(Callable[..., Any], jax.eval_shape)
make_jaxpr = cast(Callable[..., Callable[..., ClosedJaxpr]], jax.make_jaxpr)
linear_transpose = cast(Callable[..., Callable[[Any], tuple[Any]]], jax.linear_transpose)
block_until_ready = cast(Callable[[Any], Any], jax.block_until_ready)
device_put = cast(Callable[..., Array], jax.device_put)
finfo = cast(Callable[[Any], np.finfo[np.floating[Any]]], jnp.finfo)
asarray = cast(Callable[..., Array], jnp.asarray)
numpy_pad = cast(Callable[..., Array], jnp.pad)
empty = cast(Callable[[Sequence[int], Any], Array], lax.empty)
broadcasted_iota = cast(Callable[[Any, Sequence[int], int], Array], lax.broadcasted_iota)
broadcast_in_dim = cast(
    Callable[[ArrayLike, Sequence[int], Sequence[int]], Array], lax.broadcast_in_dim
)
reduce_sum = cast(Callable[[Array, Sequence[int]], Array], lax.reduce_sum)
einsum = cast(Callable[..., Array], jnp.einsum)
reduce_window = cast(Callable[..., Any], lax.reduce_window)
dot_general = cast(Callable[..., Array], lax.dot_general)
gather = cast(Callable[..., Array], lax.gather)
optimization_barrier = cast(Callable[[Any], Any], lax.optimization_barrier)
cond = cast(Callable[Concatenate[Any, Callable[..., Any], Callable[..., Any], ...], Any], lax.cond)
switch = cast(Callable[Concatenate[Any, Sequence[Callable[..., Any]], ...], Any], lax.switch)
platform_dependent = cast(Callable[..., Any], lax.platform_dependent)
wrap_key_data = cast(Callable[..., Array], jax.random.wrap_key_data)


def bind(primitive: Any, *operands: Any, **params: Any) -> Any:
    """The result of a primitive, or its results."""
    return primitive.bind(*operands, **params)


def devices_of(sharding: jax.sharding.Sharding) -> set[Any]:
    """The devices that a sharding uses."""
    return sharding.device_set


def with_spec(sharding: jax.sharding.NamedSharding, *axes: Any) -> jax.sharding.NamedSharding:
    """The sharding on the same mesh that cuts each dim by other axes of it; None: by none."""
    return sharding.update(spec=jax.sharding.PartitionSpec(*axes))
