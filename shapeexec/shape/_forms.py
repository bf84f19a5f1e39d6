"""The forms in which people write specs, brought to one: texts, `Shape`s and None.

A tuple of dims becomes a text, and each `UNKNOWN` a symbol that is called after its place. How a
spec fits arguments is not known here.
"""

import dataclasses
import numbers
import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import jax
import numpy as np

from shapeexec._code import code, tuple_of
from shapeexec._errors import SpecError
from shapeexec.shape import _unknown
from shapeexec.shape._dim import UNKNOWN, Dim, Unknown, is_unknown, substitute
from shapeexec.shape._pattern import Spec, make_spec, parse_spec
from shapeexec.shape._shape import Shape

SpecTree = Any  # a pytree prefix whose leaves are a text, a tuple of dims, a `Shape` or None


def is_one_spec(value: Any) -> bool:
    """Whether a tuple lists the dims of one array: `(BATCH, SEQ_LEN, 4)`.

    It does if it holds ints, `Dim`s, `UNKNOWN`, `...` and None, and not None alone: `(None, None)`
    stands for two arguments without a spec. Any other tuple is a pytree of specs.
    """
    if type(value) is not tuple:
        return False
    return any(entry is not None for entry in value) and all(
        entry is None or is_dim(entry) for entry in value
    )


def is_dim(value: Any) -> bool:
    """Whether a value is a dim where it stands in a tuple; a text is not, but a spec of its own."""
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
    """Whether a value is a shape of JAX's."""
    return isinstance(value, jax.ShapeDtypeStruct)


def is_size(value: Any) -> TypeGuard[int]:
    """Whether a value is an integer, NumPy's included."""
    return isinstance(value, numbers.Integral)


def as_sequence(in_shapes: Any) -> tuple[SpecTree, ...]:
    """The specs by position, of which one that is no text may stand alone.

    Args:
        in_shapes: A tuple or a list of specs, or the dims of the only argument, not all ints.

    Raises:
        SpecError: It is a text, a shape, a dim, or no specs at all.
    """
    if is_one_spec(in_shapes) and not all(map(is_size, in_shapes)):
        return (in_shapes,)  # ints alone are more likely positions of axes, and are refused
    if isinstance(in_shapes, tuple | list):
        return tuple(in_shapes)
    told = f"({code(in_shapes)},)" if is_dim(in_shapes) else _source(in_shapes)
    raise SpecError(
        f"in_shapes={in_shapes!r} is not a sequence of specs.",
        fix=f"one spec for each positional argument: in_shapes=({told},)",
    )


def normal_by_position(in_shapes: Any) -> tuple[SpecTree, ...]:
    """Specs by position in their normal form: each leaf is a text, a `Shape` or None.

    Raises:
        SpecError: One is malformed, or `in_shapes` is no sequence of specs.
    """
    specs = as_sequence(in_shapes)
    _check_entries(specs, "in_shapes", "in_shapes")
    return tuple(normal(tree, f"in_shapes[{i}]", i) for i, tree in enumerate(specs))


def normal_by_name(kwarg_shapes: Mapping[str, Any]) -> dict[str, SpecTree]:
    """Specs by keyword in their normal form, as `normal_by_position` gives them."""
    named = kwarg_shapes.items()
    return {name: normal(tree, f"kwarg_shapes[{name!r}]", name) for name, tree in named}


def normal(tree: SpecTree, path: str, place: object) -> SpecTree:
    """The specs of one argument in their normal form, which is its own.

    Args:
        tree: The specs.
        path: Where they stand, for errors: `in_shapes[0]`.
        place: The argument's position or keyword, after which unknown sizes are called.

    Raises:
        SpecError: One is malformed.
    """

    def one(keys: tuple[Any, ...], leaf: Any) -> str | Shape | None:
        where = path + jax.tree_util.keystr(keys)
        return _normal_leaf(leaf, where, _unknown.place_of(place, *keys))

    _check_containers(tree, path)
    return jax.tree_util.tree_map_with_path(one, tree, is_leaf=is_spec_leaf)


def _normal_leaf(leaf: Any, where: str, place: str) -> str | Shape | None:
    if is_struct(leaf):
        leaf = _read_at(where, Shape.of, leaf)
    if isinstance(leaf, Shape):
        names = _unknown.placed(leaf.symbols, place)
        dims = (substitute(dim, names) for dim in leaf.dims) if names else leaf.dims
        return Shape(leaf.dtype, *dims)
    spec = read(leaf, where)
    if spec is None:
        return None
    holds_unknown = any(isinstance(dim, Unknown) for dim in spec.before + spec.after)
    if isinstance(leaf, str) and not holds_unknown:
        return leaf  # as people wrote it, for errors to show
    return str(spec.named(place))


def read(leaf: Any, where: str) -> Spec | None:
    """The spec that a leaf of a tree of specs is; None: static.

    Args:
        leaf: A text, a tuple of dims, a `Shape` or None.
        where: Where it stands, for errors: `in_shapes[0]['tokens']`.

    Raises:
        SpecError: It is malformed, or no spec.
    """
    if leaf is None:
        return None
    if isinstance(leaf, Shape):
        return dataclasses.replace(make_spec(leaf.dims), dtype=leaf.dtype)
    if isinstance(leaf, str):
        return _read_at(where, parse_spec, leaf)
    if is_one_spec(leaf):
        spec = _read_at(where, make_spec, leaf)
        _check_changes(leaf, spec, where)
        return spec
    raise SpecError(
        f"{where} is {leaf!r}, which is not a spec.",
        why=_WHY,
        fix=f"the dims of an array in one tuple, {_one_array([leaf])} for one axis; or {_FORMS}"
        if is_dim(leaf)
        else _FORMS,
    )


