"""The arguments of one call, split into arrays, which a graph takes, and constants.

Modules, functions, strings and objects are split leaf by leaf: arrays are data, and all other
leaves are part of the graph's key. `_parts` splits one tree, and `_merge` puts it together again.
"""

import contextlib
import dataclasses
import itertools
import threading
import types
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from shapeexec import _compat
from shapeexec._errors import ConfigError
from shapeexec.execution import _modules, _objects
from shapeexec.execution._handle import Padded
from shapeexec.execution._is_data import is_data
from shapeexec.execution._merge import Merge, tree_of
from shapeexec.execution._options import name_of, typed
from shapeexec.execution._parts import COMPOSITES, Part, Slot, Walk, is_taken
from shapeexec.execution._result import as_result
from shapeexec.execution._settings import Settings
from shapeexec.execution._tracer_errors import add_names
from shapeexec.shape import _trees
from shapeexec.shape._shape import is_array

FUNCTION = "<function>"
"""The keyword of the arrays of the function itself: a module, or `self`."""

Place = int | str

Values = tuple[tuple[Place, Hashable], ...]
"""Pairs of a place and the key of the constant that stands there."""


class Static(NamedTuple):
    """The non-array parts that must match for two calls to share a trace.

    Attributes:
        values: The place and the value of each static argument.
        parts: The place and the key of each argument that holds more than arrays.
        nodes: The key of the nnx nodes; None if there are none.
        is_map: See `Call`.
    """

    values: Values
    parts: Values
    nodes: Hashable = None
    is_map: bool = False


