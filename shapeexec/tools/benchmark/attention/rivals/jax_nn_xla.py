"""What XLA makes of the formulas, through `jax.nn`: all pairs, masked."""

import functools

from shapeexec.tools.benchmark.attention._contestant import JaxContestant
from shapeexec.tools.benchmark.attention.rivals._jax_nn import attention

rival = JaxContestant("jax_nn_xla", functools.partial(attention, "xla"), rank=1)
