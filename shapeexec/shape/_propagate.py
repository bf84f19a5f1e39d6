"""`eval_shape`: the symbolic shapes of a function's results, without a call.

It traces the function at symbolic sizes (`_trace`); padding is not known here.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax

from shapeexec._errors import SpecError
from shapeexec.shape import _trees
from shapeexec.shape._forms import is_dim, is_spec_leaf, normal, read
from shapeexec.shape._guards import parse_constraints
from shapeexec.shape._shape import Shape, is_array
from shapeexec.shape._spec import Place, check_names
from shapeexec.shape._trace import Leaf, Trace, trace
from shapeexec.shape._unknown import Unknown


def eval_shape(fn: Callable[..., Any], *shapes: Any, constraints: str | Iterable[str] = ()) -> Any:
    """Compute the shapes that `fn` returns at symbolic sizes.

    Args:
        fn: A function of arrays and trees of arrays.
        *shapes: Its arguments: trees of arrays, of `jax.ShapeDtypeStruct`, or of specs as `Exec`
            takes them: strings like `"b, s, 4"`, tuples such as `(BATCH, SEQ_LEN, 4)`, a `Shape`.
            A spec without a dtype has JAX's default float dtype. None is passed as None.
        constraints: A fact about the sizes that `fn` needs, such as `"s >= 2"`, or several.

    Returns:
        The tree of the results, each a `Shape`.

    Raises:
        SpecError: A spec is malformed, or does not give the size of each axis.
        InconclusiveShapeError: The shapes depend on a comparison that only known sizes decide.

    Example:
        >>> print(eval_shape(lambda x: x.reshape(-1), "b, s"))
        f32[b*s]
    """
    traced, _ = trace_shapes(fn, shapes, constraints=constraints)
    outward = traced.substitution.outward
    outs = [Shape(aval.dtype, *map(outward, aval.shape)) for aval in traced.jaxpr.out_avals]
    return _trees.unflatten(traced.out_tree, outs)


def trace_shapes(
    fn: Callable[..., Any], shapes: Any, *, constraints: str | Iterable[str]
) -> tuple[Trace, Any]:
    """Trace `fn` at symbolic sizes, without a call; see `eval_shape`.

    Returns:
        The trace, whose inputs are the flat arguments, and the tree of their shapes.
    """
    described, treedef = described_arguments(shapes)
    traced = trace(
        lambda *flat: fn(*_trees.unflatten(treedef, flat)),
        [Leaf(shape.dims, shape.dtype) for shape in described],
        sizes=None,
        constraints=parse_constraints(constraints),
    )
    return traced, _trees.unflatten(treedef, described)


def described_arguments(shapes: tuple[Any, ...]) -> tuple[list[Shape], Any]:
    """The leaves of a function's arguments as shapes, each with a dtype, and their tree.

    Args:
        shapes: As for `eval_shape`.

    Raises:
        SpecError: A spec is malformed, or does not give the size of each axis.
    """
    described: list[Shape] = []
    places: list[Place] = []
    trees = [_trees.flatten(tree, is_leaf=_is_leaf) for tree in shapes]
    for number, (leaves, treedef) in enumerate(trees):
        specs = [
            Shape.of(leaf) if is_array(leaf) or not _is_leaf(leaf) else leaf for leaf in leaves
        ]
        path = f"shapes[{number}]"
        places.append((path, number, _trees.unflatten(treedef, specs)))
        named = normal(places[-1][-1], path, place=number)
        described += [_described(leaf, path) for leaf in _trees.leaves(named, is_leaf=_is_leaf)]
    check_names(places)
    flat = [_trees.unflatten(treedef, [0] * len(leaves)) for leaves, treedef in trees]
    return described, _trees.structure(tuple(flat))


def _is_leaf(value: Any) -> bool:
    return value is not None and (is_spec_leaf(value) or is_dim(value))


def _described(leaf: str | Shape, path: str) -> Shape:
    spec = read(leaf, path)
    assert spec is not None
    dims = [dim for dim in spec.before if dim is not None and not isinstance(dim, Unknown)]
    if spec.has_ellipsis or len(dims) < len(spec.before):
        raise SpecError(
            f'{path} is "{spec}", which does not give the size of each axis.',
            path=path,
            why="`_`, None and `...` stand for the sizes of an array, and there is none here",
            fix="write a size, a symbol or `?` for each axis, or pass an array",
        )
    dtype = jax.dtypes.canonicalize_dtype(float) if spec.dtype is None else spec.dtype
    return Shape(dtype, *dims)
