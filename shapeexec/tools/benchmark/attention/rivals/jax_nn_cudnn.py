"""cuDNN's fused attention, through `jax.nn`.

`_jax_nn` makes the arguments.
"""

import functools

import jax

from shapeexec.tools.benchmark.attention._contestant import JaxContestant
from shapeexec.tools.benchmark.attention.rivals._jax_nn import attention


def _absence() -> str | None:
    return None if jax.default_backend() == "gpu" else "it needs an NVIDIA GPU"


rival = JaxContestant("jax_nn_cudnn", functools.partial(attention, "cudnn"), absence=_absence)
