"""Primitives for the transposes of strided windows, which JAX cannot trace at symbolic sizes.

JAX's own transposes compute paddings from sizes: the remainder of a stride of 2 depends on whether
a size is even. At symbolic sizes such a transpose is one equation that names the linear operation,
so it asks nothing of a size. At known sizes it expands to JAX's own transpose. The masking of
padded arrays is not known here.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax
from jax.interpreters import ad, batching, mlir

from shapeexec import _compat


@dataclasses.dataclass(frozen=True, eq=False)
class Transposed:
    """The transpose of a linear primitive with respect to one of its operands.

    The primitive is bound as `(cotangent, *others)`, where `others` are the operands that the
    transpose reads. Its parameters are the parameters of the linear primitive, and the `shape` and
    `dtype` of that operand and of the result.

    Attributes:
        primitive: Our primitive.
        forward: `forward(x, *others, **params)`: the linear primitive as a function of the operand.
    """

    primitive: Any
    forward: Callable[..., Any]

    def __call__(self, cotangent: Any, *others: Any, like: Any, **params: Any) -> Any:
        """Bind the transpose for an operand with the shape and dtype of the aval `like`."""
        shape, dtype = tuple(like.shape), np.dtype(like.dtype)
        return self.primitive.bind(cotangent, *others, shape=shape, dtype=dtype, **params)


def expand(primitive: Any, params: dict[str, Any]) -> Callable[..., Any]:
    """JAX's own operations for a transpose whose sizes are all ints.

    Args:
        primitive: A primitive of `TRANSPOSED`.
        params: The parameters of its equation, without symbolic dims.

    Returns:
        A function of the equation's operands.
    """
    return functools.partial(_compute, TRANSPOSED[primitive.name], **params)


def _compute(
    kind: Transposed, cotangent: Any, *others: Any, shape: Any, dtype: Any, **params: Any
) -> Any:
    def forward(x: Any) -> Any:
        return kind.forward(x, *others, **params)

    return _transpose(forward, jax.ShapeDtypeStruct(shape, dtype), cotangent)


def _transpose(forward: Callable[[Any], Any], struct: jax.ShapeDtypeStruct, cotangent: Any) -> Any:
    return cast(Any, jax.linear_transpose(forward, struct)(cotangent))[0]


def _batch(
    operands: Sequence[Any],
    axes: Sequence[int | None],
    *,
    kind: Transposed,
    shape: Any,
    dtype: Any,
    **params: Any,
) -> tuple[Any, int]:
    """The batching rule: transpose the batched forward operation, for which JAX has a rule."""
    (cotangent, *others), (axis, *other_axes) = operands, axes
    count = next(x.shape[a] for x, a in zip(operands, axes, strict=True) if a is not None)
    if axis is None:
        cotangent = jnp.broadcast_to(cotangent, (count, *cotangent.shape))
    else:
        cotangent = jnp.moveaxis(cotangent, axis, 0)

    def forward(x: Any) -> Any:
        each = functools.partial(kind.forward, **params)
        return jax.vmap(each, in_axes=(0, *other_axes))(x, *others)

    result = _transpose(forward, jax.ShapeDtypeStruct((count, *shape), dtype), cotangent)
    place = _place(kind, axes, numbers=params.get("dimension_numbers"))
    return jnp.moveaxis(result, 0, place), place


def _place(kind: Transposed, axes: Sequence[int | None], *, numbers: Any) -> int:
    """The batch axis of JAX's own batched transpose, so that later operations are the same."""
    cotangent, *others = axes
    if kind not in (conv_lhs, conv_rhs):
        return cotangent or 0
    if kind is conv_lhs:  # a convolution of the cotangent by the kernel
        return numbers.lhs_spec[0 if others[0] is None else 1]
    return numbers.rhs_spec[1 if cotangent is None else 0]  # of the data by the cotangent


def _aval(cotangent: Any, *_: Any, shape: Any, dtype: Any, **__: Any) -> Any:
    return _compat.aval_like(cotangent, shape, dtype=dtype)


TRANSPOSED: dict[str, Transposed] = {}
"""Our primitives by name."""


