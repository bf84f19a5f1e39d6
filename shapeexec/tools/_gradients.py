"""The gradients that `validate` compares: of a weighted sum of results, by all float arguments."""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec.execution._placement import Shape
from shapeexec.execution._settings import Settings
from shapeexec.execution._split import taken


def corner(x: Any, shape: Shape) -> Any:
    """The front corner of an array; what lies behind it is padding."""
    return x[tuple(map(slice, shape))] if shape else x


def gradient_of(settings: Settings) -> Callable[..., Any]:
    """The gradients of a weighted sum of all float results, by all float arguments.

    The weights differ from element to element, so that no cotangent can stand in for another.
    """

    def gradients(*args: Any, **kwargs: Any) -> Any:
        call = taken(settings, args, kwargs=kwargs)
        leaves, _ = jax.tree.flatten((tuple(call.arrays), dict(call.named)))
        return by_floats(call.pure())(*leaves)

    return gradients


def by_floats(
    pure: Callable[..., Any], *, shapes: Sequence[Shape | None] | None = None
) -> Callable[..., Any]:
    """The same gradients as `gradient_of`, for a function of flat arrays.

    Args:
        pure: The function.
        shapes: For each leaf of its result, the shape of the front corner that counts; None: all
            elements count.
    """

    def gradients(*leaves: Any) -> Any:
        inexact = [i for i, leaf in enumerate(leaves) if is_inexact(leaf)]

        def loss(*floats: Any) -> Any:
            changed = list(leaves)
            for i, leaf in zip(inexact, floats, strict=True):
                changed[i] = leaf
            results = jax.tree.leaves(pure(*changed))
            valid = [None] * len(results) if shapes is None else shapes
            pairs = zip(results, valid, strict=True)
            return sum((_weighted(x, n) for x, n in pairs if is_inexact(x)), jnp.float32(0))

        return jax.grad(loss, argnums=tuple(range(len(inexact))))(*[leaves[i] for i in inexact])

    return gradients


def is_inexact(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, np.inexact)


def _weighted(x: Any, valid: Shape | None) -> Any:
    """The weighted sum of an array; where it is not valid the weights are 0."""
    if jnp.issubdtype(x.dtype, np.complexfloating):
        return _weighted(x.real, valid) + 2 * _weighted(x.imag, valid)
    x = x.astype(jnp.promote_types(x.dtype, np.float32))
    for axis in range(x.ndim):
        at = jax.lax.broadcasted_iota(x.dtype, x.shape, axis)
        weights = jnp.cos(at * (axis + 1) + 1)
        x = x * (weights if valid is None else jnp.where(at < valid[axis], weights, 0))
    return jnp.sum(x)
