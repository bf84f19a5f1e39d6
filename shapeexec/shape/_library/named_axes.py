"""The size of the named axis of a `vmap`, which JAX multiplies with what all along it share."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from shapeexec import _compat


@_compat.stands_in("const")
def const(original: Any, example: Any, val: Any) -> Any:
    """A size as a number of the type that another one has.

    Beside a Python number, or what has the type of one, it stays a number of the host.
    """
    del original
    dtype = np.dtype(type(example)) if _is_python(example) else example.dtype
    if not (_is_python(example) or getattr(example, "weak_type", False)):
        return jnp.asarray(val).astype(dtype)
    one = {"f": 1.0, "c": 1.0 + 0.0j}.get(dtype.kind)
    return val if one is None else val * one


def _is_python(number: Any) -> bool:
    return type(number) in (bool, int, float, complex)
