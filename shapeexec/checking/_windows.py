"""Normal forms of sums in windows, and of convolutions.

Transposes of strided windows pad, dilate and pick where the function has a stride, and the other
way round.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

from shapeexec.checking._grids import Axis, laid
from shapeexec.checking._normal import Asked, Maker
from shapeexec.checking._values import Kind, Node, own_params


def window_sum(asked: Asked) -> int | None:
    """A sum in windows of what is padded and dilated before, up to where the last window ends.

    Windows of one element hold that element.
    """
    params = asked.params
    shape, config, padded = asked.shape(), [], []
    for (low, high), dilation, n in zip(
        params["padding"], params["base_dilation"], shape, strict=True
    ):
        config.append((low, high, dilation - 1))
        padded.append(int(low) + int(high) + (n - 1) * int(dilation) + 1)
    found = laid(config, shape, padded)
    if found is None:  # windows of padding alone
        return asked.table.constant(np.zeros(asked.kind.shape, asked.kind.dtype))
    of_array, of_grid = found
    part = asked.maker.pick(asked.operands[0], of_array)
    operand = asked.maker.place(part, of_grid, padded)
    return _windows(
        asked.maker,
        operand,
        [(0, int(by), n) for by, n in zip(params["window_strides"], asked.kind.shape, strict=True)],
        tuple(map(int, params["window_dimensions"])),
        tuple(map(int, params["window_dilation"])),
    )


def picked_windows(maker: Maker, node: Node, axes: Sequence[Axis]) -> int | None:
    """The sums in some of the windows; None: they are taken backwards."""
    if any(step < 0 for _, step, _ in axes):
        return None
    params = own_params(node)
    begins = [
        (start * by, step * by, n)
        for (start, step, n), by in zip(axes, params["strides"], strict=True)
    ]
    return _windows(maker, node.operands[0], begins, params["windows"], params["dilations"])


def _windows(
    maker: Maker,
    operand: int,
    begins: Sequence[Axis],
    windows: tuple[int, ...],
    dilations: tuple[int, ...],
) -> int:
    """The sums in the windows that begin on a grid, of what they cover."""
    counts = tuple(n for *_, n in begins)
    lengths = _covered(counts, [by for _, by, _ in begins], windows, dilations)
    covered = [(start, 1, n) for (start, *_), n in zip(begins, lengths, strict=True)]
    part = maker.pick(operand, covered)
    strides = tuple(by if n > 1 else 1 for _, by, n in begins)
    if all(window == 1 for window in windows):
        return maker.pick(part, [(0, by, n) for by, n in zip(strides, counts, strict=True)])
    kind = Kind(counts, maker.table.kind(part).dtype)
    return maker.own(
        *("window_sum", [part], kind), windows=windows, strides=strides, dilations=dilations
    )


def _covered(
    counts: Sequence[int], strides: Sequence[int], windows: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """How much lies between the begin of the first window and the end of the last."""
    axes = zip(counts, strides, windows, dilations, strict=True)
    return [by * (n - 1) + (window - 1) * dilation + 1 for n, by, window, dilation in axes]


def convolved(asked: Asked) -> int | None:
    """A convolution of each group by itself, of what is padded and dilated before.

    Groups of features and groups of batches mean that alike: the one's transposes are the other.
    """
    params, maker = asked.params, asked.maker
    if params.get("out_sharding") is not None:
        return None
    rank = len(asked.kind.shape)
    numbers, by_batch = params["dimension_numbers"], int(params["batch_group_count"])
    groups = by_batch * int(params["feature_group_count"])
    lhs = maker.transpose(asked.operands[0], numbers.lhs_spec)
    rhs = maker.transpose(asked.operands[1], numbers.rhs_spec)
    lhs = _grouped(maker, lhs, groups, 0 if by_batch > 1 else 1)
    rhs = _grouped(maker, rhs, groups, 0)
    counts = [asked.kind.shape[axis] for axis in numbers.out_spec[2:]]
    windows = maker.table.kind(rhs).shape[3:]
    strides = [by if n > 1 else 1 for by, n in zip(params["window_strides"], counts, strict=True)]
    dilations = [by if n > 1 else 1 for by, n in zip(params["rhs_dilation"], windows, strict=True)]
    shape = maker.table.kind(lhs).shape
    covered = (*shape[:3], *_covered(counts, strides, windows, dilations))
    steps = zip(params["padding"], params["lhs_dilation"], strict=True)
    config = [(0, 0, 0)] * 3 + [(low, high, dilation - 1) for (low, high), dilation in steps]
    found = laid(config, shape, covered)
    if found is None:  # windows of padding alone: what zeros and the kernel's NaN make
        return None
    of_array, of_grid = found
    placed = maker.place(maker.pick(lhs, of_array), of_grid, covered)
    bound = _Convolution(
        *(groups, tuple(strides), tuple(dilations)),
        *(params["precision"], params["preferred_element_type"]),
    )
    n, o = (maker.table.kind(value).shape[axis] for value, axis in ((lhs, 1), (rhs, 1)))
    kind = Kind((groups, n, o, *counts), asked.kind.dtype)
    key = asked.key(dataclasses.asdict(bound))
    (made,) = maker.table.make(asked.op, key, [placed, rhs], [kind], bound.run)
    turned = maker.transpose(made, [1, 0, *range(2, len(kind.shape))])
    whole = maker.reshape(turned, (n, groups * o, *counts))
    return maker.transpose(whole, [numbers.out_spec.index(axis) for axis in range(rank)])


def _grouped(maker: Maker, value: int, groups: int, axis: int) -> int:
    """`value` with the groups that lie along an axis as the first one."""
    shape = maker.table.kind(value).shape
    split = (*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])
    rest = [place for place in range(len(split)) if place != axis]
    return maker.transpose(maker.reshape(value, split), [axis, *rest])


@dataclasses.dataclass(frozen=True)
class _Convolution:
    """A convolution of [group, batch, feature, space] by [group, kernel, feature, space]."""

    groups: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    precision: Any
    preferred_element_type: Any

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Its result, [group, batch, kernel, space]."""
        lhs, rhs = map(jnp.asarray, arrays)
        _, n, features, *space = lhs.shape
        whole = lax.conv_general_dilated(
            jnp.moveaxis(lhs, 0, 1).reshape(n, self.groups * features, *space),
            rhs.reshape(-1, *rhs.shape[2:]),
            self.strides,
            "VALID",
            rhs_dilation=self.dilations,
            feature_group_count=self.groups,
            precision=self.precision,
            preferred_element_type=self.preferred_element_type,
        )
        split = whole.reshape(n, self.groups, -1, *whole.shape[2:])
        return [jnp.moveaxis(split, 1, 0)]
