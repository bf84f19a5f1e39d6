"""The key of a graph: its parts, and their strings.

A cache hit compares these parts, so each is a tuple, whose hash is fast. `_store` keeps graphs
under their keys.
"""

import re
import types
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple

from shapeexec import _compat
from shapeexec.execution._monitor import GRAPH_PREFIX
from shapeexec.execution._placement import Placement, sharding_text
from shapeexec.execution._split import FUNCTION, Place, Static, Values
from shapeexec.shape import _trees
from shapeexec.shape._shape import dtype_name

_LONGEST = 40
_TREE = "the tree of "


class Base(NamedTuple):
    """The part of the key that calls with a common trace share.

    Attributes:
        tree: The structure of (positional, keyword) arguments.
        dims: Per leaf its dims as strings, symbolic where its spec has symbols.
        dtypes: Per leaf its dtype, and whether it promotes like a Python scalar.
        static: The leaves that are not arrays.
        config: JAX's configuration, as its own caches know it.
    """

    tree: Any
    dims: tuple[tuple[str, ...], ...]
    dtypes: tuple[tuple[Any, bool], ...]
    static: Static | Values
    config: tuple[Any, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """The path of each leaf: `args[0]['tokens']`."""
        indices = _trees.unflatten(self.tree, range(self.tree.num_leaves))
        found = _trees.leaves_with_path(indices)
        return tuple(_path(path) for path, _ in found)

    @property
    def leaves(self) -> tuple[str, ...]:
        """The type of each leaf: `f32[b,s,4]`."""
        return tuple(
            f"{dtype_name(dtype)}[{','.join(dims)}]{' weak' if is_weak else ''}"
            for dims, (dtype, is_weak) in zip(self.dims, self.dtypes, strict=True)
        )

    @property
    def is_ragged(self) -> tuple[bool, ...]:
        """Per leaf whether its spec names a symbol, exact ones too."""
        return tuple(not all(map(_is_number, dims)) for dims in self.dims)

    @property
    def constants(self) -> dict[str, tuple[Hashable, str]]:
        """By place the key of each constant, and its value as a string."""
        parts = self.static_parts
        return {place: parts[place] for place in parts if not place.startswith(_TREE)}

    @property
    def static_parts(self) -> dict[str, tuple[Hashable, str]]:
        """The constants, and the trees that hold them, each as `the tree of args[0]`."""
        static = self.static
        parts = static.parts if isinstance(static, Static) else ()
        values = static.values if isinstance(static, Static) else static
        found = {_place(place): (value, _value(value)) for place, value in values}
        for place, key in parts:
            found |= {path: (held, text) for path, held, text in _constants(key, _place(place))}
        if isinstance(static, Static) and static.nodes is not None:
            found["nnx"] = (static.nodes, "modules of nnx")
        return found

    @property
    def settings(self) -> dict[str, Any]:
        """JAX's configuration, by the names of its settings."""
        return _compat.named_settings(self.config)


class Kind(NamedTuple):
    """The part of the key that two calls must share to run in one graph; buckets aside.

    Attributes:
        base: See `Base`.
        exact: (symbol, size) of each symbol that runs at its exact size.
        trace: The number of the trace: each outcome of guards has its own.
        placement: The shardings of the arguments.
        zero_results: Whether the padding of results holds zeros.
    """

    base: Base
    exact: tuple[tuple[str, int], ...]
    trace: int
    placement: Placement
    zero_results: bool = False

    @property
    def shardings(self) -> dict[str, Any]:
        """By place the sharding of each argument; None if the argument is not committed."""
        placement = self.placement or (None,) * len(self.base.dims)
        return dict(zip(self.base.paths, placement, strict=True))

    @property
    def sharding_texts(self) -> dict[str, str]:
        """By place the sharding of each committed argument, as a string."""
        return {p: sharding_text(s) for p, s in self.shardings.items() if s is not None}


class Bucketed(NamedTuple):
    """The key of the graph of a call.

    Attributes:
        kind: See `Kind`.
        ranges: Per padded symbol its least size and its bucket.
    """

    kind: "Key"
    ranges: tuple[tuple[str, tuple[int, int]], ...]


class Mapped(NamedTuple):
    """The key of a graph of `Exec.map`.

    Attributes:
        specs: The specs of the map; None: the specs of the Exec.
        reduce: `"sum"`, or None.
        kind: See `Kind`.
        examples: How many examples it takes.
        ranges: See `Bucketed`.
    """

    specs: Hashable
    reduce: str | None
    kind: "Key"
    examples: int
    ranges: tuple[tuple[str, tuple[int, int]], ...]


class Key:
    """The key of a graph. It stores its hash, since each cache hit asks for it.

    It prints its parts: `s<=8: args[0] f32[s,4]; args[1]='fast'; trace 0`.

    Args:
        parts: What two calls must have in common to share a graph.
    """

    __slots__ = ("_hash", "parts")

    def __init__(self, parts: Hashable) -> None:
        self.parts = parts
        self._hash = hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def without_placement(self) -> "Key":
        """The key without the shardings of the arguments."""
        parts = self.parts
        if isinstance(parts, Kind):
            return Key(parts._replace(placement=())) if parts.placement else self
        assert isinstance(parts, Bucketed | Mapped)
        return Key(parts._replace(kind=parts.kind.without_placement()))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Key) and self.parts == other.parts)

    def __str__(self) -> str:
        parts = self.parts
        kind = kind_of(self)
        buckets = [f"{symbol}={size} exact" for symbol, size in kind.exact]
        if isinstance(parts, Mapped):
            buckets.append(f"map of {parts.examples}" + (", summed" if parts.reduce else ""))
        if isinstance(parts, Bucketed | Mapped):
            buckets += [f"{symbol}<={bucket}" for symbol, (_, bucket) in parts.ranges]
        base = kind.base
        leaves = [f"{path} {leaf}" for path, leaf in zip(base.paths, base.leaves, strict=True)]
        leaves += [f"{place}={text}" for place, (_, text) in base.constants.items()]
        leaves += [f"{place} on {text}" for place, text in kind.sharding_texts.items()]
        leaves += ["results padded with zeros"] * kind.zero_results
        return f"{', '.join(buckets) or 'no sizes'}: {'; '.join([*leaves, f'trace {kind.trace}'])}"

    def __repr__(self) -> str:
        return f"Key({self})"


