"""Draws a block mask. It is the one module of attention that imports matplotlib."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.patches import Patch

from shapeexec.attention.masks._base import TileKind

_COLORS = {TileKind.EMPTY: "#f2f2f2", TileKind.PARTIAL: "#f0a35e", TileKind.FULL: "#2f6f9f"}


def plot_kinds(mask: Any, batch: int, *, head: int, axes: Any) -> Any:
    """Draw the tiles of one head of a `BlockMask`: queries downward, keys to the right.

    Args:
        mask: The block mask; its kinds must be known.
        batch: The example.
        head: The query head.
        axes: matplotlib axes; None makes new ones.

    Returns:
        The axes.
    """
    kinds = np.asarray(mask.kinds)
    kinds = kinds[batch if len(kinds) > 1 else 0]
    kinds = kinds[head if len(kinds) > 1 else 0]
    axes = plt.subplots()[1] if axes is None else axes
    (queries, keys), (tile_q, tile_k) = mask.length, mask.tile
    corner = (0, kinds.shape[1] * tile_k, kinds.shape[0] * tile_q, 0)
    norm = BoundaryNorm(np.arange(len(_COLORS) + 1) - 0.5, len(_COLORS))
    colors = ListedColormap(list(_COLORS.values()))
    axes.imshow(kinds, cmap=colors, norm=norm, extent=corner, interpolation="nearest")
    axes.set(xlim=(0, keys), ylim=(queries, 0), xlabel="key", ylabel="query")
    axes.set_title(f"{(kinds != TileKind.EMPTY).mean():.1%} of {tile_q} x {tile_k} tiles hold work")
    counts = {kind: int((kinds == kind).sum()) for kind in _COLORS}
    handles = [
        Patch(facecolor=color, edgecolor="#888888", label=f"{kind.name.lower()}: {counts[kind]}")
        for kind, color in _COLORS.items()
    ]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0)
    return axes
