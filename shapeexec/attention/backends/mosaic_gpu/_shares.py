"""Divides lists of key tiles into equal shares of work for a fixed number of programs.

A share may begin and end inside a list. So several programs may attend to parts of one list. `_few`
attends to the shares, and `_join` joins the parts.

Work is counted in units, a tile as several and a list as some more: to begin and end one takes
time, too. Lists that are alike do not follow each other: first comes one list of each group, then
the next one of each group. So no share has all the short lists of one example.

The parts of all lists are stored in one row. From one part to the next the list, the program or
both move on by one or more, so the sum of their numbers is a place that no other part has.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shapeexec.attention.backends._reach import divide
from shapeexec.attention.backends.mosaic_gpu import _i32 as i32
from shapeexec.attention.backends.mosaic_gpu._divided import divided
from shapeexec.attention.masks._base import Array

TILE_UNITS, LIST_UNITS = 4, 1
"""The work of a tile, and what each list takes besides; measured, see docs/adr/0009."""

_MOST_UNITS = 2**30  # half of what an i32 holds, as the last shares may begin behind all work
_ASKED = 4  # a step of a search leaves one of as many groups
_ADDED_AT_ONCE = 4096  # groups whose counts are added by one kernel, whose work grows by the square


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Shares:
    """The work of all lists in one row, cut into shares of one size.

    Attributes:
        sums: Numbers of tiles of one list of each group, i32[1 + groups]: of all groups, and of
            those before each group. The first one has the same place for any number of groups.
        groups: The number of groups of lists; i32[] if it is known only when the kernel runs.
        alike: The number of lists in a group, which are equally long.
        programs: The number of shares.
    """

    sums: Array
    groups: Any = dataclasses.field(metadata={"static": True})
    alike: int = dataclasses.field(metadata={"static": True})
    programs: int = dataclasses.field(metadata={"static": True})

    @property
    def lists(self) -> Any:
        """The number of lists."""
        return self.groups * self.alike

    @property
    def places(self) -> int:
        """The number of places for parts, as many as all lists may have together."""
        return self.programs + self.lists - 1

    @property
    def all_lists(self) -> Any:
        """The numbers of all lists in the order of `given`, i32[lists]."""
        numbers = self._xp.arange(self.lists, dtype=np.int32)
        return numbers.reshape(self.alike, self.groups).T.reshape(-1)

    @property
    def _xp(self) -> Any:
        return np if isinstance(self.sums, np.ndarray) else jnp

    def given(self, which: Array) -> Array:
        """The number of a list if they are counted group after group, i32[]."""
        of_group, group = self._divided(which)
        return group * self.alike + of_group

    def total(self) -> Array:
        """The units of all lists, i32[]."""
        return self._one_of_each() * self.alike

    def size(self) -> Array:
        """The units of a share, i32[]: as many as a tile or more; the last shares may have fewer.

        Kernels compute it, as on a GPU an operation of XLA costs a microsecond.
        """
        even = divide(self.total() + (self.programs - 1), self.programs, xp=self._xp)
        return self._xp.maximum(even, TILE_UNITS)

    def bounds(self, which: Array) -> tuple[Array, Array]:
        """The first unit of a list, and the number of its tiles, i32[] each."""
        of_group, group = self._divided(which)
        low = of_group * self._one_of_each() + self._before(group)
        return low, self.sums[self._place(group + 1)] - self.sums[self._place(group)]

    def end(self, low: Array, tiles: Array) -> Array:
        """The first unit behind a list, from its `bounds`, i32[]."""
        return low + (tiles * TILE_UNITS + LIST_UNITS)

    def tiles_before(self, unit: Array, low: Array, tiles: Array) -> Array:
        """How many tiles of a list, from its `bounds`, begin before a unit, i32[]."""
        xp = self._xp
        behind = xp.maximum(unit - low - LIST_UNITS, 0)
        return xp.minimum(divide(behind + (TILE_UNITS - 1), TILE_UNITS, xp=xp), tiles)

    def holder(self, unit: Array) -> Array:
        """The list that holds a unit, i32[]; the last one if none does.

        In each step several groups are asked at a time, as a load takes half a microsecond.
        """
        one_of_each = self._one_of_each()
        of_group = jnp.minimum(lax.div(unit, one_of_each), self.alike - 1)
        unit -= of_group * one_of_each

        def narrowed(carry: tuple[Any, Any]) -> tuple[Any, Any]:
            group, candidates = carry
            some = candidates + (_ASKED - 1)
            candidates = some // _ASKED if isinstance(some, int) else divide(some, _ASKED, xp=jnp)
            asked = (group + i * candidates for i in range(1, _ASKED))
            units = [self._before(jnp.minimum(i, self.groups)) for i in asked]
            return group + candidates * sum(jnp.where(x <= unit, 1, 0) for x in units), candidates

        carry = i32.constant(0), self.groups + 1
        if isinstance(self.groups, int):
            while carry[1] > 1:
                carry = narrowed(carry)
        else:
            carry = lax.while_loop(lambda carry: carry[1] > 1, narrowed, carry)
        return of_group * self.groups + jnp.minimum(carry[0], self.groups - 1)

    def parts_of(self, which: Array) -> tuple[Array, Array]:
        """The place of a list's first part, and the number of its parts; of lists without parts 0.

        Args:
            which: The number of the list, or of several: i32.
        """
        xp = self._xp
        (low, tiles), size = self.bounds(which), self.size()
        low = low + LIST_UNITS
        first = divide(low, size, xp=xp)
        last = divide(low + (xp.maximum(tiles, 1) - 1) * TILE_UNITS, size, xp=xp)
        is_empty = tiles == 0
        return xp.where(is_empty, 0, first + which), xp.where(is_empty, 0, last - first + 1)

    def _divided(self, which: Array) -> tuple[Array, Array]:
        """The number of a list within its group, and that of the group."""
        if not isinstance(self.groups, int):
            return divided(which, self.groups)
        of_group = divide(which, self.groups, xp=self._xp)
        return of_group, which - of_group * self.groups

    def _one_of_each(self) -> Array:
        """The units of one list of each group."""
        return self.sums[0] * TILE_UNITS + self.groups * LIST_UNITS

    def _before(self, group: Any) -> Array:
        """The units of one list of each group before this one."""
        return self.sums[self._place(group)] * TILE_UNITS + group * LIST_UNITS

    def _place(self, group: Any) -> Any:
        """The place in `sums` of the tiles before a group; behind the last one that is all."""
        return self._xp.where(group < self.groups, group + 1, 0)


def can_be_shared(lists: int, *, longest: int) -> bool:
    """Whether numbers of i32 can count the work of as many lists with at most `longest` tiles."""
    return lists * (longest * TILE_UNITS + LIST_UNITS) <= _MOST_UNITS


def share(counts: Array, *, longest: int, programs: int, alike: int = 1) -> tuple[Shares, int]:
    """Equal shares, and the most programs that attend to one list: an upper bound if traced.

    Args:
        counts: The number of tiles in a list of each group, i32[groups].
        longest: The most tiles that a list can have.
        programs: The number of shares.
        alike: The number of lists in a group, which are equally long.
    """
    is_known = isinstance(counts, np.ndarray)
    shares = Shares(_sums(counts), len(counts), alike, programs)
    if is_known:
        return shares, int(shares.parts_of(shares.all_lists)[1].max(initial=1))
    # If all lists but one group are empty, that group has the programs to itself.
    return shares, min(longest, programs // alike + 2)


def _sums(counts: Array) -> Array:
    """See `Shares.sums`."""
    if isinstance(counts, np.ndarray):
        return np.roll(np.cumsum([0, *counts], dtype=np.int32), 1)
    if len(counts) > _ADDED_AT_ONCE:
        return jnp.roll(jnp.pad(jnp.cumsum(counts, dtype=np.int32), (1, 0)), 1)
    # On a GPU a cumulative sum is a chain of kernels, and this is a single kernel.
    number = jnp.arange(len(counts) + 1)
    ends = jnp.where(number == 0, len(counts), number - 1)
    is_before = jnp.arange(len(counts)) < ends[:, None]
    return jnp.where(is_before, counts, 0).sum(1, dtype=np.int32)
