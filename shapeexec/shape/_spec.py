"""Specs of a call's arguments, as people write them: `in_shapes=(None, "b, s")`.

A spec tree is matched once with each structure of the arguments (`compile_spec`). `BoundSpec` then
reads sizes off the shapes of each call.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Never, cast

import jax

from shapeexec._errors import SpecError
from shapeexec.shape import _trees, _unknown
from shapeexec.shape._binding import BoundSpec, tuple_text
from shapeexec.shape._forms import (
    SpecTree,
    as_sequence,
    is_size,
    is_spec_leaf,
    is_struct,
    normal_by_name,
    normal_by_position,
    read,
    text_of_axes,
)
from shapeexec.shape._pattern import Spec, parse_spec
from shapeexec.shape._shape import Shape, is_array

_DEFAULT = "b, ..."


def default_in_shapes(args: Sequence[Any]) -> tuple[SpecTree, ...]:
    """Return the default specs of arguments.

    Args:
        args: The arguments of a call.

    Returns:
        `"b, ..."` for each argument that is one array of rank 1 or more; None for every other.
    """
    return tuple(_DEFAULT if is_array(arg) and len(arg.shape) else None for arg in args)


def default_kwarg_shapes(kwargs: Mapping[str, Any]) -> dict[str, SpecTree]:
    """Return the default specs of keyword arguments; see `default_in_shapes`."""
    return dict(zip(kwargs, default_in_shapes(tuple(kwargs.values())), strict=True))


def compile_spec(
    in_shapes: Sequence[SpecTree] | None,
    args: Sequence[Any],
    *,
    kwarg_shapes: Mapping[str, SpecTree] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> BoundSpec:
    """Match specs with the structure of a call's arguments.

    Args:
        in_shapes: One spec per positional argument, each a pytree prefix of it; its leaves are a
            string like `"b, s"`, a tuple of dims such as `(BATCH, SEQ_LEN, 4)`, a `Shape`, or None
            (everything below is static). The dims of an only argument need no outer tuple. None:
            the defaults, for keyword arguments, too, unless `kwarg_shapes` is given.
        args: The positional arguments. Only their structure matters, and with `in_shapes=None`
            which of them are arrays of rank 1 or more.
        kwarg_shapes: Specs by keyword. A keyword argument without a spec is static; a spec for a
            keyword that is not passed is ignored.
        kwargs: The keyword arguments. Only their structure matters.

    Returns:
        One spec per array among the arguments, and the structure that they share.

    Raises:
        SpecError: A spec is malformed, there are too many or too few, or one does not fit its
            argument's structure.

    Example:
        >>> sorted(compile_spec(("b, s",), (np.ones((3, 5)),)).symbols)
        ['b', 's']
    """
    kwargs = dict(kwargs or {})
    if in_shapes is None:
        in_shapes = default_in_shapes(args)
        kwarg_shapes = default_kwarg_shapes(kwargs) if kwarg_shapes is None else kwarg_shapes
    given_shapes, given_kwarg_shapes = in_shapes, kwarg_shapes
    in_shapes = normal_by_position(in_shapes)
    kwarg_shapes = normal_by_name(kwarg_shapes or {})
    check_names(places(given_shapes, given_kwarg_shapes))
    _check_count(in_shapes, len(args))
    taken = spec_symbols(in_shapes, kwarg_shapes)
    specs: list[Spec | None] = []
    for index, (tree, arg) in enumerate(zip(in_shapes, args, strict=True)):
        paths = f"in_shapes[{index}]", f"args[{index}]"
        specs += _leaf_specs(tree, arg, paths=paths, taken=taken)
    for name in sorted(kwargs):  # as JAX orders the keys of a dict
        tree, arg = kwarg_shapes.get(name), kwargs[name]
        paths = f"kwarg_shapes[{name!r}]", f"kwargs[{name!r}]"
        specs += _leaf_specs(tree, arg, paths=paths, taken=taken)
    return BoundSpec(_trees.structure((tuple(args), kwargs)), tuple(specs))


def bind_one(spec: SpecTree, array: Any) -> BoundSpec:
    """Match the specs of one tree of arrays with it.

    Args:
        spec: A pytree prefix of `array` in its normal form, as `normal` gives it.
        array: The arrays. Only their structure matters.

    Raises:
        SpecError: The spec does not fit the structure.
    """
    taken = spec_symbols((), {"": spec})
    specs = _leaf_specs(spec, array, paths=("spec", "args[0]"), taken=taken)
    return BoundSpec(_trees.structure(((array,), {})), tuple(specs))


def spec_symbols(
    in_shapes: Sequence[SpecTree] | None, kwarg_shapes: Mapping[str, SpecTree] | None
) -> frozenset[str]:
    """Parse all specs without arguments; return their symbols.

    Raises:
        SpecError: One is malformed.
    """
    trees = [*normal_by_position(in_shapes or ()), *normal_by_name(kwarg_shapes or {}).values()]
    symbols = parse_spec(_DEFAULT).symbols if in_shapes is None else frozenset[str]()
    for leaf in _trees.leaves(trees, is_leaf=is_spec_leaf):
        spec = read(leaf, "in_shapes")
        symbols |= frozenset[str]() if spec is None else spec.symbols
    return symbols


Place = tuple[str, int | str, SpecTree]
"""The path of a spec tree for errors, its argument's position or keyword, and the tree."""


