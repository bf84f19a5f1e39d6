"""Divides lists of key tiles into equal shares of work for a fixed number of programs.

A share may begin and end inside a list. So several programs may attend to parts of one list, whose
results are joined here in a fixed order. `_few` computes the shares.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shapeexec.attention.backends.mosaic_gpu._weights import BiasedWeights, Weights
from shapeexec.attention.masks._base import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Shares:
    """All tiles of all lists in one row, list after list, cut into shares of one size.

    Attributes:
        starts: The first tile of each list, and the end of the last list, i32[lists + 1].
        first: The list that each share begins in, i32[programs].
        least: The least number of tiles in a share.
    """

    starts: Array
    first: Array
    least: int = dataclasses.field(metadata={"static": True})

    def size(self) -> Array:
        """The number of tiles in a share, i32[]; the last shares may have fewer, or none.

        Kernels compute it, as on a GPU an operation of XLA costs a microsecond.
        """
        lists, programs = self.starts.shape[0] - 1, self.first.shape[0]
        return _even(self.starts[lists], programs, least=self.least)

    def parts(self) -> Array:
        """The number of programs that attend to each list, i32[lists]."""
        xp: Any = np if isinstance(self.starts, np.ndarray) else jnp
        begin, end, size = self.starts[:-1], self.starts[1:], self.size()
        return xp.where(end > begin, (end - 1) // size - begin // size + 1, 0)


def share(counts: Array, *, longest: int, programs: int, alike: int = 1) -> tuple[Shares, int]:
    """Equal shares, and the most programs that attend to one list.

    If counts are traced, the second result is an upper bound, and a list among shorter ones gets at
    most about twice the programs that it would get among lists of its own length.

    Args:
        counts: The number of tiles in each list, i32[lists].
        longest: The most tiles that a list can have.
        programs: The number of shares.
        alike: Lists come in groups of as many, which are equally long.
    """
    among_alike = -(-len(counts) * longest // programs)
    # If all lists but one group are empty, that group has the programs to itself.
    parts = min(2 * -(-longest // among_alike) + 1, programs // alike + 2)
    # A list of `longest` tiles has one part more than whole shares fit into it.
    least = -(-longest // (parts - 1))
    is_known = isinstance(counts, np.ndarray)
    number = np.arange(len(counts) + 1)[:, None]
    # On a GPU a cumulative sum is a chain of kernels, and this is a single kernel.
    is_before = np.arange(len(counts)) < number
    starts = (np if is_known else jnp).where(is_before, counts, 0).sum(1, dtype=np.int32)
    begins = np.arange(programs, dtype=np.int32) * _even(starts[-1], programs, least=least)
    first = (starts[None, 1:] <= begins[:, None]).sum(1, dtype=np.int32)
    shares = Shares(starts, first, least)
    return shares, int(np.max(shares.parts(), initial=1)) if is_known else parts


def joined(
    weights: Weights | BiasedWeights, shares: Shares, results: list[Array], *, rows: int
) -> tuple[Array, list[Array]]:
    """Join the softmaxes over the parts of each list into the softmax over the whole list.

    Args:
        weights: The formulas of the weights.
        shares: The work of each program.
        results: The output f32[lists, parts, rows or more, V] and `Weights.statistics`
            f32[lists, parts, rows or more] of each part; anything for parts that a list lacks.
        rows: The number of rows to return.

    Returns:
        The output f32[lists, rows, V] and statistics f32[lists, rows] each.
    """
    out, *statistics = (x[:, :, :rows] for x in results)
    numbers, count = range(out.shape[1]), shares.parts()[:, None]
    # Written out part by part, as XLA fuses this into one loop.
    parts = [weights.of_parts([x[:, i] for x in statistics]) for i in numbers]
    shifts = [jnp.where(i < count, parts[i][0], weights.initial) for i in numbers]
    largest = functools.reduce(jnp.maximum, shifts)
    finite = jnp.where(largest == -jnp.inf, 0.0, largest)  # as -inf - -inf is NaN
    shown = [jnp.where(i < count, parts[i][1] * jnp.exp(shifts[i] - finite), 0.0) for i in numbers]
    values = [
        jnp.where((i < count)[..., None], out[:, i] * shown[i][..., None], 0.0) for i in numbers
    ]
    weight, value = functools.reduce(jnp.add, shown), functools.reduce(jnp.add, values)
    return value / jnp.where(weight > 0, weight, 1.0)[..., None], weights.of_all(largest, weight)


def _even(total: Any, programs: int, *, least: int) -> Any:
    if isinstance(total, (int, np.integer)):
        return np.int32(max(-(-int(total) // programs), least))
    return jnp.maximum(lax.div(total + (programs - 1), jnp.int32(programs)), least)
