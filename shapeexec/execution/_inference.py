"""Specs that are inferred from the calls of an Exec without `in_shapes`.

`shape._inferred` derives the specs from shapes. Specs never narrow: the specs of a generation hold
for all calls before it, and the graphs of older generations stay.
"""

import dataclasses
import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from shapeexec._code import code
from shapeexec._errors import SpecError
from shapeexec.execution._bounded_table import BoundedTable
from shapeexec.execution._settings import Settings
from shapeexec.execution._split import FUNCTION, Call
from shapeexec.shape import _trees
from shapeexec.shape._annotated import text_at
from shapeexec.shape._binding import BoundSpec
from shapeexec.shape._inferred import Inferred, first, trees_of, widen
from shapeexec.shape._pattern import parse_spec
from shapeexec.shape._shape import is_array
from shapeexec.shape._spec import (
    compile_spec,
    default_in_shapes,
    default_kwarg_shapes,
    spec_symbols,
)
from shapeexec.shape._unknown import entry, place_of

_MOST_STRUCTURES = 1024  # of arguments; the specs of one that is dropped are inferred anew
_MOST_GENERATIONS = 8  # an older one is asked for its graphs at each new size


@dataclasses.dataclass(frozen=True)
class Specs:
    """The specs of the arguments of an Exec, given or inferred; `print` shows their source.

    Attributes:
        in_shapes: One per positional argument, as `Exec` takes them; None: there was no call yet.
        kwarg_shapes: By keyword, likewise.
        others: The specs for calls whose arguments have other structures or ranks.

    Example:
        >>> run = sx.Exec(lambda w, x: x @ w)
        >>> for size in (3, 5, 6):
        ...     _ = run(np.ones((4, 2), np.float32), np.ones((size, 4), np.float32))
        >>> print(run.specs)
        in_shapes=(None, "b, _")
    """

    in_shapes: tuple[Any, ...] | None
    kwarg_shapes: Mapping[str, Any] | None = None
    others: tuple["Specs", ...] = ()

    def __str__(self) -> str:
        own = f"in_shapes={_source(self.in_shapes)}"
        if self.kwarg_shapes:
            own += f", kwarg_shapes={_source(self.kwarg_shapes)}"
        return "\n".join([own, *(f"# other arguments: {other}" for other in self.others)])


