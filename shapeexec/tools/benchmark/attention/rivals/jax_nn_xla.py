"""The formulas compiled by XLA, through `jax.nn`: all pairs are computed, and masked.

`_jax_nn` makes the arguments.
"""

import functools

from shapeexec.tools.benchmark.attention._contestant import JaxContestant
from shapeexec.tools.benchmark.attention.rivals._jax_nn import attention

rival = JaxContestant("jax_nn_xla", functools.partial(attention, "xla"), rank=1)
