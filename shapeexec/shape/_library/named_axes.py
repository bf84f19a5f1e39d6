"""The size of the named axis of a `vmap`, which JAX multiplies with what all along it share."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from shapeexec import _compat


@_compat.stands_in("const")
def const(original: Any, example: Any, val: Any) -> Any:
    """A size as a number of the type that another one has; JAX's own for any other number.

    Beside a Python number, or a scalar that has the type of one, it stays a number of the host.
    """
    if not _compat.is_symbolic(val):
        return original(example, val)
    dtype = np.dtype(type(example)) if _is_python(example) else example.dtype
    is_weak = getattr(example, "weak_type", False) and np.ndim(example) == 0
    if not (_is_python(example) or is_weak):
        return jnp.asarray(val).astype(dtype)
    one = {"f": 1.0, "c": 1.0 + 0.0j}.get(dtype.kind)
    return val if one is None else val * one


def _is_python(number: Any) -> bool:
    return type(number) in (bool, int, float, complex)
