"""Trees put together again from their parts and arrays; `_parts` takes them apart.

It also checks that the function has left the objects in them as they were.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from shapeexec._errors import ConfigError
from shapeexec.execution import _modules, _objects
from shapeexec.execution._parts import Again, Constant, Made, Node, Part
from shapeexec.shape import _trees


@dataclasses.dataclass
class Merge:
    """Trees put together again from their parts and arrays.

    Attributes:
        nodes: The nodes of nnx.
        counts: How many arrays of each node stand among the others; None: they stand elsewhere.
        objects: The objects that were made, by number.
        kinds: The names of their classes, by number; also of those that are being made.
        given: The items and attributes that each was made of, by number.
        sentinels: Objects without attributes that the function was given itself.
    """

    nodes: Sequence[Any]
    counts: Sequence[int] | None = None
    objects: dict[int, object] = dataclasses.field(default_factory=dict[int, object])
    kinds: dict[int, str] = dataclasses.field(default_factory=dict[int, str])
    given: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict[int, dict[str, Any]])
    sentinels: list[object] = dataclasses.field(default_factory=list[object])

    @classmethod
    def of(
        cls, split: _modules.Nodes | None, parts: Iterable[Part], *, arrays: Iterable[Any]
    ) -> "Merge":
        """A merge with nodes made anew from their arrays.

        Args:
            split: The nodes; None if there are none.
            parts: Trees that hold the nodes.
            arrays: The arrays of each tree.
        """
        if split is None:
            return cls([])
        own: dict[int, Any] = {}
        for part, held in zip(parts, arrays, strict=True):
            _collect(part, iter(held), counts=split.counts, found=own)
        return cls(split.merged([own[number] for number in range(len(own))]), split.counts)

    def whole(self, part: Part, arrays: Iterator[Any]) -> Any:
        """The tree of a part, with these arrays."""
        return _trees.unflatten(part.tree, [self._leaf(leaf, arrays) for leaf in part.leaves])

    def _leaf(self, leaf: Any, arrays: Iterator[Any]) -> Any:
        if leaf is None:
            return next(arrays)
        if isinstance(leaf, Constant):
            if leaf.is_sentinel:
                self.sentinels.append(leaf.value)
            return leaf.value
        if isinstance(leaf, Node):
            if self.counts is not None:
                _next(arrays, self.counts[leaf.number])
            return self.nodes[leaf.number]
        if isinstance(leaf, Again):
            return self._met(leaf.number)
        if leaf.make is not None:
            return leaf.make(self.whole(leaf.part, arrays))
        return self._object(leaf.kind, leaf.number, part=leaf.part, arrays=arrays)

    def _object(self, kind: Any, number: Any, *, part: Part, arrays: Iterator[Any]) -> Any:
        how, (structure, rest) = _objects.items_of(kind), part.tree.children()
        if how.fill is not None:
            self.objects[number] = how.new(kind)  # first, for it may hold itself
        self.kinds[number] = kind.__name__
        count = structure.num_leaves
        items = structure.unflatten([self._leaf(leaf, arrays) for leaf in part.leaves[:count]])
        if how.fill is None:
            self.objects[number] = how.new(kind, items)
        else:
            how.fill(self.objects[number], items)
        attributes = rest.unflatten([self._leaf(leaf, arrays) for leaf in part.leaves[count:]])
        made = self.objects[number]
        _objects.assign(made, attributes)
        self.given[number] = _held(items, attributes)
        return made

    def _met(self, number: int) -> Any:
        if number not in self.objects:
            raise ConfigError(
                "an immutable object contains itself.",
                got=f"a {self.kinds[number]}",
                fix="break the cycle, or hold the inner one in an attribute",
            )
        return self.objects[number]

    def check_unchanged(self) -> None:
        """Check that the function has assigned to no attribute of an object.

        Raises:
            ConfigError: It has. The caller's object would not change.
        """
        for number, before in self.given.items():
            value = self.objects[number]
            items = _objects.items_of(type(value)).read(value)
            now = _held(items, _objects.attributes_of(value))
            cached = {f"`{name}`" for name in _objects.cached_properties(type(value))}
            _check_same(
                value,
                before=before,
                now={k: x for k, x in now.items() if k in before or k not in cached},
            )
        for value in self.sentinels:
            attributes = _objects.attributes_of(value)
            for name in attributes:  # it is the caller's own
                object.__delattr__(value, name)
            cached = _objects.cached_properties(type(value))
            added = {name: held for name, held in attributes.items() if name not in cached}
            _check_same(value, before=_held((), {}), now=_held((), added))


def _check_same(value: Any, *, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changed = sorted(
        name
        for name in {*before, *now}
        if name not in before or name not in now or not _is_same(before[name], now[name])
    )
    if changed:
        raise ConfigError(
            f"the function changes {', '.join(changed)} of a {type(value).__name__}.",
            why="it runs once for each graph, not at each call, so the change would be lost",
            fix="return the new value and assign it outside, or hold it in an nnx.Variable",
        )


def _held(items: Any, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """A shallow copy of the content of an object, by the names for it in errors."""
    named = {f"`{name}`": _trees.flatten(held) for name, held in attributes.items()}
    return {**named, "the items": _trees.flatten(items)}


def _is_same(x: tuple[list[Any], Any], y: tuple[list[Any], Any]) -> bool:
    (a, first), (b, second) = x, y
    return first == second and all(map(_is_one, a, b))


def _is_one(x: Any, y: Any) -> bool:
    # Some items are read anew each time, so equal atoms count as the same.
    return x is y or (type(x) is type(y) and type(x) in (str, bytes, int, float) and x == y)


def _next(arrays: Iterator[Any], count: int) -> tuple[Any, ...]:
    return tuple(itertools.islice(arrays, count))


def tree_of(part: Part, arrays: Iterator[Any], *, counts: Sequence[int]) -> Any:
    """The arrays of a part in a tree like its own."""
    return _trees.unflatten(
        part.tree, [_subtree(kind, arrays, counts=counts) for kind in part.leaves]
    )


def _subtree(kind: Any, arrays: Iterator[Any], *, counts: Sequence[int]) -> Any:
    if kind is None:
        return next(arrays)
    if isinstance(kind, Node):
        return _next(arrays, counts[kind.number])
    return tree_of(kind.part, arrays, counts=counts) if isinstance(kind, Made) else None


def _collect(
    part: Part, arrays: Iterator[Any], *, counts: Sequence[int], found: dict[int, Any]
) -> None:
    for kind in part.leaves:
        if kind is None:
            next(arrays)
        elif isinstance(kind, Node):
            found[kind.number] = _next(arrays, counts[kind.number])
        elif isinstance(kind, Made):
            _collect(kind.part, arrays, counts=counts, found=found)
