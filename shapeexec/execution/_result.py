"""A result that holds more than arrays, as a graph returns it and as the caller gets it.

`_split` takes the arguments apart; `_parts` and `_merge` do the work for both.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

from shapeexec.execution import _modules
from shapeexec.execution._is_data import is_data
from shapeexec.execution._merge import Merge
from shapeexec.execution._parts import Part, Slot, Walk, is_taken, result_key
from shapeexec.shape import _trees


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """A result that holds more than arrays. A graph returns it as a pytree of its arrays.

    Attributes:
        arrays: The arrays of the result, and the arrays of each nnx node.
        part: The result without its arrays.
        nodes: The nodes of the arguments as the function left them, and the nodes of the result.
    """

    arrays: Any
    part: Part
    nodes: _modules.Nodes | None

    def whole(self, given: _modules.Nodes | None) -> Any:
        """The result. The nodes of the call are updated as the function left them.

        Args:
            given: The nodes among the arguments of the call; None: none is updated.
        """
        own, arrays = self.arrays
        nodes: list[Any] = []
        if self.nodes is not None:
            given = _modules.Nodes((), None, ()) if given is None else given
            nodes = given.update(self.nodes, arrays)
        return Merge(nodes).whole(self.part, iter(own))

    @property
    def key(self) -> Hashable:
        """Equal for two results that differ in arrays only."""
        return (self.part.key, None if self.nodes is None else self.nodes.key)


@dataclasses.dataclass(frozen=True, eq=False)
class _Rest:
    """A result without its arrays."""

    result: Result

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rest) and self.result.key == other.result.key

    def __hash__(self) -> int:
        return hash(self.result.key)


_trees.register(
    Result,
    lambda r: ((r.arrays,), _Rest(Result(None, r.part, r.nodes))),
    lambda rest, kids: Result(kids[0], rest.result.part, rest.result.nodes),
)


def as_result(out: Any, nodes: Sequence[Any]) -> Any:
    """The result of a function in a form that a graph can return."""
    walk = Walk(key_of=result_key, nodes=list(nodes))
    leaves = _trees.leaves(out, is_leaf=is_taken)
    if not nodes and not any(map(is_taken, leaves)) and all(map(is_data, leaves)):
        return out
    part, arrays = walk.part(out)
    if not walk.nodes:
        return Result((arrays, []), part, None)
    split, own = _modules.split_updated(walk.nodes) if nodes else _new_nodes(walk.nodes)
    arrays = [x for x in arrays if not isinstance(x, Slot)]
    return Result((arrays, own), part, split.forgotten())


def _new_nodes(nodes: list[Any]) -> tuple[_modules.Nodes, list[Any]]:
    with _modules.updating():
        return _modules.split_updated(nodes)
