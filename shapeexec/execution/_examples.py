"""The arguments of `Exec.map`: which are shared, and which are lists of examples.

`_map` plans and runs them. Inside another trace `map_plainly` runs them in a Python loop instead.
"""

import dataclasses
import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec._errors import ConfigError, SpecError
from shapeexec.execution import _split
from shapeexec.execution._exactness import known_rules
from shapeexec.execution._handle import cut_all
from shapeexec.execution._narrow import is_listed
from shapeexec.execution._placement import may_stand_elsewhere, placement_of
from shapeexec.execution._settings import Settings
from shapeexec.execution._signature import of_array
from shapeexec.execution._split import Call, Place
from shapeexec.shape import _trees
from shapeexec.shape._spec import default_in_shapes, default_kwarg_shapes

Reduce = Literal["sum"] | None


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which leaves of the arguments differ between examples.

    Attributes:
        is_mapped: For each leaf of the arguments, without static ones, whether it differs.
        places: For each argument that is a list of examples its position or keyword, the tree of
            one example, and the index of its first leaf.
    """

    is_mapped: tuple[bool, ...]
    places: tuple[tuple[Place, Any, int], ...]


@dataclasses.dataclass(frozen=True)
class Examples:
    """The arguments of a call of `Exec.map`.

    Attributes:
        settings: The settings of the Exec, with the default specs filled in.
        args: The positional arguments, each a list of examples or a value that all examples share.
        kwargs: The keyword arguments, in the same form.
        positions: The positions of the lists of examples.
        names: The keywords of the lists of examples.
        count: How many examples there are.
        at: Places of arguments that are known to hold more than arrays.
        has_default_specs: Whether default specs were filled in.
        calls: The examples that were taken apart so far, by number.
    """

    settings: Settings
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    positions: frozenset[int]
    names: frozenset[str]
    count: int
    at: frozenset[Place]
    has_default_specs: bool = False
    calls: dict[int, Call] = dataclasses.field(default_factory=dict[int, Call], compare=False)

    def complete(self) -> "Examples":
        """The examples with all places in `at`, after a look at each leaf of each example."""
        found: set[Place] = set(self.at)
        for number in range(self.count):
            args, kwargs = self.arguments(number)
            found |= _split.places(self.settings.fn, args, kwargs=kwargs)
        return dataclasses.replace(self, at=frozenset(found), calls={})

    def holds_only_arrays(self, number: int) -> bool:
        """Whether the arguments of an example hold only arrays outside of the places in `at`."""
        args, kwargs = self.arguments(number)
        return _split.places(self.settings.fn, args, kwargs=kwargs) <= self.at

    def one(self, number: int) -> Call:
        """The call with one example."""
        if number not in self.calls:
            args, kwargs = self.arguments(number)
            call = _split.take(self.settings, args, kwargs=kwargs, at=self.at)
            self.calls[number] = call.as_example()
        return self.calls[number]

    def arguments(self, number: int) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of one example."""
        args = [arg[number] if i in self.positions else arg for i, arg in enumerate(self.args)]
        kwargs = {k: arg[number] if k in self.names else arg for k, arg in self.kwargs.items()}
        return args, kwargs

    def layout(self, number: int) -> Layout:
        """Which leaves of the arguments of an example differ between examples."""
        call = self.one(number)
        places: list[Place] = [*range(len(call.arrays)), *sorted(call.named)]  # as JAX orders keys
        is_mapped: list[bool] = []
        mapped: list[tuple[Place, Any, int]] = []
        for place in places:
            is_own = place in self.positions or place in self.names
            tree = _trees.structure(arrays_at(call, place))
            if is_own:
                mapped.append((place, tree, len(is_mapped)))
            is_mapped += [is_own] * tree.num_leaves
        return Layout(tuple(is_mapped), tuple(mapped))

    def signatures(self) -> list[Hashable]:
        """The signature of each example: shapes and dtypes of its own arrays, and its constants.

        None if a constant cannot be hashed. With several devices a signature holds the shardings of
        shared arguments too; JAX's fast path checks their shapes and dtypes at each run.
        """
        numbers, own = range(self.count), [*sorted(self.positions), *sorted(self.names)]
        is_alike = not self.at.intersection(own)
        calls = [self.one(0)] * self.count if is_alike else [self.one(i) for i in numbers]
        try:
            hash(tuple(call.static for call in calls[:1] if is_alike))
        except TypeError:  # planning raises the error
            return [None] * self.count
        names = (known_rules(), len(self.args), *self.kwargs, *own)
        if may_stand_elsewhere():
            names += placement_of(_trees.leaves((self.args, dict(self.kwargs))))
        mapped = [self.of(place) for place in own]
        return [
            (names, call.static, *map(_signature, leaves))
            for call, leaves in zip(calls, zip(*mapped, strict=True), strict=True)
        ]

    def of(self, place: Place) -> list[Any]:
        """The arrays of a list of examples."""
        if place not in self.at:
            return self.args[place] if isinstance(place, int) else self.kwargs[place]
        return [arrays_at(self.one(number), place) for number in range(self.count)]


def arrays_at(call: Call, place: Place) -> Any:
    """The arrays of one argument."""
    return call.arrays[place] if isinstance(place, int) else call.named[place]


def _signature(example: Any) -> Hashable:
    if hasattr(example, "shape"):
        return _leaf_signature(example)
    leaves, tree = _trees.flatten(example)
    return (tree, *map(_leaf_signature, leaves))