def _source(specs: Any) -> str:
    return code(specs) or repr(specs)


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Which leaves of a structure of arguments have inferred specs.

    Attributes:
        given: The specs of the other leaves.
        open: The numbers of the leaves with inferred specs.
        places: The places of these leaves.
        annotated: The places of leaves whose specs are annotations.
    """

    given: BoundSpec
    open: tuple[int, ...]
    places: tuple[str, ...]
    annotated: tuple[str, ...]

    def observed(self, leaves: Sequence[Any], known: Mapping[Hashable, "_Known"]) -> "_SeenCall":
        """The shapes of a call, and the specs inferred with it.

        Raises:
            SpecError: An argument contradicts its spec.
        """
        own = (leaves[number] for number in self.open)
        shapes = [tuple(leaf.shape) if is_array(leaf) else () for leaf in own]
        key = tuple(zip(self.places, map(len, shapes), strict=True))
        names = sorted(self.given.symbols)
        sizes = self._sizes(leaves)
        shapes.append(tuple(sizes[name] for name in names))
        before = known.get(key)
        if before is None:
            return _SeenCall(key, shapes, None, first(self.places, shapes, given=names))
        return _SeenCall(key, shapes, before, widen(before.newest, shapes))

    @property
    def trees(self) -> frozenset[int]:
        """The positions of arguments with annotations."""
        return _positions(self.annotated)

    def _sizes(self, leaves: Sequence[Any]) -> Mapping[str, int]:
        try:
            return self.given.sizes(self.given.shapes(leaves))
        except SpecError as error:
            if not self.annotated:
                raise
            raise SpecError(
                error.what,
                path=error.path,
                got=error.got,
                why="without in_shapes the annotations of the function are its specs",
                fix=f"{error.fix}; or correct the annotation, or give in_shapes=",
            ) from None

    def bound(self, inferred: Inferred) -> BoundSpec:
        """The specs of all leaves."""
        specs = list(self.given.specs)
        for number, spec in zip(self.open, inferred.specs, strict=True):
            specs[number] = spec
        return BoundSpec(self.given.structure, tuple(specs))

    def texts(self, inferred: Inferred) -> list[str | None]:
        """The specs of all leaves, as strings."""
        texts = [None if spec is None else str(spec) for spec in self.given.specs]
        for number, text in zip(self.open, inferred.texts, strict=True):
            texts[number] = text
        return texts


@dataclasses.dataclass(frozen=True)
class _Known:
    """The inferred specs of one structure of arguments.

    Attributes:
        generations: The specs over time, the oldest first; the last is in force.
        structure: The structure of the arguments; None: the specs come from another process.
    """

    generations: tuple[Inferred, ...]
    structure: Any = None

    @property
    def newest(self) -> Inferred:
        """The specs in force."""
        return self.generations[-1]


class Inference:
    """The specs that the calls of an Exec show; safe to use from many threads.

    Args:
        settings: The settings of the Exec; its `found` is known from the start.

    Attributes:
        trees: The positions of arguments that are trees of arrays (or annotated), and in which an
            array has had several sizes. It only grows.
    """

    def __init__(self, settings: Settings) -> None:
        self._named, self._annotated = settings.kwarg_shapes, settings.annotated
        self._lock = threading.Lock()
        # These are read without the lock, so they are replaced as a whole.
        self._known: dict[Hashable, _Known] = {own.leaves: _Known((own,)) for own in settings.found}
        self._layouts: BoundedTable[_Layout] = BoundedTable()
        self._specs: BoundedTable[BoundSpec] = BoundedTable()
        self.trees = frozenset[int]().union(*map(_changing, settings.found))

    @property
    def found(self) -> tuple[Inferred, ...]:
        """The specs in force, for each structure of arguments."""
        with self._lock:
            return tuple(known.newest for known in self._known.values())

    @property
    def specs(self) -> Specs:
        """See `Exec.specs`."""
        with self._lock:
            known = [one for one in self._known.values() if one.structure is not None]
        found = [self._source(one.structure, one.newest) for one in known]
        return dataclasses.replace(found[0], others=tuple(found[1:])) if found else Specs(None)

    def newest(self, structure: Any, leaves: Sequence[Any], *, is_seen: bool) -> BoundSpec:
        """The specs of a call.

        Args:
            structure: The structure of (positional, keyword) arguments.
            leaves: Their leaves.
            is_seen: Whether later calls infer their specs from this one too.
        """
        layout = self._layout(structure, leaves)
        with self._lock:
            call = layout.observed(leaves, self._known)
            # Even if the call is not seen: it may run in a graph that a warm-up has made.
            self.trees |= _changing(call.newest) | layout.trees
            if is_seen:
                others = self._known if len(self._known) < _MOST_STRUCTURES else {}
                known = _then(call.before, call.newest, structure=structure)
                self._known = {**others, call.key: known}
        return self._bound(layout, call.newest)

    def earlier(self, structure: Any, leaves: Sequence[Any]) -> list[BoundSpec]:
        """The specs of older generations that admit a call, the oldest first."""
        layout = self._layout(structure, leaves)
        call = layout.observed(leaves, self._known)
        older = () if call.before is None else call.before.generations[:-1]
        return [self._bound(layout, own) for own in older if own.admits(call.shapes)]

    def _layout(self, structure: Any, leaves: Sequence[Any]) -> _Layout:
        layout = self._layouts.get(structure)
        if layout is None:
            args, kwargs = _trees.unflatten(structure, leaves)
            named = self._named or {}
            own = compile_spec((None,) * len(args), args, kwarg_shapes=named, kwargs=kwargs)
            specs, places, numbers = list(own.specs), list[str](), list[int]()
            annotated = list[str]()
            for number, (path, _) in enumerate(_trees.leaves_with_path((args, kwargs))):
                is_named, place, *inner = (entry(key) for key in path)
                if place == FUNCTION or (is_named and self._named is not None):
                    continue
                text, at = text_at(self._annotated.get(place), inner), place_of(*path[1:])
                if text is None:
                    numbers.append(number)
                    places.append(at)
                else:
                    specs[number] = parse_spec(text).named(at)
                    annotated.append(at)
            given = BoundSpec(structure, tuple(specs))
            layout = _Layout(given, tuple(numbers), tuple(places), tuple(annotated))
            self._layouts[structure] = layout
        return layout

    def _bound(self, layout: _Layout, inferred: Inferred) -> BoundSpec:
        known = (inferred.leaves, inferred.given, inferred.symbols, inferred.batch)
        key = (layout.given.structure, *known)
        bound = self._specs.get(key)
        if bound is None:
            bound = self._specs[key] = layout.bound(inferred)
        return bound

    def shown(self, structure: Any, leaves: Sequence[Any]) -> Specs:
        """The specs of a call, to be printed; later calls do not depend on it."""
        call = self._layout(structure, leaves).observed(leaves, self._known)
        return self._source(structure, call.newest)

    def _source(self, structure: Any, inferred: Inferred) -> Specs:
        layout = self._layout(structure, range(structure.num_leaves))
        in_shapes, named = trees_of(structure, layout.texts(inferred))
        found = {name: tree for name, tree in named.items() if tree is not None}
        return Specs(in_shapes, (found or None) if self._named is None else self._named)


class _SeenCall(NamedTuple):
    """A call as inference sees it.

    Attributes:
        key: The places and ranks of its arrays.
        shapes: The shapes of its arrays, and the sizes of given symbols.
        before: The specs inferred before; None: the call is the first of its structure.
        newest: The specs inferred with this call.
    """

    key: Hashable
    shapes: Sequence[tuple[int, ...]]
    before: _Known | None
    newest: Inferred


def _then(known: _Known | None, newest: Inferred, *, structure: Any) -> _Known:
    """The specs after a call; a new generation only if the specs have changed."""
    if known is None:
        return _Known((newest,), structure)
    is_same = newest.symbols == known.newest.symbols
    before = known.generations[:-1] if is_same else known.generations
    return _Known((*before[-_MOST_GENERATIONS:], newest), structure)


def _changing(inferred: Inferred) -> frozenset[int]:
    """The positions of arguments with an axis that has had several sizes."""
    changing = (group.axes for group in inferred.groups if len(group.sizes) > 1)
    leaves = {leaf for axes in changing for leaf, _ in axes if leaf < len(inferred.leaves)}
    return _positions(inferred.leaves[leaf][0] for leaf in leaves)


def _positions(places: Iterable[str]) -> frozenset[int]:
    """The positions of arguments, by the places of arrays in them; keywords have none."""
    arguments = {place.partition("_")[0] for place in places}
    return frozenset(int(argument) for argument in arguments if argument.isdecimal())


def with_specs(settings: Settings, call: Call) -> Settings:
    """The settings with specs for calls like this one, if they have none.

    The specs are inferred; if no axis is known to change, axis 0 of each argument that is an array
    is `b`, so that the cost model has a symbol.
    """
    if settings.in_shapes is not None:
        return settings
    args, kwargs = call.trees()
    leaves, structure = _trees.flatten((tuple(args), kwargs))
    specs = Inference(settings).shown(structure, leaves)
    in_shapes, named = specs.in_shapes, specs.kwarg_shapes
    if not spec_symbols(in_shapes, named):
        own = {name: arg for name, arg in kwargs.items() if name != FUNCTION}
        in_shapes = default_in_shapes(args)
        named = default_kwarg_shapes(own) if settings.kwarg_shapes is None else named
    return dataclasses.replace(settings, in_shapes=in_shapes, kwarg_shapes=named)