def _read_at(where: str, read_one: Any, leaf: Any) -> Any:
    try:
        return read_one(leaf)
    except SpecError as error:
        told = {"got": error.got, "why": error.why, "fix": error.fix}
        raise SpecError(error.what, where=where, **told) from None


def _check_changes(dims: tuple[Any, ...], spec: Spec, where: str) -> None:
    """Refuse `(None, 784)`: who writes it means a size that changes, and None is one that does not.

    It would run, and compile a graph for every size.
    """
    is_dynamic = any(isinstance(dim, Dim | Unknown) for dim in spec.before + spec.after)
    if None not in dims or is_dynamic:
        return
    raise SpecError(
        f"{where} is {dims!r}, of which no size may change.",
        why="None in a spec is an axis that is static, as None for an argument is",
        fix=f"{_one_array(dims)} if None is to be any size; None in place of the "
        "whole tuple if the argument is static",
    )


# Advice

_FORMS = 'a text such as "b, 512", a tuple of dims, a Shape, or None for what is static'
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
    """A name for the size of an axis, counted from the end if it is negative."""
    return _NAMES[axis] if 0 <= axis < len(_NAMES) else f"d{axis}".replace("-", "_")


def text_of_axes(named: Mapping[int, str]) -> str:
    """The spec of an array of which some axes have a name: `"b, _, t, ..."`."""
    front = {axis: name for axis, name in named.items() if axis >= 0}
    back = {axis: name for axis, name in named.items() if axis < 0}
    entries = [front.get(axis, "_") for axis in range(max(front, default=-1) + 1)]
    entries += ["..."]
    entries += [back.get(axis, "_") for axis in range(min(back, default=0), 0)]
    return ", ".join(entries)


def _check_containers(tree: SpecTree, path: str) -> None:
    """Check each list and tuple of specs below a path; see `_check_entries`."""
    if is_spec_leaf(tree):
        return
    if isinstance(tree, Mapping):
        below = tree.items()
    elif isinstance(tree, list | tuple):
        _check_entries(tree, path, None)
        below = enumerate(tree)
    else:
        return
    for key, entry in below:
        _check_containers(entry, f"{path}[{key!r}]")


def _check_entries(entries: Sequence[Any], path: str, option: str | None) -> None:
    """Refuse dims that stand in a list, or beside texts: whether they are one array's is a guess.

    Args:
        entries: Specs, and dims in their place.
        path: Where they stand.
        option: What the fix is to be given to; None: it stands at the path.
    """
    first = next((index for index, entry in enumerate(entries) if is_dim(entry)), None)
    if first is None or not all(is_dim(entry) or _may_be_spec(entry) for entry in entries):
        return
    ways_out = [
        (_axes_at(entries), "for axes at these positions"),
        (_one_array(entries), "for one array"),
    ]
    front = "" if option is None else f"{option}="
    told = [
        f"{front}{source if option is None else tuple_of([source])} {meant}"
        for source, meant in ways_out
        if source is not None
    ]
    each = _one_axis_each(entries)
    if each is not None:
        told += [f"{front}{each} for one axis of each array"]
    raise SpecError(
        f"{path}[{first}] is {entries[first]!r}, which is not a spec.",
        why=_WHY,
        fix="; ".join(told) or _FORMS,
    )


def _may_be_spec(value: Any) -> bool:
    return is_spec_leaf(value) or isinstance(value, list | tuple | Mapping)


def _axes_at(entries: Sequence[Any]) -> str | None:
    """The source of a spec of an array whose axes at these positions change size."""
    if not all(map(is_size, entries)) or len(set(entries)) < len(entries):
        return None
    positions = [int(axis) for axis in entries]
    if max(map(abs, positions)) >= _MOST_AXES or min(positions) < 0 <= max(positions):
        return None  # more likely sizes, of which -1 is one that changes
    return code(text_of_axes({axis: axis_name(axis) for axis in positions}))


def _one_axis_each(entries: Sequence[Any]) -> str | None:
    """The source of specs of which each dim is that of an array with one axis."""
    if None in entries or all(map(is_size, entries)):
        return None
    apart = [_one_array([entry]) if is_dim(entry) else code(entry) for entry in entries]
    if isinstance(entries, tuple) or None in apart:
        return tuple_of(apart)
    return f"[{', '.join(map(str, apart))}]"


def _one_array(dims: Sequence[Any]) -> str | None:
    """The source of a tuple of dims, also of those that others write; None: they are none."""
    own = [_as_dim(dim) for dim in dims]
    if not all(dim is None or is_dim(dim) for dim in own):
        return None
    changes = any(isinstance(dim, Dim | Unknown) for dim in own)
    return tuple_of(code(UNKNOWN if dim is None and not changes else dim) for dim in own)


def _as_dim(dim: Any) -> Any:
    """What a dim of one array is that people write: -1 is a size that changes, a text a name."""
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
