"""The spellings of specs, normalized to strings, `Shape`s and None.

A tuple of dims becomes a string, and each `UNKNOWN` a symbol that is named after its place. How a
spec fits arguments is not known here.
"""

import dataclasses
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard, cast

import jax
import numpy as np

from shapeexec._code import code, tuple_of
from shapeexec._errors import SpecError
from shapeexec.shape import _trees, _unknown
from shapeexec.shape._dim import Dim, is_unknown, substitute
from shapeexec.shape._pattern import Spec, make_spec, parse_spec
from shapeexec.shape._shape import Shape
from shapeexec.shape._unknown import UNKNOWN, Unknown

SpecTree = Any  # a pytree prefix whose leaves are a string, a tuple of dims, a `Shape` or None


def is_one_spec(value: Any) -> bool:
    """Whether a value is a tuple of the dims of one array: `(BATCH, SEQ_LEN, 4)`.

    Its entries are ints, `Dim`s, `UNKNOWN`, `...` and None, but not None only: `(None, None)` means
    two arguments without a spec. Any other tuple is a pytree of specs.
    """
    if type(value) is not tuple:
        return False
    entries = cast(tuple[Any, ...], value)
    return any(entry is not None for entry in entries) and all(
        entry is None or is_dim(entry) for entry in entries
    )


def is_dim(value: Any) -> bool:
    """Whether a value in a tuple is a dim. A string is not: it is a spec of its own."""
    if isinstance(value, Dim | Unknown) or value is ... or jax.export.is_symbolic_dim(value):
        return True
    try:
        operator.index(value)
    except TypeError:
        return False
    is_array = hasattr(value, "shape") and not isinstance(value, np.integer)
    return not isinstance(value, bool) and not is_array


def is_spec_leaf(value: Any) -> bool:
    """Whether a value in a tree of specs is one spec, and not a container of specs."""
    return value is None or isinstance(value, str | Shape) or is_struct(value) or is_one_spec(value)


def is_struct(value: Any) -> bool:
    """Whether a value is a `jax.ShapeDtypeStruct`."""
    return isinstance(value, jax.ShapeDtypeStruct)


def is_size(value: Any) -> TypeGuard[int]:
    """Whether a value is an integer, NumPy's included."""
    return isinstance(value, numbers.Integral)


def as_sequence(in_shapes: Any) -> tuple[SpecTree, ...]:
    """The specs by position. A single spec that is not a string may be given without a tuple.

    Args:
        in_shapes: A tuple or a list of specs, or the dims of the only argument, not all ints.

    Raises:
        SpecError: It is a string, a shape, a dim, or no specs at all.
    """
    if is_one_spec(in_shapes) and not all(map(is_size, in_shapes)):
        return (in_shapes,)  # ints only are more likely positions of axes, and are refused
    if isinstance(in_shapes, tuple | list):
        return tuple(cast(Sequence[SpecTree], in_shapes))
    source = f"({code(in_shapes)},)" if is_dim(in_shapes) else _source(in_shapes)
    raise SpecError(
        f"in_shapes={in_shapes!r} is not a sequence of specs.",
        path="in_shapes",
        fix=f"one spec for each positional argument: in_shapes=({source},)",
    )


def normal_by_position(in_shapes: Any) -> tuple[SpecTree, ...]:
    """Normalize specs by position: each leaf becomes a string, a `Shape` or None.

    Raises:
        SpecError: One is malformed, or `in_shapes` is not a sequence of specs.
    """
    specs = as_sequence(in_shapes)
    _check_entries(specs, "in_shapes", option="in_shapes")
    return tuple(normal(tree, f"in_shapes[{i}]", place=i) for i, tree in enumerate(specs))


def normal_by_name(kwarg_shapes: Mapping[str, Any]) -> dict[str, SpecTree]:
    """Normalize specs by keyword; see `normal_by_position`."""
    named = kwarg_shapes.items()
    return {name: normal(tree, f"kwarg_shapes[{name!r}]", place=name) for name, tree in named}


