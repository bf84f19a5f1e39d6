"""What stands in for functions of JAX's library that want sizes as ints.

Most of JAX traces at symbolic sizes. A few functions compute a number of steps, or take the length
of an array, in Python: they ask a size for its int. While a function is traced at symbolic sizes
another runs in the place of each, which computes the same numbers from sizes that are data; where
no size is symbolic JAX's own runs. All of JAX's private names are in `_compat`.
"""

from shapeexec.shape._library import (  # noqa: F401 - each registers what stands in
    dtypes,
    named_axes,
    randomness,
    reductions,
    scans,
    searching,
    spectra,
)
