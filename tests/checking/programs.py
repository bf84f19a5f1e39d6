"""Functions of which programs that differ, or seem to, are made."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import shapeexec as sx


def scaled_by(factor: int) -> Callable[..., Any]:
    return lambda x: factor * x


def masked_by_a_function(x: jax.Array) -> jax.Array:
    q = x[None, :, None, :]  # the mask's function is another object each time
    return sx.dot_product_attention(q, q, q, mask=sx.MaskFunction(lambda b, h, q, k: k <= q))


def convolved(x: jax.Array, layout: tuple[str, str, str]) -> jax.Array:
    kernel = jnp.ones((3, 3, 2))
    return lax.conv_general_dilated(x[None], kernel, (1,), "SAME", dimension_numbers=layout)


def of_groups(x: jax.Array, order: Sequence[int] = (0, 1), **groups: int) -> jax.Array:
    """Two arrays convolved, each with a kernel of its own: groups of features or of batches."""
    parts = jnp.stack([jnp.sin(x), jnp.cos(x)])[jnp.array(order)]  # [group, feature, space]
    by_batch = groups.get("batch_group_count", 1) > 1
    data = parts if by_batch else parts.reshape(1, 6, 3)
    kernel = jnp.tanh(x).reshape(1, 3, 3) * jnp.arange(1.0, 5).reshape(4, 1, 1)
    return lax.conv_general_dilated(data, kernel, (1,), "SAME", **groups)


def by(stride: int, low: int, high: int, dilation: int = 1, kernel: int = 2) -> Callable[..., Any]:
    """A convolution of a row of nine by a kernel of its own first elements."""

    def convolved(x: jax.Array) -> jax.Array:
        row, first = x.reshape(1, 1, 9), x.reshape(1, 1, 9)[..., :kernel]
        return lax.conv_general_dilated(
            row, first, (stride,), [(low, high)], rhs_dilation=(dilation,)
        )[..., :2]

    return convolved


def correlated(x: jax.Array, padding: tuple[int, int] | None = None, step: int = 1) -> jax.Array:
    """A row of nine correlated with three elements; with padding, the three with the nine."""
    row, three = x.reshape(1, 1, 9), jnp.sin(x[0]).reshape(1, 1, 3)
    if padding is None:
        return lax.conv(row, three, (1,), "VALID")
    return lax.conv_general_dilated(three, row, (1,), [padding])[..., ::step]


def cube(x: jax.Array) -> jax.Array:
    return x[:, :, None] * jnp.sin(x[0])


def counting(start: int) -> Callable[..., Any]:
    """A loop that puts out what it counts, two numbers at a step."""

    def loop(x: jax.Array) -> jax.Array:
        rows = lax.scan(lambda i, _: (i + 1, i * 2), jnp.int32(start), None, length=3)[1]
        return x * rows

    return loop


def index(x: jax.Array) -> jax.Array:
    return lax.stop_gradient(x[0, 0]).astype(jnp.int32)


def sliced(x: jax.Array, index: jax.Array) -> jax.Array:
    """A row as JAX reads it at ints."""
    row = lax.dynamic_slice(x, (index, 0), (1, 3), allow_negative_indices=False)
    return lax.squeeze(row, (0,))


def gathered(x: jax.Array, index: jax.Array, mode: Any = "promise_in_bounds") -> jax.Array:
    """A row by the gather that JAX makes of `x[index]` at symbolic sizes."""
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(0,), collapsed_slice_dims=(0,), start_index_map=(0,)
    )
    mode = lax.GatherScatterMode.from_any(mode)
    return lax.gather(x, index[None], numbers, (1, 3), unique_indices=True, mode=mode)