def normal(tree: SpecTree, path: str, *, place: object) -> SpecTree:
    """Normalize the specs of one argument. A normal form is left as it is.

    Args:
        tree: The specs.
        path: Their path for errors: `in_shapes[0]`.
        place: The argument's position or keyword, after which unknown sizes are named.

    Raises:
        SpecError: One is malformed.
    """

    def one(keys: tuple[Any, ...], leaf: Any) -> str | Shape | None:
        return _normal_leaf(leaf, path + _trees.keystr(keys), place=_unknown.place_of(place, *keys))

    _check_containers(tree, path)
    return _trees.map_with_path(one, tree, is_leaf=is_spec_leaf)


def _normal_leaf(leaf: Any, where: str, *, place: str) -> str | Shape | None:
    if is_struct(leaf):
        leaf = _read_at(where, leaf, reader=Shape.of)
    if isinstance(leaf, Shape):
        names = _unknown.placed(leaf.symbols, place)
        dims = (substitute(dim, names) for dim in leaf.dims) if names else leaf.dims
        return Shape(leaf.dtype, *dims)
    spec = read(leaf, where)
    if spec is None:
        return None
    holds_unknown = any(isinstance(dim, Unknown) for dim in spec.before + spec.after)
    if isinstance(leaf, str) and not holds_unknown:
        return leaf  # as the user wrote it, for errors
    return str(spec.named(place))


def read(leaf: Any, where: str) -> Spec | None:
    """Parse one leaf of a tree of specs; None: static.

    Args:
        leaf: A string, a tuple of dims, a `Shape` or None.
        where: Its path for errors: `in_shapes[0]['tokens']`.

    Raises:
        SpecError: It is malformed, or not a spec.
    """
    if leaf is None:
        return None
    if isinstance(leaf, Shape):
        return dataclasses.replace(make_spec(leaf.dims), dtype=leaf.dtype)
    if isinstance(leaf, str):
        return _read_at(where, leaf, reader=parse_spec)
    if is_one_spec(leaf):
        spec = _read_at(where, leaf, reader=make_spec)
        _check_changes(leaf, spec, where=where)
        return spec
    raise SpecError(
        f"{where} is {leaf!r}, which is not a spec.",
        path=where,
        why=_WHY,
        fix=f"the dims of an array in one tuple, {_one_array([leaf])} for one axis; or {_FORMS}"
        if is_dim(leaf)
        else _FORMS,
    )


def _read_at(where: str, leaf: Any, *, reader: Callable[[Any], Any]) -> Any:
    try:
        return reader(leaf)
    except SpecError as error:
        raise SpecError(
            error.what, path=where, where=where, got=error.got, why=error.why, fix=error.fix
        ) from None


def _check_changes(dims: tuple[Any, ...], spec: Spec, *, where: str) -> None:
    """Refuse `(None, 784)`: elsewhere None is a size that changes, here it is a static one.

    The call would run, but compile a graph for every size.
    """
    is_dynamic = any(isinstance(dim, Dim | Unknown) for dim in spec.before + spec.after)
    if None not in dims or is_dynamic:
        return
    raise SpecError(
        f"{where} is {dims!r}, in which no size may change.",
        path=where,
        why="None in a spec is an axis that is static, as None for an argument is",
        fix=f"{_one_array(dims)} if None is to be any size; None in place of the "
        "whole tuple if the argument is static",
    )


# Advice

_FORMS = 'a string such as "b, 512", a tuple of dims, a Shape, or None for what is static'
_WHY = "a list, or a tuple of specs, mirrors one in the argument; a tuple of dims alone is one spec"
_NAMES = ("b", "s")  # of axes 0 and 1, if they have none
_MOST_AXES = 4


@code.register
def _(value: jax.ShapeDtypeStruct) -> str | None:
    return code(Shape.of(value))


@code.register(type(jax.export.symbolic_shape("s")[0]))
def _(value: Any) -> str | None:
    return code(Dim(value))


def axis_name(axis: int) -> str:
    """A symbol for the size of an axis; a negative axis counts from the end."""
    return _NAMES[axis] if 0 <= axis < len(_NAMES) else f"d{axis}".replace("-", "_")


