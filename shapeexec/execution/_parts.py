"""Trees taken apart into arrays and constants.

This module alone decides which leaves are arrays, and how constants are compared. `_split` does it
for a whole call.
"""

import dataclasses
import functools
import types
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Literal

import jax

from shapeexec._errors import ConfigError
from shapeexec.execution import _modules, _objects
from shapeexec.execution._is_data import NUMBERS, is_data
from shapeexec.execution._options import typed
from shapeexec.shape import _trees

_Keys = tuple[Any, ...]
_Numbers = Literal["data", "constants"]  # whether numbers are inputs of the graph


@dataclasses.dataclass(frozen=True, eq=False)
class Constant:
    """A leaf that is not an array. If it is compared by identity it is not kept alive."""

    held: Any
    key: Hashable

    @classmethod
    def of(cls, value: Any, key: Hashable) -> "Constant":
        return cls(None if isinstance(key, _Identity) else value, key)

    @property
    def value(self) -> object:
        """The leaf.

        Raises:
            ConfigError: The object does not exist any more.
        """
        if not isinstance(self.key, _Identity):
            return self.held
        value = self.key.value()
        if value is None:
            raise ConfigError(
                "the previous call held an object that is gone.",
                got=f"a {self.key.kind}, which only that call kept alive",
                fix="pass example arguments",
            )
        return value

    @property
    def is_sentinel(self) -> bool:
        """Whether the leaf is an object without attributes, which the function is given itself."""
        by_content = _objects.Comparison.BY_CONTENT
        return (
            isinstance(self.key, _Identity) and _objects.comparison(type(self.value)) is by_content
        )


@dataclasses.dataclass(frozen=True)
class Node:
    """A node of nnx, by its number."""

    number: int

    @property
    def key(self) -> Hashable:
        return ("nnx", self.number)


@dataclasses.dataclass(frozen=True)
class Again:
    """An object that was met before, by its number."""

    number: int

    @property
    def key(self) -> Hashable:
        return ("again", self.number)


@dataclasses.dataclass(frozen=True, eq=False)
class Made:
    """A leaf that is built from a tree: a module from its fields, an object from its content.

    Attributes:
        kind: Its class, or `"equinox"` for a module of equinox.
        make: Builds it from the tree. None for an object, whose tree is its items and attributes.
        part: The tree.
        number: The number of the object, by which it is found again; None for other leaves.
    """

    kind: Hashable
    make: Callable[[Any], Any] | None
    part: "Part"
    number: int | None = None

    @property
    def key(self) -> Hashable:
        return ("made", self.kind, self.part.key)


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """A tree, taken apart.

    Attributes:
        tree: The structure of the tree.
        leaves: One entry per leaf: None for an array, else a `Constant`, `Node`, `Again` or `Made`.
        key: Equal for two trees that differ in arrays only.
    """

    tree: Any
    leaves: tuple[Any, ...]
    key: Hashable

    def functions(self) -> Iterator[types.FunctionType]:
        """The plain functions among its constants."""
        for leaf in self.leaves:
            if isinstance(leaf, Made):
                yield from leaf.part.functions()
            elif isinstance(leaf, Constant) and isinstance(leaf.value, types.FunctionType):
                yield leaf.value

    @property
    def is_constant(self) -> bool:
        """Whether it is a single leaf that is not an array."""
        return _trees.is_leaf_structure(self.tree) and isinstance(self.leaves[0], Constant)


def argument_key(leaf: object) -> Hashable:
    """The key by which a constant of an argument is compared.

    Raises:
        _Incomparable: It cannot be hashed, or may change while its hash stays the same.
    """
    try:
        key = _key(leaf)
    except (TypeError, ValueError) as error:  # ValueError: a memory view that can be written
        raise _Incomparable(leaf, is_hashable=False) from error
    if _objects.comparison(type(leaf)) is _objects.Comparison.BY_NOTHING:
        raise _Incomparable(leaf, is_hashable=True)
    return key


