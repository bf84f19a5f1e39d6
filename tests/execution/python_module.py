"""What tests pickle, import anew and look through for examples."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx


@sx.bucketed(("s",), sx.Pow2())
def total(x: jax.Array) -> jax.Array:
    """Sum up.

    Example:
        >>> float(total(np.ones(3, np.float32)))
        3.0
    """
    return x.sum()


def mean(x: jax.Array) -> jax.Array:
    return x.mean()


plain_mean = sx.Exec(mean, ("s",), buckets={"s": 8}, constraints=("s >= 1",))


class Scaled:
    """Scales by an array and by a number."""

    def __init__(self, weight: float, power: int = 1) -> None:
        self.weight, self.power = jnp.float32(weight), power

    @sx.bucketed(("s",), sx.Pow2())
    def total(self, x: jax.Array) -> jax.Array:
        """Sum up.

        Example:
            >>> float(Scaled(2).total(np.ones(3, np.float32)))
            6.0
        """
        return self.weight * (x**self.power).sum()


def run_in_another_process(pickled: bytes) -> tuple[float, int]:
    ex = pickle.loads(pickled)
    result = float(ex(np.arange(4, dtype=np.float32)))
    return result, ex.cache_size
