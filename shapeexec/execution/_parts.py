"""A tree taken apart: which leaves are arrays, and what stands in the place of each other one.

What is an array, and what tells one constant from another, is decided here alone.
"""

import collections
import dataclasses
import functools
import sys
import types
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
from jax import export

from shapeexec._errors import ConfigError
from shapeexec.execution import _modules
from shapeexec.execution._options import typed
from shapeexec.shape._shape import is_array

_NUMBERS = (bool, int, float, complex)


@dataclasses.dataclass(frozen=True, eq=False)
class Constant:
    """A leaf that is no array. One that its identity tells is not kept alive."""

    held: Any
    key: Hashable

    @classmethod
    def of(cls, value: Any, key: Hashable) -> "Constant":
        return cls(None if isinstance(key, _Identity) else value, key)

    @property
    def value(self) -> Any:
        """The leaf.

        Raises:
            ConfigError: It is gone.
        """
        if not isinstance(self.key, _Identity):
            return self.held
        value = self.key.value()
        if value is None:
            raise ConfigError(
                "the call before held an object that is gone.", fix="pass example arguments"
            )
        return value


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
    """A leaf that is made of a tree: an object of its attributes, a module of its fields."""

    kind: Hashable
    make: Callable[[Any], Any]
    part: "Part"
    number: int | None = None

    @property
    def key(self) -> Hashable:
        return ("made", self.kind, self.part.key)


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """A tree, taken apart.

    Attributes:
        tree: Its structure, down to arrays and to what is no array.
        leaves: Per leaf None for an array, or what stands there instead.
        key: What two trees have in common that differ in arrays only.
    """

    tree: Any
    leaves: tuple[Any, ...]
    key: Hashable

    @property
    def is_constant(self) -> bool:
        """Whether it is one leaf that is no array."""
        return jax.tree_util.treedef_is_leaf(self.tree) and isinstance(self.leaves[0], Constant)


@dataclasses.dataclass
class Walk:
    """What is met while trees are taken apart.

    Attributes:
        is_function: Whether this is the function itself: then an object is opened whatever its
            hash, and what libraries keep in it may be told by its identity.
        is_result: Whether this is a result: then what cannot be hashed is no error.
        nodes: The nodes of nnx.
        objects: By identity the objects that were opened, and kept alive.
        where: What to name in errors.
    """

    is_function: bool = False
    is_result: bool = False
    nodes: list[Any] = dataclasses.field(default_factory=list)
    objects: dict[int, Any] = dataclasses.field(default_factory=dict)
    where: str = ""

    def part(self, tree: Any, *, numbers_are_arrays: bool = True) -> tuple[Part, list[Any]]:
        """A tree taken apart, and its arrays, with a `Slot` for those of each node."""
        arrays: list[Any] = []
        return self._part(tree, numbers_are_arrays, arrays), arrays

    def _part(self, tree: Any, numbers: bool, arrays: list[Any]) -> Part:
        # Within a module of equinox and an object numbers are constants, as for `eqx.filter_jit`.
        is_leaf = is_taken if numbers else _modules.is_nnx
        leaves, structure = jax.tree.flatten(tree, is_leaf=is_leaf)
        kinds = []
        for number, leaf in enumerate(leaves):
            if isinstance(leaf, jax.Array) or self._is_array(leaf, numbers):
                arrays.append(leaf)
                kinds.append(None)
            else:
                kinds.append(self._leaf(leaf, numbers, structure, number, arrays))
        key = (structure, tuple(None if kind is None else kind.key for kind in kinds))
        return Part(structure, tuple(kinds), key)

    def _is_array(self, leaf: Any, numbers: bool) -> bool:
        return (numbers or type(leaf) not in _NUMBERS) and is_data(leaf)

    def _leaf(
        self, leaf: Any, numbers: bool, structure: Any, number: int, arrays: list[Any]
    ) -> Any:
        if type(leaf) in _NUMBERS:
            return Constant.of(leaf, typed(leaf))
        if _modules.is_nnx(leaf):
            self.nodes.append(leaf)
            arrays.append(Slot(len(self.nodes) - 1))
            return Node(len(self.nodes) - 1)
        if numbers and _modules.is_equinox(leaf):
            return Made("equinox", _same, self._part(leaf, False, arrays))
        for kind, (fields, make) in COMPOSITES.items():
            if isinstance(leaf, kind):
                return Made(kind, make, self._part(fields(leaf), False, arrays))
        if id(leaf) in self.objects:
            return Again([*self.objects].index(id(leaf)))
        if is_open(leaf, any_hash=self.is_function and not self.objects):
            self.objects[id(leaf)] = leaf
            own = len(self.objects) - 1
            kind, part = type(leaf), self._part(attributes_of(leaf), False, arrays)
            return Made(kind, functools.partial(_remade, kind), part, own)
        return Constant.of(leaf, self._key(leaf, structure, number))

    def _key(self, leaf: Any, structure: Any, number: int) -> Hashable:
        kind = type(leaf)
        if kind.__hash__ is object.__hash__:
            return _Identity(leaf)
        try:
            key = (kind, _FROZEN[kind](leaf)) if kind in _FROZEN else typed(leaf)
            hash(key)
        except TypeError as error:
            if self.is_result or (self.is_function and _is_of_library(kind)):
                return _Identity(leaf)
            (path, _), *_ = [
                pair
                for pair in jax.tree_util.tree_leaves_with_path(
                    jax.tree.unflatten(structure, range(structure.num_leaves))
                )
                if pair[1] == number
            ]
            told = f"{self.where}{jax.tree_util.keystr(path)}"
            raise ConfigError(
                f"{told} is a {kind.__name__}, which is neither an array nor hashable.",
                got=f"{leaf!r:.80}",
                why="what is no array is a constant of a graph, and constants are told apart by "
                "their hash and by ==",
                fix="make it hashable (a tuple, a frozen dataclass), make it a pytree "
                "(jax.tree_util.register_dataclass), or pass an array",
            ) from error
        return key