def places(in_shapes: Any, kwarg_shapes: Mapping[str, SpecTree] | None) -> tuple[Place, ...]:
    """The specs of arguments as the user wrote them, with their places."""
    trees = enumerate(as_sequence(in_shapes) if in_shapes is not None else ())
    named = (kwarg_shapes or {}).items()
    return (
        *((f"in_shapes[{index}]", index, tree) for index, tree in trees),
        *((f"kwarg_shapes[{name!r}]", name, tree) for name, tree in named),
    )


def check_names(trees: Iterable[Place]) -> None:
    """Check that no unknown size has the name of another size.

    Args:
        trees: The specs of all arguments, well-formed but not normalized: in the normal form an
            `UNKNOWN` is a symbol like any other.

    Raises:
        SpecError: A symbol has the name that an unknown size will get.
    """
    made: dict[str, str] = {}
    given: dict[str, str] = {}
    for path, place, tree in trees:
        for keys, leaf in _trees.leaves_with_path(tree, is_leaf=is_spec_leaf):
            where = path + _trees.keystr(keys)
            own, unknown = _names(leaf, where, place=_unknown.place_of(place, *keys))
            for name in sorted(unknown):
                if name in made:
                    raise _refused_name(name, f"{made[name]} and {where}")
                made[name] = where
            given |= dict.fromkeys(own, where)
    both = sorted(made.keys() & given.keys())
    if both:
        raise _refused_name(both[0], f"UNKNOWN in {made[both[0]]}, `{both[0]}` in {given[both[0]]}")


def _names(leaf: Any, where: str, *, place: str) -> tuple[frozenset[str], frozenset[str]]:
    """The symbols that a spec names, and the symbols of its unknown sizes."""
    leaf = Shape.of(leaf) if is_struct(leaf) else leaf
    spec = read(leaf, where)
    if spec is None:
        return frozenset(), frozenset()
    # A `Shape` has already replaced each UNKNOWN by a symbol.
    placed = _unknown.placed(spec.symbols, place) if isinstance(leaf, Shape) else {}
    made = (_unknown.at_place(place, axis) for axis in spec.unknown_axes)
    return spec.symbols - placed.keys(), frozenset((*made, *placed.values()))


def _refused_name(name: str, got: str) -> SpecError:
    return SpecError(
        f"`{name}` would be the name of two sizes.",
        got=got,
        why="an UNKNOWN is named after its argument and axis, and is never equal to another size",
        fix="rename the other size; or, if the two are equal, give both one name: `n`",
    )


