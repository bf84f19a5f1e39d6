"""The forms in which people write specs, brought to one: texts, `Shape`s and None.

A tuple of dims becomes a text, and each `UNKNOWN` a symbol that is called after its place. How a
spec fits arguments is not known here.
"""

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from shapeexec._errors import SpecError
from shapeexec.shape import _unknown
from shapeexec.shape._dim import Dim, Unknown, substitute
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


def as_sequence(in_shapes: Any) -> tuple[SpecTree, ...]:
    """The specs by position, of which one that is no text may stand alone.

    Args:
        in_shapes: A tuple or a list of specs, or the dims of the only argument, not all ints.

    Raises:
        SpecError: It is a text, a shape, a dim, or no specs at all.
    """
    if is_one_spec(in_shapes) and not all(isinstance(dim, int) for dim in in_shapes):
        return (in_shapes,)  # ints alone are more likely positions of axes, and are refused
    if isinstance(in_shapes, tuple | list):
        return tuple(in_shapes)
    told = f"({dim_code(in_shapes)},)" if is_dim(in_shapes) else repr(in_shapes)
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
        why="a list, or a tuple of specs, mirrors one in the argument; a tuple of dims alone is "
        "one spec",
        fix=f"the dims of an array in one tuple, ({dim_code(leaf)},) for one axis; or a text such "
        'as "b, 512", a Shape, or None for what is static'
        if is_dim(leaf)
        else 'a text such as "b, 512", a tuple of dims, a Shape, or None for what is static',
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
    meant = ", ".join("sx.UNKNOWN" if dim is None else dim_code(dim) for dim in dims)
    raise SpecError(
        f"{where} is {dims!r}, of which no size may change.",
        why="None in a spec is an axis that is static, as None for an argument is",
        fix=f"({meant}{',' * (len(dims) == 1)}) if None is to be any size; None in place of the "
        "whole tuple if the argument is static",
    )


def dim_code(dim: Any) -> str:
    """A dim as people write it."""
    if isinstance(dim, Unknown):
        return "sx.UNKNOWN"
    if dim is ...:
        return "..."
    return f"sx.{dim!r}" if isinstance(dim, Dim) else str(dim)
