"""Trees put together again, from their parts and arrays."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax

from shapeexec._errors import ConfigError
from shapeexec.execution import _modules
from shapeexec.execution._parts import Again, Constant, Made, Node, Part, assign, attributes_of


@dataclasses.dataclass
class Merge:
    """Trees put together again from their parts and arrays."""

    split: _modules.Nodes | None
    nodes: list[Any] = dataclasses.field(default_factory=list)
    objects: dict[int, Any] = dataclasses.field(default_factory=dict)
    given: dict[int, Any] = dataclasses.field(default_factory=dict)

    def collect(self, arrays: Iterable[Any], parts: Iterable[Part]) -> None:
        """Find the arrays of all nodes, and make these."""
        if self.split is None:
            return
        own: dict[int, Any] = {}
        for part, held in zip(parts, arrays, strict=True):
            _collect(part, iter(held), self.split.counts, own)
        self.nodes = self.split.merged([own[number] for number in range(len(own))])

    def whole(self, part: Part, arrays: Iterator[Any]) -> Any:
        """The tree of a part, from its arrays."""
        return jax.tree.unflatten(part.tree, [self._leaf(leaf, arrays) for leaf in part.leaves])

    def _leaf(self, leaf: Any, arrays: Iterator[Any]) -> Any:
        if leaf is None:
            return next(arrays)
        if isinstance(leaf, Constant):
            return leaf.value
        if isinstance(leaf, Node):
            if self.split is not None:  # its arrays stand among the others
                _next(arrays, self.split.counts[leaf.number])
            return self.nodes[leaf.number]
        if isinstance(leaf, Again):
            return self.objects[leaf.number]
        if leaf.number is None:
            return leaf.make(self.whole(leaf.part, arrays))
        made = self.objects[leaf.number] = leaf.make({})
        attributes = self.whole(leaf.part, arrays)
        assign(made, attributes)
        self.given[leaf.number] = jax.tree.flatten(attributes)
        return made

    def check_unchanged(self) -> None:
        """Check that the function has assigned to no attribute of an object.

        Raises:
            ConfigError: It has, and outside nothing would be seen of it.
        """
        for number, (leaves, tree) in self.given.items():
            attributes = attributes_of(self.objects[number])
            now, structure = jax.tree.flatten(attributes)
            if structure == tree and all(a is b for a, b in zip(leaves, now, strict=True)):
                continue
            kind = type(self.objects[number]).__name__
            before = jax.tree.unflatten(tree, leaves)
            changed = sorted(
                name
                for name in {*before, *attributes}
                if name not in before
                or name not in attributes
                or not _is_same(before[name], attributes[name])
            )
            raise ConfigError(
                f"the function changes {', '.join(f'`{name}`' for name in changed)} of a {kind}.",
                why="it runs once for each graph, not at each call, so the change would be lost",
                fix="return the new value and assign it outside, or hold it in an nnx.Variable",
            )


def _is_same(x: Any, y: Any) -> bool:
    (a, first), (b, second) = jax.tree.flatten(x), jax.tree.flatten(y)
    return first == second and all(p is q for p, q in zip(a, b, strict=True))


def _next(arrays: Iterator[Any], count: int) -> tuple[Any, ...]:
    return tuple(itertools.islice(arrays, count))


def tree_of(part: Part, arrays: Iterator[Any], counts: Sequence[int]) -> Any:
    """The arrays of a part in a tree like its own."""
    return jax.tree.unflatten(part.tree, [_subtree(kind, arrays, counts) for kind in part.leaves])


def _subtree(kind: Any, arrays: Iterator[Any], counts: Sequence[int]) -> Any:
    if kind is None:
        return next(arrays)
    if isinstance(kind, Node):
        return _next(arrays, counts[kind.number])
    return tree_of(kind.part, arrays, counts) if isinstance(kind, Made) else None


def _collect(
    part: Part, arrays: Iterator[Any], counts: Sequence[int], found: dict[int, Any]
) -> None:
    for kind in part.leaves:
        if kind is None:
            next(arrays)
        elif isinstance(kind, Node):
            found[kind.number] = _next(arrays, counts[kind.number])
        elif isinstance(kind, Made):
            _collect(kind.part, arrays, counts, found)
