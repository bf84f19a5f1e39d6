"""Stand-ins for functions of JAX's library that need sizes as ints.

Most of JAX traces at symbolic sizes. A few functions compute a number of steps, or the length of an
array, in Python, and so need an int. While a function is traced at symbolic sizes, a stand-in
replaces each of them and computes the same numbers from sizes that are data. If no size is
symbolic, JAX's own function runs. JAX's private names are in `_compat`.
"""

from shapeexec.shape._library import (
    dtypes,
    named_axes,
    randomness,
    reductions,
    scans,
    searching,
    spectra,
)

__all__ = [  # imported because they register their stand-ins
    "dtypes",
    "named_axes",
    "randomness",
    "reductions",
    "scans",
    "searching",
    "spectra",
]
