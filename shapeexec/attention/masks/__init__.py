"""The masks: who may attend to whom. They compose, and know their tiles without an array."""

from shapeexec.attention.masks._base import Bounds, Mask, Positions, TileKind, Tiles
from shapeexec.attention.masks._joined import And, Not, Or
from shapeexec.attention.masks.dense import Dense
from shapeexec.attention.masks.lengths import Lengths
from shapeexec.attention.masks.positions import (
    Causal,
    Dilated,
    Full,
    Global,
    PrefixLM,
    SlidingWindow,
)

__all__ = [
    "And",
    "Bounds",
    "Causal",
    "Dense",
    "Dilated",
    "Full",
    "Global",
    "Lengths",
    "Mask",
    "Not",
    "Or",
    "Positions",
    "PrefixLM",
    "SlidingWindow",
    "TileKind",
    "Tiles",
]