@dataclasses.dataclass(frozen=True)
class Slot:
    """Stands for the arrays of a node until all nodes are split."""

    number: int


class _Identity:
    """Tells one object from all others, and does not keep it alive if it can help it."""

    __slots__ = ("_hash", "value")

    def __init__(self, value: Any) -> None:
        self._hash = id(value)
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


def attributes_of(value: Any) -> dict[str, Any]:
    slots = {slot for base in type(value).__mro__ for slot in _slots(base)}
    held = {slot: getattr(value, slot) for slot in slots if hasattr(value, slot)}
    return {**held, **getattr(value, "__dict__", {})}


def _slots(base: type) -> set[str]:
    slots = base.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return set(names) - {"__dict__", "__weakref__"}


def _remade(kind: Any, attributes: Mapping[str, Any]) -> Any:
    copy = object.__new__(kind)
    assign(copy, attributes)
    return copy


def assign(value: Any, attributes: Mapping[str, Any]) -> None:
    for name, attribute in attributes.items():
        object.__setattr__(value, name, attribute)  # frozen or not


# What a function may be made of, beside objects: its fields, and how it is made of them.
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
# Values that change in place are told by what they hold when they are met.
_FROZEN: dict[type, Callable[[Any], Hashable]] = {
    set: lambda items: frozenset(map(typed, items)),
    bytearray: bytes,
    collections.deque: lambda items: tuple(map(typed, items)),
}
_LIBRARIES = {"jax", "jaxlib", "numpy", "flax", "equinox", "optax", "shapeexec"}
_LIBRARIES |= set(sys.stdlib_module_names) - {"__main__"}


def _is_of_library(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _LIBRARIES


def is_open(value: Any, *, any_hash: bool = False) -> bool:
    """Whether a value is an object of a plain class, which its attributes tell.

    It is not if it has a hash of its own, which tells it, unless `any_hash`. Objects of libraries
    are left alone.
    """
    kind = type(value)
    if isinstance(value, (type, types.ModuleType)) or kind.__new__ is not object.__new__:
        return False
    if _is_of_library(kind):
        return False
    return any_hash or kind.__hash__ in _BY_IDENTITY


_BY_IDENTITY = (object.__hash__, None)


def is_data(leaf: Any) -> bool:
    """Whether a leaf goes into a graph: an array, a number, a dim, or what JAX takes for one."""
    if is_array(leaf) or type(leaf) in _NUMBERS or hasattr(leaf, "__jax_array__"):
        return True
    if export.is_symbolic_dim(leaf):
        return True
    kind = type(leaf)
    if kind not in _is_known:
        try:
            jax.typeof(leaf)
        except TypeError:
            _is_known[kind] = False
        else:
            _is_known[kind] = True
    return _is_known[kind]


_is_known: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def is_taken(value: Any) -> bool:
    return _modules.is_nnx(value) or _modules.is_equinox(value)
