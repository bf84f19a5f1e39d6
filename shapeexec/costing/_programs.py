"""Small programs that a device is timed by: layers of networks, forward and backward.

They are typical code, so that fusions, caches and threads play their usual part. `_speed` times
them.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

_HEADS = 4


class TimedProgram(NamedTuple):
    """A function of arrays, and their shapes.

    Attributes:
        fn: A function of f32 arrays.
        shapes: The shapes of these arrays.
    """

    fn: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]


def timed_programs(scale: int) -> Iterator[TimedProgram]:
    """Programs in which each kind of work is small once, and large once.

    Args:
        scale: A factor of their sizes.
    """
    for batch, length, width in ((2 * scale, 64, 32), (4 * scale, 128, 128)):
        square = (width, width)
        weights = (square, square, square, square, (width, 3 * width), (3 * width, width))
        shapes = ((batch, length, width), *weights)
        yield TimedProgram(_block, shapes)
        yield TimedProgram(jax.grad(_summed_block, argnums=tuple(range(1, 7))), shapes)
    for batch, length, width in ((scale, 96, 16), (4 * scale, 256, 24), (8 * scale, 400, 48)):
        kernels = ((5, width, width), (3, width, width))
        yield TimedProgram(_convolutions, ((batch, length, width), *kernels))
    for rows, width in ((64 * scale, 128), (512 * scale, 384)):
        yield TimedProgram(_layers, ((rows, width), *[(width, width)] * 3))
    for length, batch, width in ((100, 2 * scale, 48), (200, 12 * scale, 96)):
        yield TimedProgram(_recurrence, ((length, batch, width), (width, width)))
    yield TimedProgram(jnp.matmul, ((512 * scale, 512 * scale),) * 2)
    yield TimedProgram(jnp.tanh, (((1 << 18) * scale,),))


def _normed(x: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)


def _block(x: Any, *weights: Any) -> Any:
    """A layer of a transformer."""
    query, key, value, out, up, down = weights
    y = _normed(x)
    q, k, v = ((y @ w).reshape(*x.shape[:2], _HEADS, -1) for w in (query, key, value))
    shares = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), axis=-1)
    x = x + jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(x.shape) @ out
    return x + jax.nn.gelu(_normed(x) @ up) @ down


def _summed_block(*arguments: Any) -> Any:
    return _block(*arguments).sum()


def _convolutions(x: Any, *kernels: Any) -> Any:
    for kernel in kernels:
        numbers = ("NHC", "HIO", "NHC")
        x = jax.lax.conv_general_dilated(x, kernel, (1,), "SAME", dimension_numbers=numbers)
        x = jax.nn.relu(x + 0.1)
    return x.mean(axis=1)


def _layers(x: Any, *weights: Any) -> Any:
    for each in weights:
        x = jax.nn.relu(x @ each)
    return x.mean(axis=0)


def _recurrence(x: Any, weights: Any) -> Any:
    def step(hidden: Any, each: Any) -> tuple[Any, Any]:
        hidden = jnp.tanh(hidden @ weights + each)
        return hidden, hidden

    return jax.lax.scan(step, x[0], x)[1].mean(axis=0)
