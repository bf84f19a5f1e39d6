"""Dtypes that JAX chooses by a size."""

from typing import Any

import numpy as np

from shapeexec import _compat


@_compat.stands_in("int_dtype_for_dim")
def int_dtype_for_dim(original: Any, d: Any, *, signed: bool) -> Any:
    """The dtype of a smaller size, where JAX takes 64 bits if it may: sizes here are i32."""
    del original, d
    return np.dtype(np.int32 if signed else np.uint32)


@_compat.stands_in("int_dtype_for_shape")
def int_dtype_for_shape(original: Any, shape: Any, *, signed: bool) -> Any:
    """As `int_dtype_for_dim`, where no axis of known size needs more."""
    return original([dim for dim in shape if isinstance(dim, int)], signed=signed)
