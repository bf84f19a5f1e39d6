"""A mask given as a bool array. It holds T by S elements, read once to find its tiles."""

import dataclasses
from typing import ClassVar

from shapeexec._errors import ConfigError
from shapeexec.attention.masks._advice import of_numbers
from shapeexec.attention.masks._base import Array, Bounds, Mask, Positions, Tiles
from shapeexec.attention.masks._value import as_array, set_field

_FIX = "pass bool[B, N, T, S], where each axis may be 1, or its last axes"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Dense(Mask):
    """A pair is allowed where `array` is True.

    Attributes:
        array: bool[B or 1, N or 1, T or 1, S or 1]; with fewer axes they are the last ones.
    """

    axes: ClassVar = {"array": "BNTS"}

    array: Array

    def __post_init__(self) -> None:
        array = as_array(self.array, "array", fix=_FIX)
        if array.dtype != bool or array.ndim > 4:
            raise ConfigError(
                f"array is {array.dtype}{list(array.shape)}, not bool of at most 4 axes.",
                option="array",
                why="True says that a query may attend to a key",
                fix=_FIX
                if array.dtype == bool
                else of_numbers(array, name="array", to="", bias="bias=array"),
            )
        set_field(self, "array", array[(None,) * (4 - array.ndim)])

    def allows(self, at: Positions) -> Array:
        """See `Mask`."""
        return at.of_pairs(self.array)

    def bounds(self, tiles: Tiles) -> Bounds:
        """See `Mask`. Reads the whole array once.

        Exact unless examples of several lengths share the array; see `Tiles.any_and_all`.
        """
        examples = {tiles.query_length.shape[0], tiles.key_length.shape[0]}
        return Bounds(*tiles.any_and_all(self.array), exact=examples <= {1, self.array.shape[0]})
