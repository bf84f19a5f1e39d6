"""What XLA makes of the formulas, through `jax.nn`: all pairs, masked.

How arguments become those of `jax.nn` is in `_jax_nn`.
"""

import functools

from shapeexec.tools.benchmark.attention._contestant import JaxContestant
from shapeexec.tools.benchmark.attention.rivals._jax_nn import attention

rival = JaxContestant("jax_nn_xla", functools.partial(attention, "xla"), rank=1)
