"""Normal form of sums in windows.

The transpose of a strided window pads, dilates and picks where the function has a stride, and vice
versa.
"""

from collections.abc import Sequence

import numpy as np

from shapeexec.checking._grids import Axis, laid
from shapeexec.checking._normal import Asked, Maker
from shapeexec.checking._values import Kind, Node, own_params


def window_sum(asked: Asked) -> int | None:
    """Padding and dilation become a separate operation, up to the end of the last window.

    A window of one element is that element.
    """
    params = asked.params
    shape = asked.shape()
    config: list[tuple[int, int, int]] = []
    padded: list[int] = []
    for (low, high), dilation, n in zip(
        params["padding"], params["base_dilation"], shape, strict=True
    ):
        config.append((low, high, dilation - 1))
        padded.append(int(low) + int(high) + (n - 1) * int(dilation) + 1)
    found = laid(config, shape, padded=padded)
    if found is None:  # windows of padding only
        return asked.table.constant(np.zeros(asked.kind.shape, asked.kind.dtype))
    of_array, of_grid = found
    part = asked.maker.pick(asked.operands[0], of_array)
    operand = asked.maker.place(part, of_grid, shape=padded)
    return _windows(
        asked.maker,
        operand,
        begins=[
            (0, int(by), n)
            for by, n in zip(params["window_strides"], asked.kind.shape, strict=True)
        ],
        windows=tuple(map(int, params["window_dimensions"])),
        dilations=tuple(map(int, params["window_dilation"])),
    )


def picked_windows(maker: Maker, node: Node, axes: Sequence[Axis]) -> int | None:  # noqa: PLR0917 - `_PICKED` calls it
    """The sums in some of the windows; None: they are in reverse order."""
    if any(step < 0 for _, step, _ in axes):
        return None
    params = own_params(node)
    begins = [
        (start * by, step * by, n)
        for (start, step, n), by in zip(axes, params["strides"], strict=True)
    ]
    return _windows(
        maker,
        node.operands[0],
        begins=begins,
        windows=params["windows"],
        dilations=params["dilations"],
    )


def _windows(
    maker: Maker,
    operand: int,
    *,
    begins: Sequence[Axis],
    windows: tuple[int, ...],
    dilations: tuple[int, ...],
) -> int:
    """The sums in the windows that begin on a grid."""
    covered = [
        (start, 1, by * (n - 1) + (window - 1) * dilation + 1)
        for (start, by, n), window, dilation in zip(begins, windows, dilations, strict=True)
    ]
    part = maker.pick(operand, covered)
    counts = tuple(n for *_, n in begins)
    strides = tuple(by if n > 1 else 1 for _, by, n in begins)
    if all(window == 1 for window in windows):
        return maker.pick(part, [(0, by, n) for by, n in zip(strides, counts, strict=True)])
    kind = Kind(counts, maker.table.kind(part).dtype)
    return maker.own(
        "window_sum", [part], kind=kind, windows=windows, strides=strides, dilations=dilations
    )