def kind_of(key: Key) -> Kind:
    """The parts that a graph's key shares with other buckets."""
    parts = key.parts
    kind = parts.kind.parts if isinstance(parts, Bucketed | Mapped) else parts
    assert isinstance(kind, Kind)
    return kind


def _is_number(dim: str) -> bool:
    return dim.lstrip("-").isdigit()


def _place(place: Place) -> str:
    if place == FUNCTION:
        return "fn"
    return place if isinstance(place, str) else f"args[{place}]"


def _path(path: tuple[Any, ...]) -> str:
    first, second, *rest = path
    if not first.idx:
        return f"args{_trees.keystr((second, *rest))}"
    return f"{_place(second.key)}{_trees.keystr(tuple(rest))}"


def _constants(key: Any, place: str) -> Iterator[tuple[str, Hashable, str]]:
    """Each constant in a `Part`'s key: where it is, its key and its text."""
    structure, leaves = key
    indices = _trees.unflatten(structure, range(structure.num_leaves))
    for path, number in _trees.leaves_with_path(indices):
        leaf, where = leaves[number], f"{place}{_trees.keystr(path)}"
        match leaf:
            case None:
                continue
            case ("made", kind, part):
                yield where, kind, kind if isinstance(kind, str) else _value(kind)
                yield from _constants(part, where)
            case ("again" | "nnx", int(index)):
                yield where, leaf, f"{leaf[0]} {index}"
            case _:
                yield where, leaf, _value(leaf)
    yield f"{_TREE}{place}", structure, _clipped(str(structure))


def _value(key: Any) -> str:
    """The text of a value as `typed` keys it, or of one that is compared by its identity."""
    match key:
        case (type() as kind, items) if kind is tuple:
            return _clipped(f"({', '.join(map(_value, items))}{',' * (len(items) == 1)})")
        case (type() as kind, items) if kind is frozenset:
            return _clipped(f"{{{', '.join(sorted(map(_value, items)))}}}")
        case (type() as kind, str(value)) if issubclass(kind, float):
            return repr(float.fromhex(value))
        case (type(), value, *_):
            return _named(value)
        case type():  # before the next: a class may have a property `value`
            return _named(key)
        case _ if hasattr(key, "value"):
            value = key.value()
            return "an object that is gone" if value is None else _named(value)
        case _:
            return _named(key)


def _named(value: Any) -> str:
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        return value.__qualname__
    text = repr(value)
    return f"a {type(value).__qualname__}" if " object at 0x" in text else _clipped(text)


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def graph_name(fn: str, sizes: str) -> str:
    """The name of a graph in profiles and in HLO: `shapeexec_score_b4_s64`.

    Args:
        fn: The name of the function.
        sizes: The buckets as a string, see `shown_sizes`.
    """
    own = fn.rpartition(".")[2]
    return GRAPH_PREFIX + re.sub(r"\W+", "_", f"{own} {sizes.replace('=', '')}").strip("_")


def shown_sizes(sizes: Mapping[str, int], exact: Mapping[str, int], *, examples: int | None) -> str:
    """Buckets as a string: `b=4, s=64`; `s=7 exact`; `map of 8: s=64`."""
    text = ", ".join(f"{s}={n}{' exact' if s in exact else ''}" for s, n in sizes.items())
    text = text or "no sizes"
    return text if examples is None else f"map of {examples}: {text}"
