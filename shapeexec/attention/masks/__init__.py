"""The masks: who may attend to whom. They compose, and know their tiles without an array.

Example: a window of 256 keys, within documents, beside 16 keys that all may see:

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
