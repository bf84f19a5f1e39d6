"""The arguments of one call, taken apart into arrays, which go into a graph, and constants.

Modules, functions, texts and objects are split leaf by leaf: arrays are data, all else is part of
what names a graph, compared by equality. What is an array and what is none is decided here alone.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax import export

from shapeexec import _compat
from shapeexec._errors import ConfigError
from shapeexec.execution import _modules
from shapeexec.execution._options import name_of, typed
from shapeexec.shape._shape import is_array

FUNCTION = "<function>"
"""Where the arrays of the function itself stand among the keywords: of a module, or of `self`."""

Place = int | str
_NUMBERS = (bool, int, float, complex)


@dataclasses.dataclass(frozen=True, eq=False)
class _Constant:
    """A leaf that is no array. One that its identity tells is not kept alive."""

    held: Any
    key: Hashable

    @classmethod
    def of(cls, value: Any, key: Hashable) -> "_Constant":
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
class _Node:
    """A node of nnx, by its number."""

    number: int

    @property
    def key(self) -> Hashable:
        return ("nnx", self.number)


@dataclasses.dataclass(frozen=True)
class _Again:
    """An object that was met before, by its number."""

    number: int

    @property
    def key(self) -> Hashable:
        return ("again", self.number)


@dataclasses.dataclass(frozen=True, eq=False)
class _Made:
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
        return jax.tree_util.treedef_is_leaf(self.tree) and isinstance(self.leaves[0], _Constant)


@dataclasses.dataclass
class _Walk:
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
        """A tree taken apart, and its arrays, with a `_Slot` for those of each node."""
        arrays: list[Any] = []
        return self._part(tree, numbers_are_arrays, arrays), arrays

    def _part(self, tree: Any, numbers: bool, arrays: list[Any]) -> Part:
        # Within a module of equinox and an object numbers are constants, as for `eqx.filter_jit`.
        is_leaf = _is_taken if numbers else _modules.is_nnx
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
            return _Constant.of(leaf, typed(leaf))
        if _modules.is_nnx(leaf):
            self.nodes.append(leaf)
            arrays.append(_Slot(len(self.nodes) - 1))
            return _Node(len(self.nodes) - 1)
        if numbers and _modules.is_equinox(leaf):
            return _Made("equinox", _same, self._part(leaf, False, arrays))
        for kind, (fields, make) in _COMPOSITES.items():
            if isinstance(leaf, kind):
                return _Made(kind, make, self._part(fields(leaf), False, arrays))
        if id(leaf) in self.objects:
            return _Again([*self.objects].index(id(leaf)))
        if _is_open(leaf, any_hash=self.is_function and not self.objects):
            self.objects[id(leaf)] = leaf
            own = len(self.objects) - 1
            kind, part = type(leaf), self._part(_attributes(leaf), False, arrays)
            return _Made(kind, functools.partial(_remade, kind), part, own)
        return _Constant.of(leaf, self._key(leaf, structure, number))

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
class _Slot:
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


def _attributes(value: Any) -> dict[str, Any]:
    slots = {slot for base in type(value).__mro__ for slot in _slots(base)}
    held = {slot: getattr(value, slot) for slot in slots if hasattr(value, slot)}
    return {**held, **getattr(value, "__dict__", {})}


def _slots(base: type) -> set[str]:
    slots = base.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return set(names) - {"__dict__", "__weakref__"}


def _remade(kind: Any, attributes: Mapping[str, Any]) -> Any:
    copy = object.__new__(kind)
    _assign(copy, attributes)
    return copy


def _assign(value: Any, attributes: Mapping[str, Any]) -> None:
    for name, attribute in attributes.items():
        object.__setattr__(value, name, attribute)  # frozen or not


# What a function may be made of, beside objects: its fields, and how it is made of them.
_COMPOSITES: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
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


def _is_open(value: Any, *, any_hash: bool = False) -> bool:
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


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """A call, taken apart.

    Attributes:
        arrays: Per positional argument its arrays: itself, or where it is taken apart a tuple of
            them; None for one that is static.
        named: The same by keyword, and those of the function itself as `FUNCTION`.
        fn: The function; of one that is taken apart nothing is used but what `parts` say.
        parts: What else there is, by place.
        constants: The static arguments by place.
        static: What two calls have in common that may share traces, but for their arrays.
        nodes: The nodes of nnx; None if there are none.
        is_map: Whether this is one example of many: then no node may change.
    """

    arrays: Sequence[Any]
    named: Mapping[str, Any]
    fn: Callable[..., Any]
    parts: Mapping[Place, Part]
    constants: Mapping[Place, Any]
    static: Hashable
    nodes: _modules.Nodes | None = None
    is_map: bool = False

    def trees(self) -> tuple[list[Any], dict[str, Any]]:
        """The arrays in trees like the arguments, with None in the place of what is no array."""
        args, kwargs = list(self.arrays), dict(self.named)
        counts = () if self.nodes is None else self.nodes.counts
        for place, part in self.parts.items():
            _put(args, kwargs, place, _tree(part, iter(_at(args, kwargs, place)), counts))
        return args, kwargs

    def replaced(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> "Call":
        """The call with other arrays."""
        return dataclasses.replace(self, arrays=arrays, named=named)

    def remembered(self) -> "Call":
        """The call with shapes for arrays, which keeps neither data nor modules alive."""
        arrays, named = jax.tree.map(_as_struct, (list(self.arrays), dict(self.named)))
        return self._without_objects(arrays, named)

    def _without_objects(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> "Call":
        nodes = None if self.nodes is None else self.nodes.forgotten()
        fn = _gone if FUNCTION in self.parts else self.fn
        return dataclasses.replace(self, arrays=arrays, named=named, nodes=nodes, fn=fn)

    def pure(self) -> Callable[..., Any]:
        """The function of the flat arrays of such calls; it changes nothing.

        It returns a tree of arrays, or a `Result` where there is more to it.
        """
        tree = jax.tree.structure((tuple(self.arrays), dict(self.named)))
        count, nodes = len(self.arrays), self.nodes
        shell = self._without_objects((None,) * count, dict.fromkeys(self.named))

        def fn(*flat: Any) -> Any:
            arrays, named = jax.tree.unflatten(tree, flat)
            with _inside(), contextlib.nullcontext() if nodes is None else _modules.updating():
                return shell._run(arrays, named)

        return fn

    def _run(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if not self.parts:
            args = [self.constants.get(i, x) for i, x in enumerate(arrays)]
            constants = {k: v for k, v in self.constants.items() if isinstance(k, str)}
            return _result(self.fn(*args, **named, **constants), [])
        merge = _Merge(self.nodes)
        merge.collect([_at(arrays, named, place) for place in self.parts], self.parts.values())
        args, kwargs = list(arrays), dict(named)
        for place, value in self.constants.items():
            _put(args, kwargs, place, value)
        for place, part in self.parts.items():
            _put(args, kwargs, place, merge.whole(part, iter(_at(arrays, named, place))))
        fn = kwargs.pop(FUNCTION, (self.fn,))[0]
        before = _modules.state(merge.nodes) if self.is_map else None
        out = fn(*args, **kwargs)
        merge.check_unchanged()
        if before is None:
            return _result(out, merge.nodes)
        if not _modules.is_same_state(before, _modules.state(merge.nodes)):
            raise ConfigError(
                "map: the function changes a module of nnx.",
                got=", ".join(type(node).__name__ for node in merge.nodes),
                why="the examples run side by side, so no one's change is there for the next",
                fix="pass random keys and statistics as arguments, one per example, or call the "
                "Exec itself",
            )
        return _result(out, [])


_running = threading.local()


@contextlib.contextmanager
def _inside() -> Iterator[None]:
    outer = is_running()
    _running.value = True
    try:
        yield
    finally:
        _running.value = outer


def is_running() -> bool:
    """Whether the function of an Exec is being traced for it in this thread."""
    return getattr(_running, "value", False)


def _gone(*_: Any, **__: Any) -> Any:
    raise AssertionError("the function is among the parts of its call")


def _put(args: list[Any], kwargs: dict[str, Any], place: Place, value: Any) -> None:
    if isinstance(place, int):
        args[place] = value
    else:
        kwargs[place] = value


@dataclasses.dataclass
class _Merge:
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
        if isinstance(leaf, _Constant):
            return leaf.value
        if isinstance(leaf, _Node):
            if self.split is not None:  # its arrays stand among the others
                _next(arrays, self.split.counts[leaf.number])
            return self.nodes[leaf.number]
        if isinstance(leaf, _Again):
            return self.objects[leaf.number]
        if leaf.number is None:
            return leaf.make(self.whole(leaf.part, arrays))
        made = self.objects[leaf.number] = leaf.make({})
        attributes = self.whole(leaf.part, arrays)
        _assign(made, attributes)
        self.given[leaf.number] = jax.tree.flatten(attributes)
        return made

    def check_unchanged(self) -> None:
        """Check that the function has assigned to no attribute of an object.

        Raises:
            ConfigError: It has, and outside nothing would be seen of it.
        """
        for number, (leaves, tree) in self.given.items():
            attributes = _attributes(self.objects[number])
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


def _tree(part: Part, arrays: Iterator[Any], counts: Sequence[int]) -> Any:
    """The arrays of a part in a tree like its own."""
    return jax.tree.unflatten(part.tree, [_subtree(kind, arrays, counts) for kind in part.leaves])


def _subtree(kind: Any, arrays: Iterator[Any], counts: Sequence[int]) -> Any:
    if kind is None:
        return next(arrays)
    if isinstance(kind, _Node):
        return _next(arrays, counts[kind.number])
    return _tree(kind.part, arrays, counts) if isinstance(kind, _Made) else None


def _collect(
    part: Part, arrays: Iterator[Any], counts: Sequence[int], found: dict[int, Any]
) -> None:
    for kind in part.leaves:
        if kind is None:
            next(arrays)
        elif isinstance(kind, _Node):
            found[kind.number] = _next(arrays, counts[kind.number])
        elif isinstance(kind, _Made):
            _collect(kind.part, arrays, counts, found)


class Result:
    """A result that holds more than arrays, as a graph returns it: a pytree of its arrays.

    Args:
        arrays: Its arrays, and those of each nnx node.
        part: What else there is.
        nodes: What the function has made of the nodes of its arguments, and those of its result.
    """

    def __init__(self, arrays: Any, part: Part, nodes: _modules.Nodes | None) -> None:
        self.arrays, self.part, self.nodes = arrays, part, nodes

    def whole(self, call: Call | None) -> Any:
        """The result; the nodes of the call's arguments become what the function has made of them.

        Args:
            call: The call; None: its arguments stay as they are.
        """
        own, arrays = self.arrays
        merge = _Merge(None)
        if self.nodes is not None:
            given = call.nodes if call is not None else None
            given = _modules.Nodes((), None, ()) if given is None else given
            merge.nodes = given.update(self.nodes, arrays)
        return merge.whole(self.part, iter(own))

    @property
    def key(self) -> Hashable:
        """What is the same for two results that differ in arrays only."""
        return (self.part.key, None if self.nodes is None else self.nodes.key)


@dataclasses.dataclass(frozen=True, eq=False)
class _Rest:
    """All of a result but its arrays."""

    result: Result

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rest) and self.result.key == other.result.key

    def __hash__(self) -> int:
        return hash(self.result.key)


jax.tree_util.register_pytree_node(
    Result,
    lambda r: ((r.arrays,), _Rest(Result(None, r.part, r.nodes))),
    lambda rest, kids: Result(kids[0], rest.result.part, rest.result.nodes),
)


def _result(out: Any, nodes: list[Any]) -> Any:
    """What a function returned, as a graph can return it."""
    walk = _Walk(is_result=True, nodes=list(nodes))
    leaves = jax.tree.leaves(out, is_leaf=_is_taken)
    if not nodes and not any(map(_is_taken, leaves)) and all(map(is_data, leaves)):
        return out
    part, arrays = walk.part(out)
    if not walk.nodes:
        return Result((arrays, []), part, None)
    split, own = _modules.split(walk.nodes, is_inner=True) if nodes else _new_nodes(walk.nodes)
    arrays = [x for x in arrays if not isinstance(x, _Slot)]
    return Result((arrays, own), part, split.forgotten())


def _new_nodes(nodes: list[Any]) -> tuple[_modules.Nodes, list[Any]]:
    with _modules.updating():
        return _modules.split(nodes, is_inner=True)


def _is_taken(value: Any) -> bool:
    return _modules.is_nnx(value) or _modules.is_equinox(value)


def _filled(arrays: Iterable[Any], nodes: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """Arrays with those of nodes in the place of their slots."""
    own = (nodes[x.number] if isinstance(x, _Slot) else (x,) for x in arrays)
    return tuple(itertools.chain.from_iterable(own))


def places(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> set[Place]:
    """Where arguments are that hold more than arrays; looks at each leaf."""
    found: set[Place] = {FUNCTION} if has_parts(fn) else set()
    found |= {i for i, arg in enumerate(args) if _holds_more(arg)}
    return found | {name for name, arg in kwargs.items() if _holds_more(arg)}


def has_parts(fn: Callable[..., Any]) -> bool:
    """Whether a function is made of what may change: a method, a module, an object."""
    return isinstance(fn, tuple(_COMPOSITES)) or _is_taken(fn) or _is_open(fn, any_hash=True)


def _holds_more(argument: Any) -> bool:
    if is_array(argument):
        return False
    leaves = jax.tree.leaves(argument, is_leaf=_is_taken)
    return any(_is_taken(leaf) or not is_data(leaf) for leaf in leaves)


def take(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    static_argnums: Sequence[int],
    static_argnames: Sequence[str],
    at: Iterable[Place],
    is_map: bool = False,
) -> Call:
    """Take a call apart.

    Args:
        fn: The function.
        args: The positional arguments.
        kwargs: The others.
        static_argnums: Positions of arguments that are constants as a whole.
        static_argnames: Keywords of such.
        at: Where there are arguments that hold more than arrays, see `places`. Others are taken as
            they are, unseen.
        is_map: See `Call`.

    Raises:
        ConfigError: A constant cannot be hashed.
    """
    arrays = [None if i in static_argnums else arg for i, arg in enumerate(args)]
    named = {k: v for k, v in kwargs.items() if k not in static_argnames}
    constants: dict[Place, Any] = {}
    if static_argnums or static_argnames:
        constants = {i: args[i] for i in static_argnums if i < len(args)}
        constants |= {k: kwargs[k] for k in static_argnames if k in kwargs}
    static = tuple((place, typed(value)) for place, value in constants.items())
    if not at:
        return Call(arrays, named, fn, {}, constants, static)
    walk, parts = _Walk(), {}
    for place in _in_order(at, len(args), kwargs):
        if place in constants:
            continue
        walk.is_function = place == FUNCTION
        walk.where = f"args[{place}]" if isinstance(place, int) else f"kwargs[{place!r}]"
        walk.where = name_of(fn) if walk.is_function else walk.where
        value = (fn,) if walk.is_function else _at(args, kwargs, place)
        part, taken = walk.part(value, numbers_are_arrays=not walk.is_function)
        if any(part.leaves):
            parts[place] = part
            _put(arrays, named, place, tuple(taken))
    if not parts:
        return Call(arrays, named, fn, {}, constants, static)
    nodes = None
    if walk.nodes:
        nodes, own = _modules.split(walk.nodes)
        for place in parts:
            _put(arrays, named, place, _filled(_at(arrays, named, place), own))
    told = tuple((place, part.key) for place, part in parts.items())
    if nodes is None:
        return Call(arrays, named, fn, parts, constants, (static, told))
    static = (static, told, nodes.key, is_map)
    return Call(arrays, named, fn, parts, constants, static, nodes, is_map)


def _at(args: Sequence[Any], kwargs: Mapping[str, Any], place: Place) -> Any:
    return args[place] if isinstance(place, int) else kwargs[place]


def _in_order(at: Iterable[Place], count: int, kwargs: Mapping[str, Any]) -> list[Place]:
    wanted = set(at)
    found: list[Place] = [i for i in range(count) if i in wanted]
    found += [name for name in sorted(kwargs) if name in wanted]
    return found + [FUNCTION] * (FUNCTION in wanted)


def _as_struct(leaf: Any) -> Any:
    """The shape of an array, so that remembering a call keeps no data alive."""
    if not hasattr(leaf, "shape"):
        return leaf
    weak_type = getattr(leaf, "weak_type", False)
    sharding = _compat.committed_sharding(leaf)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=weak_type)
