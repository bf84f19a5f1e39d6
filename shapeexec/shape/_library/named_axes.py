"""Stand-in for the size of the named axis of a `vmap`, by which JAX multiplies shared values.

When it runs is decided in `_compat`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

from typing import Any, cast

import jax.numpy as jnp
import numpy as np

from shapeexec import _compat


@_compat.stands_in("const")
def const(original: Any, example: Any, val: Any) -> Any:
    """A symbolic size as a number of the type of `example`; for other numbers JAX's function.

    If `example` is a Python number or a weakly typed scalar, the size stays on the host.
    """
    if not _compat.is_symbolic(val):
        return original(example, val)
    dtype: Any = np.dtype(cast(Any, type(example))) if _is_python(example) else example.dtype
    is_weak = getattr(example, "weak_type", False) and np.ndim(example) == 0
    if not (_is_python(example) or is_weak):
        return jnp.asarray(val).astype(dtype)
    one = {"f": 1.0, "c": 1.0 + 0.0j}.get(dtype.kind)
    return val if one is None else val * one


def _is_python(number: Any) -> bool:
    return type(number) in (bool, int, float, complex)
