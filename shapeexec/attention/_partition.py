"""Divides the primitives among devices, by examples and heads, which are independent.

Each device runs its part as a separate call: it chooses the back end, makes the lists and runs the
kernels. The other axes of arrays are whole on each device. XLA decides how arrays are sharded, when
it partitions the program; see `_compat.partitioned`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shapeexec import _compat
from shapeexec.attention import _run
from shapeexec.attention._call import Call, axes_of_leaves, split
from shapeexec.attention._numbered import Numbering, whole_axes
from shapeexec.attention.masks._value import wide

_RESULTS = ("BTNV", "BNT")
"""The axes of output and log-sum-exp."""

MeshAxes = tuple[str, ...]
"""Names of mesh axes, the major one first."""


def run_partitioned(
    *flat: Array, run: Callable[..., Any], call: Call, along: tuple[int, ...] = (), **params: Any
) -> Sequence[Array]:
    """The results of a primitive, computed by each device for its examples and heads.

    Args:
        *flat: See `run`.
        run: `_run.forward`, `tangent` or `gradient`.
        call: The call.
        along: See `run`.
        **params: Likewise.
    """
    params |= {"along": along} if along else {}
    operands, _ = split(call, flat)
    if 0 in (*operands.query.shape, *operands.value.shape, operands.key_size):
        return run(*flat, call=call, **params)
    values = (
        jax.tree.unflatten(call.mask, operands.mask),
        jax.tree.unflatten(call.bias, operands.bias),
    )
    batch, queries, heads, _ = operands.query.shape
    numbering = Numbering(batch, queries, heads, operands.key_size)
    (mask, mask_tree), (bias, bias_tree) = (jax.tree.flatten(numbering.of(x)) for x in values)
    numbers = len(mask) - len(operands.mask)
    first = call.operands - call.bias.num_leaves
    if along:
        params["along"] = along = tuple(i if i < first else i + numbers for i in along)
    rest = flat[call.operands :]
    call = dataclasses.replace(call, mask=mask_tree, bias=bias_tree)
    flat = (*flat[: call.arrays], *map(jnp.asarray, (*mask, *bias)), *rest)
    layout = _layout(flat, call, along=along, is_gradient=run is _run.gradient)
    layout = layout.without(*(axis for value in values for axis in whole_axes(value)))
    on_all = functools.partial(run, call=call, **params)
    return _compat.partitioned(on_all, layout.rule, partition=_partition(layout, on_all))(*flat)


@dataclasses.dataclass(frozen=True)
class _Layout:
    """The axes of all arrays of a primitive.

    Attributes:
        sizes: B, N and K, the axes that may be divided, by these letters.
        operands: The axes of each operand: these letters, and `-` for an axis that is not divided.
        results: The axes of each result, in the same notation.
        is_gradient: Whether the results are gradients by operands.
    """

    sizes: Mapping[str, int]
    operands: tuple[str, ...]
    results: tuple[str, ...]
    is_gradient: bool

    def without(self, *axes: str) -> "_Layout":
        """The layout with these axes not divided."""
        blank = str.maketrans(dict.fromkeys(axes, "-"))
        operands, results = (
            tuple(one.translate(blank) for one in side) for side in (self.operands, self.results)
        )
        return dataclasses.replace(self, operands=operands, results=results)

    @property
    def rule(self) -> str:
        """The rule by which shardings propagate: along examples and heads only."""
        key_heads = "n" if self.sizes["N"] == self.sizes["K"] else "k"
        factors = {"B": "b", "N": "n", "K": key_heads}
        counter = itertools.count()

        def of(arrays: Iterable[str]) -> str:
            return ", ".join(
                " ".join(factors.get(axis) or f"x{next(counter)}" for axis in axes)
                for axes in arrays
            )

        return f"{of(self.operands)} -> {of(self.results)}"

    def over(self, letter: str, specs: Sequence[_compat.Spec]) -> MeshAxes:
        """The mesh axes that an axis is sharded over, in the first array that is sharded by it."""
        arrays = zip((*self.operands, *self.results), specs, strict=True)
        every = (spec[axes.index(letter)] for axes, spec in arrays if letter in axes)
        return next(filter(None, every), ())

    def specs(self, over: Mapping[str, MeshAxes]) -> tuple[list[_compat.Spec], list[_compat.Spec]]:
        """The shardings of operands and results."""
        operands, results = (
            [tuple(over.get(axis, ()) for axis in axes) for axes in side]
            for side in (self.operands, self.results)
        )
        return operands, results


def _layout(
    flat: Sequence[Array], call: Call, *, along: tuple[int, ...], is_gradient: bool
) -> _Layout:
    (batch, queries, heads, _), key_heads = flat[0].shape, flat[1].shape[2]
    sizes = {"B": batch, "N": heads, "K": key_heads}
    operands = [
        *(("BTNH", "--KH", "--KV") if call.has_pages else ("BTNH", "BSKH", "BSKV")),
        *["B"] * (call.arrays - 3),
        *axes_of_leaves(call.mask),
        *axes_of_leaves(call.bias),
    ]
    own = [operands[i] for i in along]
    rest = (*_RESULTS, *(_RESULTS if is_gradient else own))[: len(flat) - call.operands]

    def divided(axes: str, shape: tuple[int, ...]) -> str:
        return "".join(
            axis if 1 < size == sizes.get(axis) else "-"
            for axis, size in zip(axes.ljust(len(shape), "-"), shape, strict=False)
        )

    every = zip((*operands, *rest), flat, strict=True)
    by_operand = tuple(divided(axes, x.shape) for axes, x in every)
    results = (divided("BTNV", (batch, queries, heads, 0)), divided("BNT", (batch, heads, queries)))
    if is_gradient:
        results = tuple(by_operand[i] for i in along)
    return _Layout(sizes, by_operand, results, is_gradient)


def _partition(layout: _Layout, run: Callable[..., Sequence[Array]]) -> _compat.Partition:
    def partition(  # noqa: PLR0917 - `_compat.partitioned` calls it
        mesh: jax.sharding.Mesh, of_operands: Sequence[_compat.Spec], of_results: Any
    ) -> Any:
        over = _divided(layout, mesh, specs=(*of_operands, *of_results))
        return (*layout.specs(over), functools.partial(_part, layout, run, over))

    return partition


def _divided(
    layout: _Layout, mesh: jax.sharding.Mesh, *, specs: Sequence[_compat.Spec]
) -> dict[str, MeshAxes]:
    """The mesh axes that B, N and K are divided over, given how arrays are sharded."""
    batch, heads, key_heads = (layout.sizes[axis] for axis in "BNK")
    group = heads // key_heads
    of_keys = layout.over("K", specs)

    def is_even(over: MeshAxes) -> bool:
        own, rest = divmod(heads, _count(over, mesh))
        return rest == 0 and (own % group == 0 or group % own == 0)

    def is_of_keys(over: MeshAxes) -> bool:
        return over == of_keys[: len(over)] and key_heads % _count(over, mesh) == 0

    over_batch = _longest(layout.over("B", specs), lambda over: batch % _count(over, mesh) == 0)
    wanted = [axis for axis in layout.over("N", specs) or of_keys if axis not in over_batch]
    over_heads = _longest(wanted, is_even)
    return {"B": over_batch, "N": over_heads, "K": _longest(over_heads, is_of_keys)}


def _part(  # noqa: PLR0917 - the arrays come last
    layout: _Layout, run: Callable[..., Sequence[Array]], over: dict[str, MeshAxes], *flat: Array
) -> list[Array]:
    """The results of one device."""
    over_group = over["N"][len(over["K"]) :]
    if not over_group:
        return _summed(layout, over, results=run(*flat))
    # The device holds more key heads than its query heads need.
    heads, key_heads = (x.shape[2] for x in flat[:2])
    group = layout.sizes["N"] // layout.sizes["K"]
    first, count = lax.axis_index(over_group) * heads // group, max(1, heads // group)
    own = (
        lax.dynamic_slice_in_dim(x, first, count, 2) if "K" in axes else x
        for axes, x in zip(layout.operands, flat, strict=True)
    )
    results = (
        _among(x, first, heads=key_heads) if "K" in axes else x
        for axes, x in zip(layout.results, run(*own), strict=True)
    )
    return _summed(layout, over, results=results)


def _among(x: Array, first: Array, *, heads: int) -> Array:
    """An array of all key heads: those in `x` [B, S, some, size], and zeros for the others."""
    zeros = jnp.zeros((*x.shape[:2], heads, x.shape[3]), x.dtype)
    return lax.dynamic_update_slice_in_dim(zeros, x, first, 2)


def _summed(
    layout: _Layout, over: Mapping[str, MeshAxes], *, results: Iterable[Array]
) -> list[Array]:
    """Psum gradients over mesh axes on which the operand is replicated; other results stay."""
    if not layout.is_gradient:
        return list(results)
    every = (*over["B"], *over["N"])
    summed = []
    for axes, x in zip(layout.results, results, strict=True):
        own = {name for axis in axes for name in over.get(axis, ())}
        shared = tuple(name for name in every if name not in own)
        total = lax.psum(x.astype(wide(x.dtype)), shared) if shared else x
        summed.append(total.astype(x.dtype))
    return summed


def _longest(over: Sequence[str], fits: Callable[[MeshAxes], bool]) -> MeshAxes:
    """The longest prefix of some mesh axes that fits; the empty one always does."""
    return next(part for n in range(len(over), -1, -1) if fits(part := tuple(over[:n])))


def _count(over: MeshAxes, mesh: jax.sharding.Mesh) -> int:
    return math.prod(mesh.shape[axis] for axis in over)