def _define(name: str, forward: Callable[..., Any]) -> Transposed:
    kind = Transposed(_compat.Primitive(name), forward)
    compute = functools.partial(_compute, kind)

    @functools.partial(jax.jit, static_argnames="params")
    def eagerly(*operands: Any, params: tuple[tuple[str, Any], ...]) -> Any:
        return compute(*operands, **dict(params))

    def impl(*operands: Any, **params: Any) -> Any:
        return cast(Any, eagerly(*operands, params=tuple(params.items())))

    kind.primitive.def_impl(impl)
    kind.primitive.def_abstract_eval(_aval)
    mlir.register_lowering(kind.primitive, mlir.lower_fun(compute, multiple_results=False))
    batching.primitive_batchers[kind.primitive] = functools.partial(_batch, kind=kind)
    TRANSPOSED[name] = kind
    return kind


def _of(bind: Callable[..., Any]) -> Callable[..., Any]:
    """`bind` without the parameters `shape` and `dtype`, which only the transpose has."""

    def bound(*operands: Any, shape: Any, dtype: Any, **params: Any) -> Any:
        return bind(*operands, **params)

    return bound


# The primitives, and their derivatives


def _bind(primitive: Any, *operands: Any, **params: Any) -> Any:
    return primitive.bind(*operands, **params)


def _pad(x: Any, **params: Any) -> Any:
    return _bind(lax.pad_p, x, np.zeros((), x.dtype), **params)


def _swapped(rhs: Any, lhs: Any, **params: Any) -> Any:
    return _bind(lax.conv_general_dilated_p, lhs, rhs, **params)


conv_lhs = _define(
    "conv_general_dilated_transpose_lhs", functools.partial(_bind, lax.conv_general_dilated_p)
)
conv_rhs = _define("conv_general_dilated_transpose_rhs", _swapped)
window_sum = _define(
    "reduce_window_sum_transpose", functools.partial(_bind, lax.reduce_window_sum_p)
)
gather_selected = _define(
    "select_and_gather_add_transpose", functools.partial(_bind, lax.select_and_gather_add_p)
)
strided_slice = _define("slice_transpose", functools.partial(_bind, lax.slice_p))
padding = _define("pad_transpose", _pad)


def _linear_transpose(again: Callable[..., Any], g: Any, _: Any, **params: Any) -> list[Any]:
    return [again(g, **params)]


def _bilinear_transpose(
    again: Callable[..., Any], g: Any, _: Any, operand: Any, **params: Any
) -> Any:
    return again(g, operand, **params)


for _kind in (window_sum, strided_slice, padding):
    _again = _of(_kind.forward)
    ad.deflinear2(_kind.primitive, functools.partial(_linear_transpose, _again))


def _by_other(other: Transposed) -> Callable[..., Any]:
    """The transpose with respect to the operand that is not the cotangent: the other transpose."""

    def transpose(
        g: Any, cotangent: Any, operand: Any, *, shape: Any, dtype: Any, **params: Any
    ) -> Any:
        return other(cotangent, g, like=operand.aval, **params)

    return transpose


for _kind, _other in ((conv_lhs, conv_rhs), (conv_rhs, conv_lhs)):
    _again = _of(_kind.forward)
    ad.defbilinear(
        _kind.primitive,
        functools.partial(_bilinear_transpose, _again),
        _by_other(_other),
    )


def _gather_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    """The selection is piecewise constant, so only the cotangent has a tangent."""
    bind = functools.partial(gather_selected.primitive.bind, **params)
    direction = cast(Any, ad.instantiate_zeros(tangents[0]))
    return bind(*primals), bind(direction, primals[1])


def _gather_transpose(g: Any, _: Any, operand: Any, **params: Any) -> Any:
    return [_of(gather_selected.forward)(g, operand, **params), None]


ad.primitive_jvps[gather_selected.primitive] = _gather_jvp
ad.primitive_transposes[gather_selected.primitive] = _gather_transpose


# When they replace JAX's own transposes


def _is_plain(stride: Any, dilation: Any, *lengths: Any) -> bool:
    """Whether the lengths of an axis differ by a constant, so that paddings are constants."""
    if not all(isinstance(step, int | np.integer) and step == 1 for step in (stride, dilation)):
        return False
    dim, result, *others = lengths
    return not any(map(export.is_symbolic_dim, (dim - result, *others)))


