"""Specs that follow from the shapes of calls: which sizes change, and which are always equal.

All values are immutable: `widen` returns a new one. Which code sees the calls, and in which thread,
is not known here.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from shapeexec.shape import _trees
from shapeexec.shape._pattern import Spec, parse_spec
from shapeexec.shape._unknown import at_place

FEW = 2
"""An axis of at most so many sizes is static, with a graph for each; with more it is a symbol."""

_BATCH = "b"

Axis = tuple[int, int]  # the number of a leaf, and an axis of it
Sizes = Sequence[tuple[int, ...]]  # by leaf


@dataclasses.dataclass(frozen=True)
class Group:
    """Axes whose sizes were equal in every call.

    Attributes:
        axes: The axes, ascending.
        sizes: Their sizes, in the order in which they came, the first `FEW + 1`.
    """

    axes: tuple[Axis, ...]
    sizes: tuple[int, ...]

    @property
    def is_symbol(self) -> bool:
        """Whether the axes have too many sizes for a graph each."""
        return len(self.sizes) > FEW

    def met(self, size: int) -> "Group":
        """The group after a call of this size."""
        if self.is_symbol or size in self.sizes:
            return self
        return dataclasses.replace(self, sizes=(*self.sizes, size))


@dataclasses.dataclass(frozen=True)
class Inferred:
    """The facts about sizes from the calls whose arguments have one structure.

    Attributes:
        leaves: Per array its place, as the names of unknown sizes have it, and its rank.
        groups: All axes of all arrays. If there are `given` symbols, one more array at the end has
            their sizes.
        given: The symbols of other arrays, which have specs. Their sizes are the last shape.
        batch: The axis whose symbol is `b`: the first axis 0 that became a symbol. It stays,
            because strategies and statistics are found by name. None: no such axis yet.
    """

    leaves: tuple[tuple[str, int], ...]
    groups: tuple[Group, ...]
    given: tuple[str, ...] = ()
    batch: Axis | None = None

    @property
    def symbols(self) -> tuple[tuple[Axis, ...], ...]:
        """The axes of each symbol."""
        ragged = (group.axes for group in self.groups if group.is_symbol)
        return tuple(axes for axes in ragged if axes[0][0] < len(self.leaves))

    def to_json(self) -> list[Any]:
        """The facts as lists, strings and numbers."""
        groups = [[list(map(list, group.axes)), list(group.sizes)] for group in self.groups]
        return [list(map(list, self.leaves)), groups, list(self.given), list(self.batch or ())]

    @classmethod
    def from_json(cls, content: Any) -> "Inferred":
        """The facts that `to_json` wrote.

        Raises:
            ValueError: It is something else.
            TypeError: It is something else.
        """
        leaves, groups, given, batch = content
        return cls(
            tuple((str(place), int(rank)) for place, rank in leaves),
            tuple(
                Group(tuple((int(leaf), int(axis)) for leaf, axis in axes), tuple(map(int, sizes)))
                for axes, sizes in groups
            ),
            tuple(map(str, given)),
            (int(batch[0]), int(batch[1])) if batch else None,
        )

    def admits(self, shapes: Sizes) -> bool:
        """Whether the axes of each symbol have equal sizes."""
        return all(len({shapes[n][axis] for n, axis in axes}) == 1 for axes in self.symbols)

    @property
    def texts(self) -> tuple[str | None, ...]:
        """Per array its spec; None: it is static.

        A given symbol keeps its name, and the symbol of `batch` is `b`. Any other symbol of one
        axis is `?`; a symbol of several axes has the name that `?` would have on the first of them.
        """
        names: dict[Axis, str] = {}
        for axes in self.symbols:
            name = self._name(axes)
            is_unnamed = len(axes) == 1 and name == self._place(axes)
            names |= dict.fromkeys(axes, "?" if is_unnamed else name)
        return tuple(_text(names, leaf, rank=rank) for leaf, (_, rank) in enumerate(self.leaves))

    def _place(self, axes: tuple[Axis, ...]) -> str:
        leaf, axis = axes[0]
        return at_place(self.leaves[leaf][0], axis)

    def _name(self, axes: tuple[Axis, ...]) -> str:
        given = [self.given[axis] for leaf, axis in axes if leaf == len(self.leaves)]
        if given:
            return given[0]
        return _BATCH if self.batch in axes else self._place(axes)

    @property
    def early(self) -> Mapping[str, tuple[int, ...]]:
        """By symbol, the sizes of calls before it became a symbol, without empty axes."""
        sizes = {group.axes: group.sizes[:FEW] for group in self.groups}
        return {self._name(axes): tuple(filter(None, sizes[axes])) for axes in self.symbols}

    @property
    def specs(self) -> tuple[Spec | None, ...]:
        """Per array its spec, in which each symbol has a name; see `texts`."""
        return tuple(
            None if text is None else parse_spec(text).named(place)
            for text, (place, _) in zip(self.texts, self.leaves, strict=True)
        )


def _text(names: Mapping[Axis, str], leaf: int, *, rank: int) -> str | None:
    entries = [names.get((leaf, axis), "_") for axis in range(rank)]
    return None if set(entries) <= {"_"} else ", ".join(entries)


def first(places: Sequence[str], shapes: Sizes, *, given: Sequence[str] = ()) -> Inferred:
    """The facts that one call shows: axes of one size may be one symbol.

    Args:
        places: Per array its place.
        shapes: Per array its shape, then the sizes of the given symbols.
        given: See `Inferred`.
    """
    axes = ((leaf, axis) for leaf, shape in enumerate(shapes) for axis in range(len(shape)))
    leaves = tuple((place, len(shape)) for place, shape in zip(places, shapes, strict=False))
    return Inferred(leaves, _apart(tuple(axes), shapes=shapes, sizes=()), tuple(given))


def widen(inferred: Inferred, shapes: Sizes) -> Inferred:
    """The facts after one more call. The order of calls matters for `batch` only.

    Args:
        inferred: The facts before the call, which are returned as they are if it shows nothing new.
        shapes: The shapes of the call, of the same ranks.
    """
    groups: list[Group] = []
    for group in inferred.groups:
        found = {shapes[leaf][axis] for leaf, axis in group.axes}
        if len(found) == 1:
            groups.append(group.met(*found))
        else:
            groups += _apart(group.axes, shapes=shapes, sizes=group.sizes)
    if all(a is b for a, b in zip(groups, inferred.groups, strict=False)):
        return inferred
    new = dataclasses.replace(inferred, groups=tuple(groups))
    if new.batch is not None or _BATCH in new.given:
        return new
    front = (axis for axes in new.symbols for axis in axes if axis[1] == 0)
    return dataclasses.replace(new, batch=min(front, default=None))


def _apart(apart: tuple[Axis, ...], *, shapes: Sizes, sizes: tuple[int, ...]) -> tuple[Group, ...]:
    """Groups by size of axes that had the same sizes until now."""
    by_size: dict[int, list[Axis]] = {}
    for leaf, axis in apart:
        by_size.setdefault(shapes[leaf][axis], []).append((leaf, axis))
    return tuple(Group(tuple(axes), sizes).met(size) for size, axes in by_size.items())


def early_sizes(found: Iterable[Inferred]) -> Mapping[str, tuple[int, ...]]:
    """By symbol the sizes at which calls of any structure ran exactly, ascending."""
    sizes: dict[str, set[int]] = {}
    for inferred in found:
        for symbol, early in inferred.early.items():
            sizes.setdefault(symbol, set()).update(early)
    return {symbol: tuple(sorted(early)) for symbol, early in sizes.items()}


# Trees of specs, as users write them


def trees_of(structure: Any, texts: Sequence[str | None]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The specs by position and by keyword; None for arguments that are static as a whole.

    Args:
        structure: The tree structure of (positional, keyword) arguments.
        texts: The spec of each leaf.
    """
    args, kwargs = _trees.unflatten(structure, texts)
    return tuple(map(_short, args)), {name: _short(tree) for name, tree in kwargs.items()}


def _short(tree: Any) -> Any:
    """A tree of specs with None for each container of static arrays."""
    if isinstance(tree, str) or not _trees.leaves(tree):
        return tree if isinstance(tree, str) else None
    if type(tree) in _SHORTENED:
        return _SHORTENED[type(tree)](tree)
    return tree


_SHORTENED: Mapping[type, Callable[[Any], Any]] = {
    dict: lambda tree: {key: _short(entry) for key, entry in tree.items()},
    list: lambda tree: [*map(_short, tree)],
    tuple: lambda tree: (*map(_short, tree),),
}
