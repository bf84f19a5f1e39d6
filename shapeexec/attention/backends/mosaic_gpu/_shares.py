"""Divides lists of key tiles into equal shares of work for a fixed number of programs.

A share may begin and end inside a list. So several programs may attend to parts of one list. `_few`
attends to the shares, and `_join` joins the parts.

The parts of all lists are stored in one row. From one part to the next the list, the program or
both move on by one or more, so the sum of their numbers is a place that no other part has.
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
from jax import lax

from shapeexec.attention.backends._reach import divide
from shapeexec.attention.masks._base import Array

_ASKED = 4  # a step of a search leaves one of as many groups
_ADDED_AT_ONCE = 4096  # groups whose counts are added by one kernel, whose work grows by the square


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Shares:
    """All tiles of all lists in one row, list after list, cut into shares of one size.

    Attributes:
        starts: The number of tiles of one list of each group before this one, i32[groups + 1].
        alike: The number of lists in a group, which are equally long.
        programs: The number of shares.
    """

    starts: Array
    alike: int = dataclasses.field(metadata={"static": True})
    programs: int = dataclasses.field(metadata={"static": True})

    @property
    def groups(self) -> int:
        """The number of groups of lists."""
        return self.starts.shape[0] - 1

    @property
    def lists(self) -> int:
        """The number of lists."""
        return self.groups * self.alike

    @property
    def places(self) -> int:
        """The number of places for parts, as many as all lists may have together."""
        return self.programs + self.lists - 1

    @property
    def all_lists(self) -> Any:
        """The numbers of all lists, i32[lists]."""
        return np.arange(self.lists, dtype=np.int32)

    @property
    def _xp(self) -> Any:
        return np if isinstance(self.starts, np.ndarray) else jnp

    def total(self) -> Array:
        """The number of all tiles, i32[]."""
        return self.starts[self.groups] * self.alike

    def size(self) -> Array:
        """The number of tiles in a share, i32[]; the last shares may have fewer, or none.

        Kernels compute it, as on a GPU an operation of XLA costs a microsecond.
        """
        even = divide(self.total() + (self.programs - 1), self.programs, xp=self._xp)
        return self._xp.maximum(even, 1)

    def bounds(self, which: Array) -> tuple[Array, Array]:
        """The first tile of a list and that of the next list, i32[] each."""
        group = divide(which, self.alike, xp=self._xp)
        start, following = self.starts[group], self.starts[group + 1]
        low = start * self.alike + (which - group * self.alike) * (following - start)
        return low, low + (following - start)

    def holder(self, tile: Array) -> Array:
        """The list that holds a tile, i32[]; the last one if none does.

        In each step several groups are asked at a time, as a load takes half a microsecond.
        """
        group, candidates = jnp.int32(0), self.groups + 1
        while candidates > 1:
            candidates = -(-candidates // _ASKED)
            asked = (group + i * candidates for i in range(1, _ASKED))
            starts = [self.starts[jnp.minimum(i, self.groups)] * self.alike for i in asked]
            group += candidates * sum(jnp.where(start <= tile, 1, 0) for start in starts)
        group = jnp.minimum(group, self.groups - 1)
        start, following = self.starts[group], self.starts[group + 1]
        number = lax.div(tile - start * self.alike, jnp.maximum(following - start, 1))
        return group * self.alike + jnp.clip(number, 0, self.alike - 1)

    def parts_of(self, which: Array) -> tuple[Array, Array]:
        """The place of a list's first part, and the number of its parts; of lists without parts 0.

        Args:
            which: The number of the list, or of several: i32.
        """
        xp = self._xp
        (low, high), size = self.bounds(which), self.size()
        first = divide(low, size, xp=xp)
        last = divide(xp.maximum(high, 1) - 1, size, xp=xp)
        is_empty = low == high
        return xp.where(is_empty, 0, first + which), xp.where(is_empty, 0, last - first + 1)


def share(counts: Array, *, longest: int, programs: int, alike: int = 1) -> tuple[Shares, int]:
    """Equal shares, and the most programs that attend to one list: an upper bound if traced.

    Args:
        counts: The number of tiles in a list of each group, i32[groups].
        longest: The most tiles that a list can have.
        programs: The number of shares.
        alike: The number of lists in a group, which are equally long.
    """
    is_known = isinstance(counts, np.ndarray)
    shares = Shares(_sums_before(counts), alike, programs)
    if is_known:
        return shares, int(shares.parts_of(shares.all_lists)[1].max(initial=1))
    # If all lists but one group are empty, that group has the programs to itself.
    return shares, min(longest, programs // alike + 2)


def _sums_before(counts: Array) -> Array:
    """The sums of 0, 1, ... and all counts, i32[counts + 1]."""
    if isinstance(counts, np.ndarray):
        return np.cumsum([0, *counts], dtype=np.int32)
    if len(counts) > _ADDED_AT_ONCE:
        return jnp.pad(jnp.cumsum(counts, dtype=np.int32), (1, 0))
    # On a GPU a cumulative sum is a chain of kernels, and this is a single kernel.
    is_before = jnp.arange(len(counts)) < jnp.arange(len(counts) + 1)[:, None]
    return jnp.where(is_before, counts, 0).sum(1, dtype=np.int32)
