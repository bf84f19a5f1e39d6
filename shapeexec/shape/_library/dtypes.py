"""Stand-ins for the functions that choose a dtype by a size.

When a stand-in runs is decided in `_compat`.
"""

from typing import Any

import numpy as np

from shapeexec import _compat


@_compat.stands_in("int_dtype_for_dim")
def int_dtype_for_dim(original: Any, d: Any, *, signed: bool) -> Any:
    """32 bits, where JAX takes 64 bits if they are enabled: sizes in a graph are i32."""
    del original, d
    return np.dtype(np.int32 if signed else np.uint32)


@_compat.stands_in("int_dtype_for_shape")
def int_dtype_for_shape(original: Any, shape: Any, *, signed: bool) -> Any:
    """The dtype that the axes of known size need; see `int_dtype_for_dim`."""
    return original([dim for dim in shape if isinstance(dim, int)], signed=signed)