def _check_count(in_shapes: Sequence[SpecTree], arguments: int) -> None:
    if len(in_shapes) != arguments:
        missing = ("None",) * (arguments - len(in_shapes))
        wanted = tuple_text([*map(repr, in_shapes), *missing][:arguments])
        left_out = "pass None for each argument that is left out; or " if not missing else ""
        raise SpecError(
            f"in_shapes has {_count(len(in_shapes), 'spec')} for {_count(arguments, 'argument')}.",
            path="in_shapes",
            got=f"in_shapes={tuple_text(list(map(repr, in_shapes)))}",
            fix=f"{left_out}one spec for each positional argument, None for a static one: "
            f"in_shapes={wanted}{_by_axis(in_shapes, arguments)}",
        )


def _by_axis(in_shapes: Sequence[SpecTree], arguments: int) -> str:
    """A suggestion for `(BATCH, SEQ_LEN)` with two arguments: one axis of each."""
    if len(in_shapes) != 1 or not isinstance(in_shapes[0], str) or arguments == 1:
        return ""
    axes = str(parse_spec(in_shapes[0])).split(", ")
    if len(axes) != arguments:
        return ""
    return f"; or, if each argument has one axis, in_shapes={tuple_text(list(map(repr, axes)))}"


def _leaf_specs(
    tree: SpecTree, arg: Any, *, paths: tuple[str, str], taken: frozenset[str]
) -> list[Spec | None]:
    """The spec of each leaf of an argument; `paths`: of the specs, and of the argument."""
    leaves, structure = _trees.flatten(tree, is_leaf=is_spec_leaf)
    specs = [read(leaf, paths[0]) for leaf in leaves]
    try:
        subtrees = structure.flatten_up_to(arg)
    except ValueError:
        _refuse_structure(tree, arg, paths=paths)
    found: list[Spec | None] = []
    for spec, subtree in zip(specs, subtrees, strict=True):
        found += _shared(spec, subtree, spec_path=paths[0], taken=taken)
    return found


def _shared(
    spec: Spec | None, subtree: Any, *, spec_path: str, taken: frozenset[str]
) -> list[Spec | None]:
    """One spec for all arrays of a subtree; each array has its own symbols for unknown sizes."""
    paths = [path for path, _ in _trees.leaves_with_path(subtree)]
    names = _unknown.inner(spec.symbols, "") if spec is not None and len(paths) > 1 else {}
    if spec is None or not names:
        return [spec] * len(paths)
    inner = [_unknown.inner(spec.symbols, _unknown.place_of(*path)) for path in paths]
    for name in (name for names in inner for name in names.values() if name in taken):
        raise _refused_name(name, f"UNKNOWN in {spec_path}, and `{name}` in another spec")
    return [spec.renamed(names) for names in inner]


def _refuse_structure(tree: SpecTree, arg: Any, *, paths: tuple[str, str]) -> Never:
    structure = _trees.structure(tree, is_leaf=is_spec_leaf)
    why = ""
    try:  # once more, with leaves that print short
        structure.flatten_up_to(jax.tree.map(_type_name, arg))
    except ValueError as error:
        why = str(error)
    raise SpecError(
        f"{paths[0]} does not fit the structure of {paths[1]}.",
        path=paths[1],
        got=f"{tree!r:.200} for {_trees.structure(arg)!s:.200}",
        why=why,
        fix=_one_spec(tree, len(arg.shape))
        if is_array(arg)
        else "containers as in the argument, or one string or None for everything below",
    )


def _type_name(leaf: Any) -> str:
    return type(leaf).__name__


def _one_spec(tree: SpecTree, rank: int) -> str:
    """A suggestion for a container of specs with one array: each spec as one of its axes."""
    by_axis = cast(Mapping[Any, Any], tree if isinstance(tree, Mapping) else {})
    if by_axis and all(map(is_size, by_axis)):
        named = {int(axis): spec for axis, spec in by_axis.items() if isinstance(spec, str)}
        text = text_of_axes(named)
    else:
        leaves = _trees.leaves(tree, is_leaf=is_spec_leaf)
        changes = any(leaf is not None for leaf in leaves)
        text = ", ".join(
            ("_" if changes else "?") if leaf is None else str(leaf) for leaf in leaves
        )
    try:
        fits = parse_spec(text).accepts_rank(rank)
    except SpecError:
        fits = False
    text = text if fits else ", ".join(["?"] * rank)
    return f'one text for one array: "{text}", or None if it is static'


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