def result_key(leaf: object) -> Hashable:
    """The key by which a constant of a result is compared: its identity, if not hashable."""
    try:
        return _key(leaf)
    except (TypeError, ValueError):
        return _Identity(leaf)


def _key(leaf: object) -> Hashable:
    by = _objects.comparison(type(leaf))
    if by is _objects.Comparison.BY_IDENTITY or by is _objects.Comparison.BY_CONTENT:
        return _Identity(leaf)
    key = typed(leaf)
    hash(key)
    return key


@dataclasses.dataclass
class Walk:
    """The state of taking several trees apart that may share objects.

    Attributes:
        key_of: The key of a constant: `argument_key` or `result_key`.
        nodes: The nodes of nnx.
        objects: The objects that were opened, by identity. They stay alive as long as the walk.
    """

    key_of: Callable[[object], Hashable] = argument_key
    nodes: list[Any] = dataclasses.field(default_factory=list[Any])
    objects: dict[int, Any] = dataclasses.field(default_factory=dict[int, Any])
    _opens_first: bool = False

    def part(self, tree: Any, *, where: str = "") -> tuple[Part, list[Any]]:
        """A tree taken apart, and its arrays, with a `Slot` for the arrays of each nnx node.

        Args:
            tree: An argument, or a result.
            where: The path of `tree`, for errors.

        Raises:
            ConfigError: A constant has no key.
        """
        arrays: list[Any] = []
        try:
            return self._part(tree, arrays, numbers="data"), arrays
        except _Incomparable as error:
            raise error.of_user(_place(where, error.path)) from error

    def function(self, fn: Callable[..., Any], *, where: str) -> tuple[Part, list[Any]]:
        """The function taken apart as a 1-tuple, and its arrays; see `part`.

        Its numbers are constants. If the walk has opened no object before, the first object in it
        is opened even if it has a hash.
        """
        arrays: list[Any] = []
        opening = dataclasses.replace(self, _opens_first=True)
        try:
            return opening._part((fn,), arrays, numbers="constants"), arrays
        except _Incomparable as error:
            raise error.of_user(_place(where, error.path[1:])) from error

    def _part(self, tree: Any, arrays: list[Any], *, numbers: _Numbers) -> Part:
        # Within a module of equinox and an object numbers are constants, as for `eqx.filter_jit`.
        is_leaf = is_taken if numbers == "data" else _modules.is_nnx
        leaves, structure = _trees.flatten(tree, is_leaf=is_leaf)
        kinds: list[Constant | Node | Again | Made | None] = []
        data = None
        for number, leaf in enumerate(leaves):
            may_be_data = numbers == "data" or type(leaf) not in NUMBERS
            is_one = isinstance(leaf, jax.Array) or (may_be_data and is_data(leaf))
            if is_one and _modules.is_nnx(leaf):  # a variable has a shape and a dtype as well
                data = _modules.held_by_states(tree, leaves) if data is None else data
                is_one = id(leaf) in data
            if is_one:
                arrays.append(leaf)
                kinds.append(None)
                continue
            try:
                kinds.append(self._leaf(leaf, arrays, numbers=numbers))
            except _Incomparable as error:
                error.path = (*_path(structure, number), *error.path)
                raise
        key = (structure, tuple(None if kind is None else kind.key for kind in kinds))
        return Part(structure, tuple(kinds), key)

    def _leaf(
        self, leaf: object, arrays: list[Any], *, numbers: _Numbers
    ) -> Constant | Node | Again | Made:
        if type(leaf) in NUMBERS:
            return Constant.of(leaf, typed(leaf))
        if _modules.is_nnx(leaf):
            self.nodes.append(leaf)
            arrays.append(Slot(len(self.nodes) - 1))
            return Node(len(self.nodes) - 1)
        if numbers == "data" and _modules.is_equinox(leaf):
            return Made("equinox", _same, self._part(leaf, arrays, numbers="constants"))
        for kind, (fields, make) in COMPOSITES.items():
            if isinstance(leaf, kind):
                try:
                    return Made(kind, make, self._part(fields(leaf), arrays, numbers="constants"))
                except _Incomparable as error:
                    error.path = _field_of(kind)(error.path)
                    raise
        if id(leaf) in self.objects:
            return Again([*self.objects].index(id(leaf)))
        is_first = self._opens_first and not self.objects
        if _objects.is_opened(leaf) or (is_first and _objects.can_open(leaf)):
            return self._opened(leaf, arrays)
        return Constant.of(leaf, self.key_of(leaf))

    def _opened(self, leaf: object, arrays: list[Any]) -> Made:
        kind = type(leaf)
        self.objects[id(leaf)] = leaf
        number = len(self.objects) - 1
        held = (_objects.items_of(kind).read(leaf), _objects.attributes_of(leaf))
        try:
            return Made(kind, None, self._part(held, arrays, numbers="constants"), number)
        except _Incomparable as error:
            error.path = _held_by(error.path)
            raise


