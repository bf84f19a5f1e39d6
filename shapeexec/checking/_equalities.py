"""The table of normal forms: small functions by operation.

Each returns the normal form of an operation, or None. A sum of one element, which XLA starts with
zero, may turn -0.0 into 0.0, and so may a sum of cotangents (`add_any`), where JAX leaves out known
zeros. These differences are ignored here.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from shapeexec.checking import _convolutions, _gathers, _indexing, _windows
from shapeexec.checking._normal import Asked, Equality, is_even

# Operations that change nothing


def _itself(asked: Asked) -> int | None:
    """A copy, or a conversion to the same type."""
    return asked.operands[0] if asked.table.kind(asked.operands[0]) == asked.kind else None


def _without_identity(identity: float, *places: int, integers_only: bool = False) -> Equality:
    """`x * 1`, `x - 0`: with an identity in one place, the result is the other operand."""

    def equality(asked: Asked) -> int | None:
        if integers_only and not np.issubdtype(asked.kind.dtype, np.integer):
            return None  # -0.0 + 0.0 is 0.0
        for place in places:
            constant, other = asked.constant(place), asked.operands[1 - place]
            if constant is None or asked.table.kind(other) != asked.kind:
                continue
            if np.all(constant == identity) and not _has_sign(constant):
                return other
        return None

    return equality


def _has_sign(constant: np.ndarray) -> bool:
    return constant.dtype.kind == "f" and bool(np.any(np.signbit(constant)))


def _one_case(asked: Asked) -> int | None:
    """A choice among equal cases, or with a known index."""
    _, *cases = asked.operands
    which = asked.constant(0)
    if which is not None and which.size and (which == which.flat[0]).all():
        return cases[int(which.flat[0])]
    return cases[0] if len(set(cases)) == 1 else None


# Shapes


def _reshaped(asked: Asked) -> int | None:
    """A reshape without sharding, after the transpose that it contains."""
    (value,), dimensions = asked.operands, asked.params["dimensions"]
    if asked.params["sharding"] is not None:
        return None
    turned = value if dimensions is None else asked.maker.transpose(value, dimensions)
    return asked.maker.reshape(turned, asked.kind.shape)


def _shaped(asked: Asked) -> int | None:
    """A reshape of a reshape is one reshape; one to the same shape is left out."""
    (value,) = asked.operands
    node = asked.table[value]
    if node.kind == asked.kind:
        return value
    if node.op == "shaped":
        return asked.maker.reshape(node.operands[0], asked.kind.shape)
    return None


def _as_reshape(asked: Asked) -> int | None:
    """Adding or removing axes of size 1 is a reshape."""
    return asked.maker.reshape(asked.operands[0], asked.kind.shape)


def _broadcast(asked: Asked) -> int | None:
    """A broadcast that only adds axes of size 1 is a reshape."""
    if len(asked.operands) != 1 or asked.params.get("sharding") is not None:
        return None
    if math.prod(asked.shape()) == asked.kind.size:
        return asked.maker.reshape(asked.operands[0], asked.kind.shape)
    return None


def _transposed(asked: Asked) -> int | None:
    return asked.maker.transpose(asked.operands[0], asked.params["permutation"])


# Without axes of size 1, which JAX leaves out where it knows them


def _contracted(asked: Asked) -> int | None:
    """A matrix product without axes of size 1, contracted axes last.

    Its operands are sorted by their numbers: JAX's gradients have them in either order.
    """
    if asked.params["out_sharding"] is not None:
        return None
    parts = _factors(asked, (0, 1))
    sides = (0, 1)
    if parts[0] > parts[1] and is_even(asked.params["precision"]):
        sides = (1, 0)
        parts = _factors(asked, sides)
    contracted, together = asked.params["dimension_numbers"]
    batch = len(together[0])
    free = len(asked.shape()) - batch - len(contracted[0])  # of the left operand
    places = range(batch), range(batch, batch + free), range(batch + free, len(asked.kind.shape))
    order = [*places[0], *places[1 + sides[0]], *places[1 + sides[1]]]
    long = [axis for axis in order if asked.kind.shape[axis] != 1]
    key = asked.key({name: asked.params[name] for name in ("precision", "preferred_element_type")})
    counts = sum(asked.kind.shape[axis] != 1 for axis in places[0]), _summed(asked)
    return asked.derived((key, counts), parts, order=long)


def _factors(asked: Asked, sides: tuple[int, int]) -> list[int]:
    """The operands in this order, each with batch, free and contracted axes in this order."""
    contracted, together = asked.params["dimension_numbers"]
    inner_axes: tuple[Sequence[int], Sequence[int]] = contracted
    pairs = sorted(zip(inner_axes[sides[0]], inner_axes[sides[1]], strict=True))
    parts: list[int] = []
    for place, side in enumerate(sides):
        shape = asked.shape(side)
        inner = [int(pair[place]) for pair in pairs]
        free = [axis for axis in range(len(shape)) if axis not in (*together[side], *inner)]
        order = [int(axis) for axis in (*together[side], *free, *inner) if shape[axis] != 1]
        parts.append(asked.maker.only(asked.operands[side], order))
    return parts


def _summed(asked: Asked) -> int:
    """The number of contracted axes longer than 1."""
    contracted: Sequence[int] = asked.params["dimension_numbers"][0][0]
    return sum(asked.shape()[axis] != 1 for axis in contracted)


def _reduced(asked: Asked) -> int | None:
    """A reduction without the axes of size 1."""
    if asked.params.get("out_sharding") is not None:
        return None
    shape = asked.shape()
    long = [axis for axis, size in enumerate(shape) if size != 1]
    value = asked.maker.only(asked.operands[0], long)
    along = tuple(place for place, axis in enumerate(long) if axis in asked.params["axes"])
    if not along:
        return asked.maker.reshape(value, asked.kind.shape)
    kept = [axis for axis, size in enumerate(asked.kind.shape) if size != 1]
    return asked.derived((along,), [value], order=kept)


_REDUCTIONS = "reduce_sum reduce_prod reduce_max reduce_min reduce_and reduce_or".split()
_SCATTERS = "scatter scatter-sub scatter-mul scatter_mul scatter-min scatter-max".split()

EQUALITIES: Mapping[str, Sequence[Equality]] = {
    "copy": (_itself,),
    "copy_p": (_itself,),
    "convert_element_type": (_itself,),
    "mul": (_without_identity(1, 0, 1),),
    "div": (_without_identity(1, 1),),
    "add": (_without_identity(0, 0, 1, integers_only=True),),
    "add_any": (_without_identity(0, 0, 1),),
    "sub": (_without_identity(0, 1),),
    "select_n": (_one_case,),
    "reshape": (_reshaped,),
    "shaped": (_shaped,),
    "squeeze": (_as_reshape,),
    "expand_dims": (_as_reshape,),
    "broadcast_in_dim": (_broadcast,),
    "transpose": (_transposed,),
    "slice": (_indexing.sliced,),
    "rev": (_indexing.turned_round,),
    "pick": (_indexing.picked,),
    "place": (_indexing.placed,),
    "pad": (_indexing.padded,),
    "dynamic_slice": (_indexing.dynamically_sliced,),
    "dynamic_update_slice": (_indexing.dynamically_updated,),
    "gather": (_gathers.gathered, _gathers.gathered_without_ones),
    "dot_general": (_contracted,),
    "reduce_window_sum": (_windows.window_sum,),
    "conv_general_dilated": (_convolutions.convolved,),
    **{name: (_reduced,) for name in _REDUCTIONS},
    **dict.fromkeys(_SCATTERS, (_gathers.unwritten, _gathers.scattered_without_ones)),
    "scatter-add": (
        _gathers.unwritten,
        _gathers.scattered,
        _gathers.scattered_without_ones,
    ),
    "stop_gradient": (_itself,),
}
"""The normal forms of each operation, tried in turn."""