def _conv(cotangent: Any, lhs: Any, rhs: Any, **params: Any) -> list[Any] | None:
    numbers = params["dimension_numbers"]
    left, right = (getattr(x, "aval", x).shape for x in (lhs, rhs))
    steps = zip(params["window_strides"], params["lhs_dilation"], params["padding"], strict=True)
    spatial = zip(*(spec[2:] for spec in numbers), steps, strict=True)
    if all(
        _is_plain(stride, dilation, left[i], cotangent.shape[k], right[j], *pads)
        for i, j, k, (stride, dilation, pads) in spatial
        if _holds_dim((left[i], right[j], cotangent.shape[k], *pads))
    ):
        return None
    by_lhs = ad.is_undefined_primal(lhs)
    like = (lhs if by_lhs else rhs).aval
    if cotangent.dtype != (params["preferred_element_type"] or like.dtype):
        return None
    if by_lhs:
        return [conv_lhs(cotangent, rhs, like=like, **params), None]
    return [None, conv_rhs(cotangent, lhs, like=like, **params)]


def _window_sum(cotangent: Any, operand: Any, **params: Any) -> list[Any] | None:
    steps = (params[name] for name in ("window_strides", "base_dilation", "window_dimensions"))
    if all(
        _is_plain(stride, dilation, dim, count, window, *pads)
        for dim, count, stride, dilation, window, pads in zip(
            operand.aval.shape, cotangent.shape, *steps, params["padding"], strict=True
        )
        if _holds_dim((dim, count, window, *pads))
    ):
        return None
    return _unless_cast(window_sum, cotangent, like=operand.aval, params=params)


def _gather_selected(
    cotangent: Any, tangents: Any, operand: Any, **params: Any
) -> list[Any] | None:
    steps = params["base_dilation"]
    if all(step == 1 for step in steps) or any(step != 1 for step in params["window_dilation"]):
        return None  # JAX asks nothing of sizes, or refuses
    return [gather_selected(cotangent, operand, like=tangents.aval, **params), None]


def _slice(cotangent: Any, operand: Any, **params: Any) -> list[Any] | None:
    shape = operand.aval.shape
    strides = params["strides"] or (1,) * len(shape)
    ends = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    if all(
        _is_plain(stride, 1, dim, count + start + (dim - limit))
        for dim, count, (start, limit, stride) in zip(shape, cotangent.shape, ends, strict=True)
        if _holds_dim((dim, count, start, limit))
    ):
        return None
    return _unless_cast(strided_slice, cotangent, like=operand.aval, params=params)


def _padding(cotangent: Any, operand: Any, value: Any, **params: Any) -> list[Any] | None:
    if not ad.is_undefined_primal(operand):
        return None
    if all(
        _is_plain(1, interior + 1, dim, count - low - high)
        for dim, count, (low, high, interior) in zip(
            operand.aval.shape, cotangent.shape, params["padding_config"], strict=True
        )
        if _holds_dim((dim, count, low, high, interior))
    ):
        return None
    results = _unless_cast(padding, cotangent, like=operand.aval, params=params)
    if results is None or not ad.is_undefined_primal(value):
        return results and [*results, None]
    axes = tuple(range(cotangent.ndim))
    return [*results, jnp.sum(cotangent, axes) - jnp.sum(results[0], axes)]


def _unless_cast(kind: Transposed, cotangent: Any, *, like: Any, params: Any) -> list[Any] | None:
    """The transpose; None if the cotangent has another dtype, which is left to JAX."""
    return [kind(cotangent, like=like, **params)] if cotangent.dtype == like.dtype else None


def _holds_dim(dims: Iterable[Any]) -> bool:
    return any(map(export.is_symbolic_dim, dims))


_compat.take_over_transposes(
    {
        lax.conv_general_dilated_p: _conv,
        lax.reduce_window_sum_p: _window_sum,
        lax.select_and_gather_add_p: _gather_selected,
        lax.slice_p: _slice,
        lax.pad_p: _padding,
    }
)
