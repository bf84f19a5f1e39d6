"""Modules of flax and of equinox, recognised and taken apart without importing either.

A call can hold a module only if its library is imported already. The function may change an nnx
module, and modules may share objects: nnx itself splits and merges them, as for `nnx.jit`.
"""

import dataclasses
import sys
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np

from shapeexec.shape import _trees

_TAG = "shapeexec"


def is_equinox(value: Any) -> bool:
    """Whether a value is a module of equinox: an immutable tree, not only of arrays."""
    kind = getattr(sys.modules.get("equinox"), "Module", None)
    return kind is not None and isinstance(value, kind)


def is_nnx(value: Any) -> bool:
    """Whether a value is a module, a variable or another node of a graph of flax's nnx."""
    nnx = sys.modules.get("flax.nnx")
    graphs = getattr(nnx, "graphlib", None)
    if nnx is None or graphs is None or isinstance(value, jax.Array | np.ndarray):
        return False
    return isinstance(value, nnx.Variable) or bool(graphs.is_graph_node(value))


def is_linen_definition(value: Any) -> bool:
    """Whether a value is a module of flax's linen that says, by its fields alone, what it is.

    Such a module is frozen, and equal to others with equal fields. Linen keeps numbers beside
    them that no other module has. One that is bound holds variables, and has no hash.
    """
    kind = getattr(sys.modules.get("flax.linen"), "Module", None)
    if kind is None or not isinstance(value, kind):
        return False
    try:
        hash(value)
    except TypeError:
        return False
    return True


def held_by_states(tree: Any, leaves: Sequence[Any]) -> set[int]:
    """The variables, by identity, of the `nnx.State`s in a tree: data, as they are to `jax.jit`.

    Variables outside of a `State` may be changed by the function. `leaves` are the leaves of the
    tree, including variables.
    """
    kind = sys.modules["flax.nnx"].State
    if isinstance(tree, kind):
        return set(map(id, leaves))

    def is_state(value: object) -> bool:
        return isinstance(value, kind)

    states = [*filter(is_state, _trees.leaves(tree, is_leaf=is_state))]
    return set(map(id, _trees.leaves(states, is_leaf=is_nnx)))


@dataclasses.dataclass(frozen=True, eq=False)
class Nodes:
    """The nnx nodes among the arguments of a call, split together: they may share variables.

    Attributes:
        nodes: The caller's objects; empty where only their shapes are remembered.
        graph: The graph definition of nnx: everything but arrays.
        trees: Per node the structure of its arrays, without arrays of earlier nodes.
    """

    nodes: tuple[Any, ...]
    graph: Any
    trees: tuple[Any, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """How many arrays each node has."""
        return tuple(tree.num_leaves for tree in self.trees)

    @property
    def key(self) -> Hashable:
        """The key that two calls must share to share a trace."""
        return (self.graph, self.trees)

    def merged(self, arrays: Sequence[Sequence[Any]]) -> list[Any]:
        """New nodes with these arrays; inside of `updating()` nnx knows them again."""
        nnx = sys.modules["flax.nnx"]
        with nnx.merge_context(_TAG, inner=True) as context:
            return list(context.merge(self.graph, _state(self.trees, arrays)))

    def forgotten(self) -> "Nodes":
        """The nodes without the caller's objects."""
        return dataclasses.replace(self, nodes=())

    def update(self, changed: "Nodes", arrays: Sequence[Sequence[Any]]) -> list[Any]:
        """Update the caller's objects as the function left them.

        Args:
            changed: These nodes as the function left them, followed by the nodes of its result.
            arrays: The arrays of each node.

        Returns:
            The caller's objects, then the objects of the result; shared objects are identical.
        """
        nnx = sys.modules["flax.nnx"]
        with updating():
            with nnx.split_context(_TAG) as context:
                context.split(list(self.nodes))
            with nnx.merge_context(_TAG, inner=False) as context:
                return list(context.merge(changed.graph, _state(changed.trees, arrays)))


def updating() -> Any:
    """Within it nnx remembers which object of a function is which of its caller's."""
    return sys.modules["flax.nnx"].update_context(_TAG)


def split(nodes: Sequence[Any]) -> tuple[Nodes, list[tuple[Any, ...]]]:
    """The modules or variables of a call as `Nodes`, and the arrays of each."""
    graph, state = sys.modules["flax.nnx"].split(list(nodes))
    return _split(nodes, graph, state=state)


def split_updated(nodes: Sequence[Any]) -> tuple[Nodes, list[tuple[Any, ...]]]:
    """Split nodes at the end of the function; works inside of `updating()` only."""
    with sys.modules["flax.nnx"].split_context(_TAG) as context:
        graph, state = context.split(list(nodes))
        return _split(nodes, graph, state=state)


def _split(nodes: Sequence[Any], graph: Any, *, state: Any) -> tuple[Nodes, list[tuple[Any, ...]]]:
    trees: list[Any] = []
    arrays: list[tuple[Any, ...]] = []
    for number in range(len(nodes)):
        leaves, tree = _trees.flatten(state.get(number))
        trees.append(tree)
        arrays.append(tuple(leaves))
    return Nodes(tuple(nodes), graph, tuple(trees)), arrays


def state(nodes: Sequence[Any]) -> Any:
    """A snapshot of nodes: their graph definition and arrays."""
    if not nodes:
        return None, []
    graph, held = sys.modules["flax.nnx"].split(list(nodes))
    return graph, _trees.leaves(held)


def is_same_state(before: Any, after: Any) -> bool:
    """Whether nothing was assigned between two `state`s."""
    (graph, held), (other_graph, other) = before, after
    is_alike = graph == other_graph and len(held) == len(other)
    return is_alike and all(x is y for x, y in zip(held, other, strict=True))


def _state(trees: Sequence[Any], arrays: Sequence[Sequence[Any]]) -> Any:
    nnx = sys.modules["flax.nnx"]
    whole = {
        number: _trees.unflatten(tree, leaves)
        for number, (tree, leaves) in enumerate(zip(trees, arrays, strict=True))
        if leaves or tree.num_nodes > 1
    }
    return nnx.State(whole)
