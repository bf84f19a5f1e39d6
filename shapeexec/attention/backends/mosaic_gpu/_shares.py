"""The shares of a fixed number of programs in lists of key tiles, cut where the work is equal.

A share may begin and end inside a list, so a list has parts that several programs attend to. How
these are joined is up to the kernel's caller.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec.attention.masks._base import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Shares:
    """All tiles of all lists in one row, list after list, cut into shares of one size.

    Attributes:
        starts: Where each list begins, and where the last one ends, i32[lists + 1].
        first: The list that each share begins in, i32[programs].
        size: Tiles of a share, i32[1]; the last ones may have less, or none.
    """

    starts: Array
    first: Array
    size: Array

    def parts(self) -> Array:
        """How many programs attend to each list, i32[lists]."""
        begin, end = self.starts[:-1], self.starts[1:]
        count = (end - 1) // self.size - begin // self.size + 1
        return jnp.where(end > begin, count, 0)


def share(counts: Array, *, longest: int, programs: int) -> tuple[Shares, int]:
    """Equal shares, and the most programs that attend to one list.

    What is known of traced counts is an upper bound, so a list that is longer than most gets no
    more than about twice the programs that it would get among lists of its length.

    Args:
        counts: Tiles of each list, i32[lists].
        longest: The most that a list can have.
        programs: How many shares there are.
    """
    is_known = isinstance(counts, np.ndarray)
    xp: Any = np if is_known else jnp
    ends = _running_sum(counts)
    even = -(-ends[-1] // programs)
    starts = xp.concatenate([np.zeros(1, np.int32), ends])
    if is_known:
        size = max(int(even), 1)
        parts = int(np.max((ends - 1) // size - starts[:-1] // size + 1, initial=1))
    else:
        among_alike = -(-len(counts) * longest // programs)
        parts = 2 * -(-longest // among_alike) + 1
        # A list of `longest` tiles has one part more than whole shares fit into it.
        size = jnp.maximum(even, -(-longest // (parts - 1)))
    begins = np.arange(programs, dtype=np.int32) * size
    first = (ends[None, :] <= begins[:, None]).sum(1)
    as_i32 = [xp.asarray(x, np.int32) for x in (starts, first, xp.reshape(size, (1,)))]
    return Shares(*as_i32), parts


def _running_sum(counts: Array) -> Array:
    if isinstance(counts, np.ndarray):
        return np.cumsum(counts, dtype=np.int32)
    # On a GPU a cumulative sum is a chain of kernels, and this is one.
    number = np.arange(len(counts))
    return jnp.where(number[:, None] >= number, counts, 0).sum(1, dtype=np.int32)