def text_of_axes(named: Mapping[int, str]) -> str:
    """The spec of an array with names for some axes: `"b, _, t, ..."`."""
    front = {axis: name for axis, name in named.items() if axis >= 0}
    back = {axis: name for axis, name in named.items() if axis < 0}
    entries = [front.get(axis, "_") for axis in range(max(front, default=-1) + 1)]
    entries += ["..."]
    entries += [back.get(axis, "_") for axis in range(min(back, default=0), 0)]
    return ", ".join(entries)


def _check_containers(tree: SpecTree, path: str) -> None:
    """Check each list and tuple in a tree of specs; see `_check_entries`."""
    if is_spec_leaf(tree):
        return
    items: Iterable[tuple[Any, SpecTree]] = ()
    if isinstance(tree, Mapping):
        items = cast(Mapping[Any, SpecTree], tree).items()
    elif isinstance(tree, list | tuple):
        entries = cast(Sequence[SpecTree], tree)
        _check_entries(entries, path)
        items = enumerate(entries)
    for key, entry in items:
        _check_containers(entry, f"{path}[{key!r}]")


def _check_entries(entries: Sequence[Any], path: str, *, option: str | None = None) -> None:
    """Refuse dims in a list or beside texts: they may be of one array or of several.

    Args:
        entries: Specs, and dims in place of specs.
        path: Their path for errors.
        option: The option that the fix sets; None: the fix replaces the value at the path.
    """
    first = next((index for index, entry in enumerate(entries) if is_dim(entry)), None)
    if first is None or not all(is_dim(entry) or _may_be_spec(entry) for entry in entries):
        return
    ways_out = [
        (_axes_at(entries), "for axes at these positions"),
        (_one_array(entries), "for one array"),
    ]
    front = "" if option is None else f"{option}="
    fixes = [
        f"{front}{source if option is None else tuple_of([source])} {meant}"
        for source, meant in ways_out
        if source is not None
    ]
    each = _one_axis_each(entries)
    if each is not None:
        fixes += [f"{front}{each} for one axis of each array"]
    raise SpecError(
        f"{path}[{first}] is {entries[first]!r}, which is not a spec.",
        path=f"{path}[{first}]",
        why=_WHY,
        fix="; ".join(fixes) or _FORMS,
    )


def _may_be_spec(value: Any) -> bool:
    return is_spec_leaf(value) or isinstance(value, list | tuple | Mapping)


def _axes_at(entries: Sequence[Any]) -> str | None:
    """The source of a spec of an array whose axes at these positions change size."""
    if not all(map(is_size, entries)) or len(set(entries)) < len(entries):
        return None
    positions = [int(axis) for axis in entries]
    if max(map(abs, positions)) >= _MOST_AXES or min(positions) < 0 <= max(positions):
        return None  # more likely sizes; -1 is one that changes
    return code(text_of_axes({axis: axis_name(axis) for axis in positions}))


def _one_axis_each(entries: Sequence[Any]) -> str | None:
    """The source of specs for arrays with one axis each, one dim per array."""
    if None in entries or all(map(is_size, entries)):
        return None
    apart = [_one_array([entry]) if is_dim(entry) else code(entry) for entry in entries]
    if isinstance(entries, tuple) or None in apart:
        return tuple_of(apart)
    return f"[{', '.join(map(str, apart))}]"


def _one_array(dims: Sequence[Any]) -> str | None:
    """The source of a tuple of dims, which may be spelled as elsewhere; None: they are not dims."""
    own = [_as_dim(dim) for dim in dims]
    if not all(dim is None or is_dim(dim) for dim in own):
        return None
    changes = any(isinstance(dim, Dim | Unknown) for dim in own)
    return tuple_of(code(UNKNOWN if dim is None and not changes else dim) for dim in own)


def _as_dim(dim: Any) -> Any:
    """A dim in our spelling: -1 becomes a size that changes, a string a symbol."""
    if is_unknown(dim) or (is_size(dim) and dim == -1):
        return UNKNOWN
    if not isinstance(dim, str):
        return dim
    if dim.strip() in ("_", "..."):
        return None if dim.strip() == "_" else ...
    try:
        return Dim(dim)
    except SpecError:
        return dim


def _source(value: Any) -> str:
    return repr(value) if isinstance(value, str) else code(value) or repr(value)
