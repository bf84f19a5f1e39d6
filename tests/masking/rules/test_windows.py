"""Windows whose size or distance is a size themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shapeexec.masking._poison import POISONS
from tests.cases import Case
from tests.checks import assert_pad_safe


def over_half(init, combine):
    def pooled(x):
        half = x.shape[1] // 2
        return lax.reduce_window(x, init, combine, (1, half), (1, half - 1), [(0, 0), (1, half)])

    return pooled


def running(x):
    n = x.shape[1]
    return lax.reduce_window(x, 0.0, lax.add, (1, n), (1, 1), [(0, 0), (n - 1, 0)])


def dilated(x):
    n = x.shape[1]
    return lax.reduce_window(
        x, -jnp.inf, lax.max, (1, 2), (1, 1), "VALID", window_dilation=(1, n // 2)
    )


PROGRAMS = {
    "a sum": over_half(0.0, lax.add),
    "a maximum": over_half(-jnp.inf, lax.max),
    "any computation": over_half(1.0, lambda a, b: a * b),
    "a running sum": running,
    "a ragged dilation": dilated,
    "the gradient of a maximum": jax.grad(lambda x: jnp.sin(over_half(-jnp.inf, lax.max)(x)).sum()),
    "the gradient of a running sum": jax.grad(lambda x: jnp.sin(running(x)).sum()),
    "forward mode": lambda x: jax.jvp(over_half(-jnp.inf, lax.max), (x,), (jnp.cos(x),))[1],
}


@pytest.mark.parametrize("size", [4, 5, 9])
@pytest.mark.parametrize("name", PROGRAMS)
def test_windows_of_a_ragged_size_may_move(name: str, size: int) -> None:
    case = Case(name, PROGRAMS[name], ("b, s",), dtypes=np.float32)
    for slack, poison in zip((0, 1, 6), POISONS, strict=False):
        assert_pad_safe(case, {"b": 2, "s": size}, slack, poison)