def _leaf_signature(leaf: object) -> Hashable:
    if not hasattr(leaf, "shape"):
        return type(leaf)
    return of_array(leaf)


def take_examples(
    settings: Settings,
    args: Sequence[Any],
    *,
    kwargs: Mapping[str, Any],
    reduce: Reduce,
    at: frozenset[Place] = frozenset(),
) -> Examples:
    """Separate the lists of examples from the shared arguments.

    An argument whose spec is None is shared. Without specs lists and tuples are the examples, and
    each example has the spec that it would have alone.

    Raises:
        SpecError: No argument is a list of examples, an argument with a spec is not a list, or the
            lists are not equally long, or are empty although a sum is wanted.
    """
    positions, names = _lists(settings, args, kwargs=kwargs)
    has_default_specs = settings.in_shapes is None
    if has_default_specs:
        settings = _with_default_specs(settings, args, kwargs=kwargs)
    lists = {f"args[{i}]": args[i] for i in sorted(positions)}
    lists |= {f"kwargs[{k!r}]": kwargs[k] for k in sorted(names)}
    if not lists:
        raise SpecError(
            "map: no argument is a list of examples.",
            got=", ".join(type(arg).__name__ for arg in (*args, *kwargs.values()))
            or "no arguments",
            fix="pass a list for each argument that differs between examples, and give it a spec "
            'that is not None, such as in_shapes=("s",)',
        )
    count = _common_length(lists, reduce=reduce)
    return Examples(
        settings,
        tuple(args),
        dict(kwargs),
        positions=positions,
        names=names,
        count=count,
        at=at,
        has_default_specs=has_default_specs,
    )


def _lists(
    settings: Settings, args: Sequence[Any], *, kwargs: Mapping[str, Any]
) -> tuple[frozenset[int], frozenset[str]]:
    """The positions and the keywords of arguments that are lists of examples."""
    if settings.in_shapes is None:
        positions = frozenset(i for i, arg in enumerate(args) if is_listed(arg))
    else:
        positions = frozenset(i for i, spec in enumerate(settings.in_shapes) if spec is not None)
    if settings.kwarg_shapes is not None:
        names = frozenset(k for k in kwargs if settings.kwarg_shapes.get(k) is not None)
    elif settings.in_shapes is None:
        names = frozenset(k for k, arg in kwargs.items() if is_listed(arg))
    else:
        names = frozenset[str]()
    given = frozenset(i for i, arg in enumerate(args) if arg is not None)
    positions = given & positions - frozenset(settings.static_argnums)
    names -= frozenset(settings.static_argnames)
    return positions, names


def _common_length(lists: Mapping[str, Any], *, reduce: Reduce) -> int:
    """How many examples there are; `lists` are by path."""
    for path, argument in lists.items():
        if not is_listed(argument):
            raise SpecError(
                f"map: {path} has a spec but is a {type(argument).__name__}, not a list.",
                path=path,
                fix="pass a list with one entry per example, or make the spec None: what all share",
            )
    counts = {path: len(argument) for path, argument in lists.items()}
    (first, count), *others = counts.items()
    for path, other in others:
        if other != count:
            raise SpecError(
                f"map: {first} has {count} examples, but {path} has {other}.",
                path=path,
                fix="pass lists of one length, one entry per example",
            )
    if reduce == "sum" and not count:
        raise SpecError(
            'map: reduce="sum" of no examples.',
            path=" and ".join(lists),
            got=f"no entries in {' and '.join(lists)}",
            why="the shape of a result follows from an example",
            fix="pass at least one example",
        )
    return count


def _with_default_specs(
    settings: Settings, args: Sequence[Any], *, kwargs: Mapping[str, Any]
) -> Settings:
    """The settings with the specs that `ex(*one_example)` would have; shared arguments get None."""
    firsts = [arg[0] if is_listed(arg) and arg else None for arg in args]
    named = {k: arg[0] if is_listed(arg) and arg else None for k, arg in kwargs.items()}
    given = settings.kwarg_shapes
    return dataclasses.replace(
        settings,
        in_shapes=default_in_shapes(firsts),
        kwarg_shapes=default_kwarg_shapes(named) if given is None else given,
    )


def map_plainly(examples: Examples, reduce: Reduce) -> Any:
    """The reference for `map`: a Python loop over the plain function."""
    results: list[Any] = []
    for number in range(examples.count):
        args, kwargs = examples.arguments(number)
        args, kwargs = cut_all(args, kwargs)
        results.append(examples.settings.fn(*args, **kwargs))
    return results if reduce is None else functools.reduce(add, results)


def add(result: Any, other: Any) -> Any:
    """The leafwise sum of two results, in their dtypes."""
    return jax.tree.map(_add, result, other)


def _add(x: Any, y: Any) -> Any:
    if getattr(x, "dtype", None) == jax.dtypes.float0:
        return np.zeros(np.shape(x), jax.dtypes.float0)
    return jnp.add(x, y)


def check_reduce(reduce: Any) -> None:
    """Check the option `reduce`.

    Raises:
        ConfigError: It is neither "sum" nor None.
    """
    if reduce not in (None, "sum"):
        raise ConfigError(
            f"map: reduce={reduce!r} is not known.",
            option="reduce",
            fix='reduce="sum", divided by their number for a mean, or None for a list',
        )