@dataclasses.dataclass(frozen=True)
class Slot:
    """Stands for the arrays of a node until all nodes are split."""

    number: int


class _Identity:
    """Equal for one object only. Only what takes no weak reference is kept alive."""

    __slots__ = ("_hash", "kind", "value")

    def __init__(self, value: Any) -> None:
        self._hash, self.kind = id(value), type(value).__name__
        try:
            self.value: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self.value = lambda: value

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Identity):
            return False
        value = self.value()
        return value is not None and value is other.value()


def _same(value: Any) -> Any:
    return value


class _Incomparable(Exception):
    """A leaf that cannot be compared. Each caller that it passes adds to the leaf's path."""

    def __init__(self, leaf: object, *, is_hashable: bool) -> None:
        super().__init__()
        self.leaf, self.is_hashable = leaf, is_hashable
        self.path: _Keys = ()

    def of_user(self, place: str) -> ConfigError:
        """The error for the user; `place` is the path of the leaf."""
        kind = type(self.leaf)
        return ConfigError(
            f"{place} is a {kind.__name__}, which "
            + ("may change unseen." if self.is_hashable else "is neither an array nor hashable."),
            option=place,
            got=f"{self.leaf!r:.80}",
            why="a leaf that is not an array is a constant of a graph; constants are compared by "
            "their hash and by ==, or by their content, if that can be read",
            fix="make it hashable (a tuple, a frozen dataclass), make it a pytree "
            "(jax.tree_util.register_dataclass), or pass an array",
        )


def _place(where: str, path: _Keys) -> str:
    keys = _trees.keystr(path)
    within = keys.removeprefix(".__self__")
    return f"self{within}" if within != keys else f"{where}{keys}"


def _held_by(path: _Keys) -> _Keys:
    which, *rest = path
    if not which.idx:
        return tuple(rest)
    return (jax.tree_util.GetAttrKey(rest[0].key), *rest[1:])


def _field_of(kind: type) -> Callable[[_Keys], _Keys]:
    names = {types.MethodType: ("__func__", "__self__"), functools.partial: _PARTIAL}[kind]
    return lambda path: (jax.tree_util.GetAttrKey(names[path[0].idx]), *path[1:])


_PARTIAL = ("func", "args", "keywords")


def _path(structure: Any, number: int) -> _Keys:
    tree = _trees.unflatten(structure, range(structure.num_leaves))
    return next(path for path, leaf in _trees.leaves_with_path(tree) if leaf == number)


# Functions that consist of others: their fields, and how to build them from the fields.
COMPOSITES: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    types.MethodType: (
        lambda method: (method.__func__, method.__self__),
        lambda fields: types.MethodType(*fields),
    ),
    functools.partial: (
        lambda made: (made.func, made.args, made.keywords),
        lambda fields: functools.partial(fields[0], *fields[1], **fields[2]),
    ),
}


def is_taken(value: Any) -> bool:
    return _modules.is_nnx(value) or _modules.is_equinox(value)
