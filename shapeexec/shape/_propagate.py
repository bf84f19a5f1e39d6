"""Symbolic shapes through any JAX function."""

from collections.abc import Callable, Iterable
from typing import Any

import jax

from shapeexec.shape._guards import parse_constraint
from shapeexec.shape._shape import Shape
from shapeexec.shape._trace import Leaf, Trace, trace


def eval_shape(fn: Callable[..., Any], *shapes: Any, constraints: Iterable[str] = ()) -> Any:
    """The shapes that `fn` returns at symbolic sizes.

    Args:
        fn: A function of arrays and trees of arrays.
        *shapes: Its arguments: trees of `Shape`, arrays or `jax.ShapeDtypeStruct`.
        constraints: Facts about the sizes, such as `"s >= 2"`, that `fn` needs.

    Returns:
        The tree of the results, each a `Shape`.

    Raises:
        InconclusiveShapeError: The shapes depend on a question that the sizes alone can answer.

    Example:
        >>> print(eval_shape(lambda x: x.reshape(-1), Shape("float32", "b", "s")))
        f32[b*s]
    """
    traced, _ = trace_shapes(fn, shapes, constraints)
    outward = traced.substitution.outward
    outs = [Shape(aval.dtype, *map(outward, aval.shape)) for aval in traced.jaxpr.out_avals]
    return jax.tree.unflatten(traced.out_tree, outs)


def trace_shapes(
    fn: Callable[..., Any], shapes: Any, constraints: Iterable[str]
) -> tuple[Trace, Any]:
    """Trace `fn` at symbolic sizes, without a call; see `eval_shape`.

    Returns:
        The trace, whose inputs are the flat arguments, and the tree of their shapes.
    """
    leaves, treedef = jax.tree.flatten(shapes, is_leaf=lambda leaf: isinstance(leaf, Shape))
    described = [leaf if isinstance(leaf, Shape) else Shape.of(leaf) for leaf in leaves]
    traced = trace(
        lambda *flat: fn(*jax.tree.unflatten(treedef, flat)),
        [Leaf(shape.dims, shape.dtype) for shape in described],
        None,
        constraints=[parse_constraint(text) for text in constraints],
    )
    return traced, jax.tree.unflatten(treedef, described)
