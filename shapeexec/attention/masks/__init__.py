"""The masks: which queries may attend to which keys. They compose, tile by tile, without an array.

Example: causal, within documents, over the last 256 keys and the first 16:

    mask = Causal() & Documents(segment_ids) & (SlidingWindow(255) | Global(16))
"""

from shapeexec.attention.masks._base import Bounds, Mask, Positions, TileKind, Tiles
from shapeexec.attention.masks._joined import And, Not, Or
from shapeexec.attention.masks.dense import Dense
from shapeexec.attention.masks.documents import Documents
from shapeexec.attention.masks.function import MaskFunction
from shapeexec.attention.masks.lengths import Lengths
from shapeexec.attention.masks.positions import (
    Causal,
    Dilated,
    Full,
    Global,
    PrefixLM,
    SlidingWindow,
)
from shapeexec.attention.masks.scores import ALiBi, RelativeBias, ScoreModifier

__all__ = [
    "ALiBi",
    "And",
    "Bounds",
    "Causal",
    "Dense",
    "Dilated",
    "Documents",
    "Full",
    "Global",
    "Lengths",
    "Mask",
    "MaskFunction",
    "Not",
    "Or",
    "Positions",
    "PrefixLM",
    "RelativeBias",
    "ScoreModifier",
    "SlidingWindow",
    "TileKind",
    "Tiles",
]
