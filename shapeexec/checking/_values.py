"""Value numbering: each value of two programs gets a number, and equal values the same number.

A value is an operation on values. Numbers are given in the order of first occurrence, so operands
have smaller numbers than results. The meaning of JAX's primitives is not known here.

Source: value numbering by hashing, Cocke and Schwartz, Programming Languages and Their Compilers
(1970); hash-consing of graphs that share.
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from shapeexec import _compat
from shapeexec.checking._params import are_alike

Run = Callable[[Sequence[Any]], Sequence[Any]]


@dataclasses.dataclass(frozen=True)
class Kind:
    """The type of a value, without weak types, which do not change the value.

    Attributes:
        shape: Ints.
        dtype: A dtype, or an extended dtype such as that of typed keys.
    """

    shape: tuple[int, ...]
    dtype: Any

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        if isinstance(self.dtype, str):  # a token, or the value of an effect
            return ""
        return _compat.describe_aval(_compat.ShapedArray(self.shape, self.dtype))


def kind_of(aval: Any) -> Kind:
    """The kind of an aval, which may have no shape (a token, a reference)."""
    if not hasattr(aval, "shape"):
        return Kind((), str(aval))
    return Kind(tuple(map(int, aval.shape)), aval.dtype)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One value.

    Attributes:
        op: The operation: a primitive's name, or our own (`input`, `constant`, `pick`).
        params: The key of the parameters.
        operands: The operands.
        bodies: The results of the loop bodies that it runs, one tuple per body.
        result: The index of this value among the operation's results.
        kind: Its type.
        inputs: The values that `run` takes: all operands, and the values that bodies capture.
        run: Computes all results of the operation from arrays; None: the value is an input.
        constant: The value, if it is known and small.
        call: The same object for all results of one operation.
        is_fixed: Whether it depends on constants only, known or not.
    """

    op: str
    params: Hashable
    operands: tuple[int, ...]
    bodies: tuple[tuple[int, ...], ...]
    result: int
    kind: Kind
    inputs: tuple[int, ...] = ()
    run: Run | None = None
    constant: np.ndarray | None = None
    call: Any = None
    is_fixed: bool = False

    def is_like(self, other: "Node") -> bool:
        """Whether it is the same operation, on whatever operands."""
        mine = (self.op, self.params, self.result, self.kind, len(self.operands))
        others = (other.op, other.params, other.result, other.kind, len(other.operands))
        return mine == others and [*map(len, self.bodies)] == [*map(len, other.bodies)]


def own_params(node: Node) -> dict[str, Any]:
    """The parameters of one of our own operations, by name."""
    params: Any = node.params
    return dict(params)


class Table:
    """All values of two programs, and their numbers."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._numbers: dict[Hashable, int] = {}
        self._constants: dict[int, tuple[Any, int]] = {}
        self._applied: dict[Hashable, list[tuple[Mapping[str, Any], list[Kind], list[int]]]] = {}

    def __getitem__(self, value: int) -> Node:
        return self.nodes[value]

    def kind(self, value: int) -> Kind:
        """The type of a value."""
        return self.nodes[value].kind

    def constant_of(self, value: int) -> np.ndarray | None:
        """The array of a known value; None: unknown."""
        return self.nodes[value].constant

    def given(self, op: str, params: Hashable, *, kind: Kind) -> int:
        """A value that is not the result of an operation: an input or a parameter of a body."""
        return self._intern((op, params, kind), Node(op, params, (), (), 0, kind))

    def captured(self, value: int) -> int:
        """A value from outside a loop's body, inside it."""
        kind = self.kind(value)
        node = Node("captured", (), (value,), (), 0, kind, is_fixed=self[value].is_fixed)
        return self._intern(("captured", value), node)

    def constant(self, value: Any) -> int:
        """A constant, identified by its bytes."""
        if id(value) not in self._constants:  # weights that both programs close over
            self._constants[id(value)] = value, self._constant(value)
        return self._constants[id(value)][1]

    def _constant(self, value: Any) -> int:
        if _compat.is_extended(getattr(value, "dtype", np.float32)):
            kind = Kind(tuple(value.shape), value.dtype)
            data = np.asarray(jax.random.key_data(value))
            node = self._known(data.tobytes(), kind, value=value, constant=None)
            return self._intern(("constant", kind, data.tobytes()), node)
        array = np.asarray(value)
        kind = Kind(array.shape, array.dtype)
        params = _content(array)
        node = self._known(params, kind, value=array, constant=array)
        return self._intern(("constant", kind, params), node)

    def _known(
        self, params: Hashable, kind: Kind, *, value: Any, constant: np.ndarray | None
    ) -> Node:
        def run(_: Sequence[Any]) -> list[Any]:
            return [value]

        return Node("constant", params, (), (), 0, kind, (), run, constant, None, is_fixed=True)

    def again(
        self, op: str, params: Mapping[str, Any], *, operands: Sequence[int], kinds: list[Kind]
    ) -> list[int] | None:
        """The results of an operation of JAX's that was kept; None: it is new, or may be.

        The second program mostly repeats the first, and normal forms take longer than a look.
        """
        for held, others, made in self._applied.get((op, *operands), ()):
            if others == kinds and are_alike(held, params):
                return made
        return None

    def keep(
        self,
        op: str,
        params: Mapping[str, Any],
        *,
        operands: Sequence[int],
        kinds: list[Kind],
        made: list[int],
    ) -> None:
        """Keep the results of an operation of JAX's for `again`."""
        self._applied.setdefault((op, *operands), []).append((params, kinds, made))

    def make(
        self,
        op: str,
        params: Hashable,
        *,
        operands: Sequence[int],
        kinds: Iterable[Kind],
        run: Run,
        inputs: Sequence[int] | None = None,
        bodies: tuple[tuple[int, ...], ...] = (),
    ) -> list[int]:
        """Add an operation, if it is new, and return its results."""
        base = (op, params, tuple(operands), bodies)
        taken = tuple(operands if inputs is None else inputs)
        call, is_fixed = object(), all(self[value].is_fixed for value in taken)
        made: list[int] = []
        for i, kind in enumerate(kinds):
            name = (base, i, kind)
            if name not in self._numbers:
                node = Node(
                    *(op, params, tuple(operands), bodies, i, kind),
                    *(taken, run, None, call, is_fixed),
                )
                self._intern(name, node)
            made.append(self._numbers[name])
        return made

    def _intern(self, name: Hashable, node: Node) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.nodes)
            self.nodes.append(node)
        return number


def _content(array: np.ndarray) -> Hashable:
    """The bytes of an array; of one element, if all are equal."""
    if is_uniform(array):
        array = array[(slice(0, 1),) * array.ndim]
    data = np.ascontiguousarray(array).tobytes()
    return data if len(data) <= _LARGEST_KEY else hashlib.blake2b(data).digest()


_LARGEST_KEY = 64


def is_uniform(array: np.ndarray) -> bool:
    """Whether all elements have the same bits."""
    if array.size <= 1 or not any(array.strides):
        return True
    if array.flat[0].tobytes() != array.flat[1].tobytes():
        return False
    elements = np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8)
    return bool((elements == elements[0]).all())
