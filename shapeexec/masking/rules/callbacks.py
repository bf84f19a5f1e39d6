"""Callbacks: the host is given arrays of the true shapes, and its results are padded there.

The true lengths travel with the operands. Nothing of the padding is ever seen by the callback.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from shapeexec import _compat
from shapeexec._errors import SpecError
from shapeexec.masking._context import RuleContext, Shaped
from shapeexec.masking._registry import register

Axes = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class _Host:
    """A callback between padded arrays, around one between arrays of the true shapes.

    It is called with the lengths of the padded axes, of operands first and then of results, and
    with the operands. It is a value, so that JAX's caches treat equal callbacks as one.

    Attributes:
        callback: The user's callback.
        operands: Per operand its padded axes.
        results: Per result its padded axes.
        capacities: Per result its shape at capacity.
    """

    callback: Callable[..., Any]
    operands: Axes
    results: Axes = ()
    capacities: tuple[tuple[int, ...], ...] = ()

    def __call__(self, *args: Any) -> Any:
        lengths = iter(args)
        cuts = [[(axis, int(next(lengths))) for axis in axes] for axes in self.operands]
        wanted = [[(axis, int(next(lengths))) for axis in axes] for axes in self.results]
        arrays = [_cut(x, cut) for x, cut in zip(lengths, cuts, strict=True)]
        returned = self.callback(*arrays)
        if not self.capacities:
            return returned
        results = map(np.asarray, returned)
        return [
            _widened(x, capacity, true=true)
            for x, capacity, true in zip(results, self.capacities, wanted, strict=True)
        ]


def _cut(x: Any, cut: Sequence[tuple[int, int]]) -> Any:
    if not cut:
        return x
    index = [slice(None)] * x.ndim
    for axis, length in cut:
        index[axis] = slice(length)
    return _compat.device_put(np.asarray(x)[tuple(index)])  # no program is compiled for the size


def _widened(
    x: np.ndarray, capacity: Sequence[int], *, true: Sequence[tuple[int, int]]
) -> np.ndarray:
    expected = list(capacity)
    for axis, length in true:
        expected[axis] = length
    if list(x.shape) != expected:
        raise SpecError(
            f"a callback returned shape {x.shape}, not {tuple(expected)}.",
            fix="return arrays of the shapes that `result_shape_dtypes` declares",
        )
    out = np.zeros(tuple(capacity), x.dtype)
    out[tuple(map(slice, x.shape))] = x
    return out


def _lengths(ctx: RuleContext) -> list[Array]:
    """The lengths of all padded axes, of operands and then of results."""
    found = [length for each in (*ctx.operands, *ctx.results) for length in each.lengths]
    return [length for length in found if not isinstance(length, int)]


def _padded_axes(arrays: Sequence[Shaped]) -> Axes:
    return tuple(
        tuple(axis for axis, dim in enumerate(each.dims) if not isinstance(dim, int))
        for each in arrays
    )


@register("debug_callback")
def debug_callback(
    ctx: RuleContext, *operands: Array, callback: Callable[..., Any], **params: Any
) -> Any:
    """Run: the callback, on the host, over operands cut to their true shapes."""
    host = _Host(callback, _padded_axes(ctx.operands))
    return ctx.bind(*_lengths(ctx), *operands, callback=host, **params)


@register("debug_print")
def debug_print(ctx: RuleContext, *operands: Array, ordered: bool, **params: Any) -> Any:
    """Run: the print, on the host, of operands cut to their true shapes."""
    impl = ctx.eqn.primitive.impl

    def show(*arrays: Any) -> None:
        impl(*arrays, ordered=ordered, **params)

    host = _Host(show, _padded_axes(ctx.operands))
    jax.debug.callback(host, *_lengths(ctx), *operands, ordered=ordered)
    return []


@register("pure_callback", "io_callback")
def callback(
    ctx: RuleContext,
    *operands: Array,
    callback: Callable[..., Any],
    result_avals: Sequence[Any],
    **params: Any,
) -> Any:
    """Run: the callback over operands cut to their true shapes; its results are padded there."""
    capacities = tuple(result.capacities for result in ctx.results)
    host = _Host(callback, _padded_axes(ctx.operands), _padded_axes(ctx.results), capacities)
    if "vmap_method" in params:  # lengths differ between the examples of a ragged batch
        params["vmap_method"] = "sequential"
    avals = [aval.update(shape=shape) for aval, shape in zip(result_avals, capacities, strict=True)]
    return ctx.bind(*_lengths(ctx), *operands, callback=host, result_avals=tuple(avals), **params)