@dataclasses.dataclass(slots=True, eq=False)  # not frozen: that takes 1.3 us instead of 0.3
class Call:
    """A call, taken apart. It is never changed; each hit makes one.

    Attributes:
        arrays: One entry per positional argument: the argument itself, or a tuple of its arrays if
            it was taken apart; None for a static argument.
        named: The keyword arguments, in the same form. The function's own arrays are at `FUNCTION`.
        fn: The function. If the function itself was split, use `parts` instead.
        parts: The arguments that were taken apart, without their arrays, by place.
        constants: The static arguments, by place.
        static: The non-array parts that must match for two calls to share a trace.
        nodes: The nodes of nnx; None if there are none.
        is_map: Whether this is one example of a map. The function must then change no node.
    """

    arrays: Sequence[Any]
    named: Mapping[str, Any]
    fn: Callable[..., Any]
    parts: Mapping[Place, Part]
    constants: Mapping[Place, Any]
    static: Static | Values
    nodes: _modules.Nodes | None = None
    is_map: bool = False

    def trees(self) -> tuple[list[Any], dict[str, Any]]:
        """The arrays in trees like the arguments, with None in the place of each other leaf."""
        args, kwargs = list(self.arrays), dict(self.named)
        counts = () if self.nodes is None else self.nodes.counts
        for place, part in self.parts.items():
            value = tree_of(part, iter(_at(args, kwargs, place=place)), counts=counts)
            _put(args, kwargs, place=place, value=value)
        return args, kwargs

    def operands(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and the keyword arrays as one pytree, as a graph takes them."""
        return tuple(self.arrays), dict(self.named)

    def replaced(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> "Call":
        """The call with other arrays."""
        return dataclasses.replace(self, arrays=arrays, named=named)

    def has_dtypes(self) -> bool:
        """Whether JAX has a dtype for each leaf that is passed as an array."""
        try:
            for leaf in _trees.leaves((self.arrays, self.named)):
                jax.typeof(leaf)
        except (TypeError, ValueError):  # ValueError: it has `__jax_array__`
            return False
        return True

    def functions(self) -> Iterator[tuple[str, types.FunctionType]]:
        """The plain functions among the constants, each with the path of its argument."""
        for place, value in self.constants.items():
            if isinstance(value, types.FunctionType):
                yield _path_of(place), value
        for place, part in self.parts.items():
            if place != FUNCTION:
                yield from ((_path_of(place), function) for function in part.functions())

    def as_example(self) -> "Call":
        """The call as one example of a map."""
        if self.nodes is None:
            return self
        assert isinstance(self.static, Static)
        return dataclasses.replace(self, is_map=True, static=self.static._replace(is_map=True))

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
        tree = _trees.structure(self.operands())
        count, nodes = len(self.arrays), self.nodes
        shell = self._without_objects((None,) * count, dict.fromkeys(self.named))

        def fn(*flat: Any) -> Any:
            arrays, named = _trees.unflatten(tree, flat)
            with _inside(), contextlib.nullcontext() if nodes is None else _modules.updating():
                try:
                    return shell._run(arrays, named)
                except jax.errors.JAXTypeError as error:
                    add_names(error, shell.fn, tree=tree, apart=shell.parts.keys())
                    raise

        return fn

    def _run(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if not self.parts:
            args = [self.constants.get(i, x) for i, x in enumerate(arrays)]
            constants = {k: v for k, v in self.constants.items() if isinstance(k, str)}
            return as_result(self.fn(*args, **named, **constants), [])
        held = [_at(arrays, named, place=place) for place in self.parts]
        merge = Merge.of(self.nodes, self.parts.values(), arrays=held)
        args, kwargs = list(arrays), dict(named)
        for place, value in self.constants.items():
            _put(args, kwargs, place=place, value=value)
        for place, part in self.parts.items():
            value = merge.whole(part, iter(_at(arrays, named, place=place)))
            _put(args, kwargs, place=place, value=value)
        fn = kwargs.pop(FUNCTION, (self.fn,))[0]
        before = _modules.state(merge.nodes) if self.is_map else None
        out = fn(*args, **kwargs)
        merge.check_unchanged()
        if before is None:
            return as_result(out, merge.nodes)
        if not _modules.is_same_state(before, _modules.state(merge.nodes)):
            raise ConfigError(
                "map: the function changes a module of nnx.",
                got=", ".join(type(node).__name__ for node in merge.nodes),
                why="the examples run in parallel, so none sees the change of another",
                fix="pass random keys and statistics as arguments, one per example, or call the "
                "Exec itself",
            )
        return as_result(out, [])


_running = threading.local()


@contextlib.contextmanager
def _inside() -> Generator[None]:
    outer = is_running()
    _running.value = True
    try:
        yield
    finally:
        _running.value = outer


def _path_of(place: Place) -> str:
    return f"args[{place}]" if isinstance(place, int) else f"kwargs[{place!r}]"


def is_running() -> bool:
    """Whether the function of an Exec is being traced for it in this thread."""
    return getattr(_running, "value", False)


def _gone(*_: Any, **__: Any) -> Any:
    # A bug of ours: each call replaces it with its own function.
    raise AssertionError("the function is among the parts of its call")


def _put(args: list[Any], kwargs: dict[str, Any], *, place: Place, value: Any) -> None:
    if isinstance(place, int):
        args[place] = value
    else:
        kwargs[place] = value


def _filled(arrays: Iterable[Any], nodes: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """The arrays, with the arrays of each node in the place of its slot."""
    own = (nodes[x.number] if isinstance(x, Slot) else (x,) for x in arrays)
    return tuple(itertools.chain.from_iterable(own))


def places(fn: Callable[..., Any], args: Sequence[Any], *, kwargs: Mapping[str, Any]) -> set[Place]:
    """The places of arguments that hold more than arrays; looks at each leaf."""
    found: set[Place] = {FUNCTION} if has_parts(fn) else set()
    found |= {i for i, arg in enumerate(args) if _holds_more(arg)}
    return found | {name for name, arg in kwargs.items() if _holds_more(arg)}


def has_parts(fn: Callable[..., Any]) -> bool:
    """Whether a function holds values that may change: a method, a module, an object."""
    return isinstance(fn, tuple(COMPOSITES)) or is_taken(fn) or _objects.can_open(fn)


def _holds_more(argument: Any) -> bool:
    if is_array(argument) and not _modules.is_nnx(argument):
        return False
    leaves = _trees.leaves(argument, is_leaf=is_taken)
    return any(is_taken(leaf) or not is_data(leaf) for leaf in leaves)


def taken(settings: Settings, args: Sequence[Any], *, kwargs: Mapping[str, Any]) -> Call:
    """A call of an Exec with these settings, taken apart after a look at each leaf."""
    return take(settings, args, kwargs=kwargs, at=places(settings.fn, args, kwargs=kwargs))


def take(
    settings: Settings, args: Sequence[Any], *, kwargs: Mapping[str, Any], at: Iterable[Place]
) -> Call:
    """Take a call apart.

    Args:
        settings: The function, and which arguments are constants as a whole.
        args: The positional arguments.
        kwargs: The others.
        at: The places of arguments that hold more than arrays; see `places`. Other arguments are
            taken as they are, without a look at their leaves.

    Raises:
        ConfigError: A constant cannot be hashed.
    """
    fn = settings.fn
    static_argnums, static_argnames = settings.static_argnums, settings.static_argnames
    constants: dict[Place, Any] = {}
    if static_argnums or static_argnames:
        arrays = [None if i in static_argnums else arg for i, arg in enumerate(args)]
        named = {k: v for k, v in kwargs.items() if k not in static_argnames}
        constants = {i: args[i] for i in static_argnums if i < len(args)}
        constants |= {k: kwargs[k] for k in static_argnames if k in kwargs}
    elif not at:  # most hits return here
        return Call(args, kwargs, fn, {}, constants, ())
    else:
        arrays, named = list(args), dict(kwargs)
    static = tuple((place, typed(value)) for place, value in constants.items())
    call = Call(arrays, named, fn, {}, constants, static)
    return _with_parts(call, args, kwargs=kwargs, static=static, at=at) if at else call


def _with_parts(
    call: Call,
    args: Sequence[Any],
    *,
    kwargs: Mapping[str, Any],
    static: Values,
    at: Iterable[Place],
) -> Call:
    """The call with the arguments at the places `at` taken apart."""
    arrays, named = list(call.arrays), dict(call.named)
    fn, constants = call.fn, call.constants
    walk = Walk()
    parts: dict[Place, Part] = {}
    for place in _in_order(at, len(args), kwargs=kwargs):
        if place in constants:
            continue
        if place == FUNCTION:
            part, taken = walk.function(fn, where=name_of(fn))
        else:
            part, taken = walk.part(_at(args, kwargs, place=place), where=_path_of(place))
        # The arrays of a function that holds no more are constants of its trace; handles cannot be.
        if any(part.leaves) or (place == FUNCTION and any(type(x) is Padded for x in taken)):
            parts[place] = part
            _put(arrays, named, place=place, value=tuple(taken))
    if not parts:
        return call
    keys = tuple((place, part.key) for place, part in parts.items())
    if not walk.nodes:
        return Call(arrays, named, fn, parts, constants, Static(static, keys))
    nodes, own = _modules.split(walk.nodes)
    for place in parts:
        _put(arrays, named, place=place, value=_filled(_at(arrays, named, place=place), own))
    return Call(arrays, named, fn, parts, constants, Static(static, keys, nodes.key), nodes)


def _at(args: Sequence[Any], kwargs: Mapping[str, Any], *, place: Place) -> Any:
    return args[place] if isinstance(place, int) else kwargs[place]


def _in_order(at: Iterable[Place], count: int, *, kwargs: Mapping[str, Any]) -> list[Place]:
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
