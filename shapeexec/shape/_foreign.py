"""The error for NumPy arrays whose dtype JAX does not have, with the array to pass instead.

The caller finds that JAX lacks the dtype, and raises the error.
"""

from typing import Any

import numpy as np

from shapeexec._errors import ConfigError

_BY_KIND = {
    "O": "numbers: `x.astype(np.float32)`, or arrays of their own where its rows differ in length",
    "U": "numbers in the place of strings, such as their positions in a vocabulary",
    "S": "numbers in the place of strings, such as `np.frombuffer(x, np.uint8)`",
    "T": "numbers in the place of strings, such as their positions in a vocabulary",
    "M": "numbers: `x.astype(np.int64)` counts units since 1970",
    "m": "numbers: `x.astype(np.int64)` counts units",
    "V": "its fields as a dict of arrays: `{name: x[name] for name in x.dtype.names}`",
}


def refused_dtype(path: str, array: Any) -> ConfigError:
    """Make the error for an array of a dtype that no JAX function takes.

    Args:
        path: The argument, `args[0]`.
        array: A NumPy array or scalar.
    """
    dtype = array.dtype
    if not dtype.isnative and dtype.kind not in _BY_KIND:
        way_out = "the same numbers in this machine's order: `x.astype(x.dtype.newbyteorder('='))`"
    else:
        way_out = _BY_KIND.get(dtype.kind, f"a dtype that JAX has: `x.astype({_nearest(dtype)})`")
    return ConfigError(
        f"{path} is an array of dtype {dtype}, which JAX does not have.",
        option=path,
        got=f"{np.asarray(array)!r:.80}",
        fix=f"pass {way_out}",
    )


def _nearest(dtype: Any) -> str:
    return "np.complex128" if dtype.kind == "c" else "np.float64"
