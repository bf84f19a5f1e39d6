"""The pieces that the forward kernel streams: how long they are, and how many are in flight."""

from shapeexec.attention.backends._base import Signature
from shapeexec.attention.backends.mosaic_gpu._config import Config
from shapeexec.attention.backends.mosaic_gpu._tiles import TILE

_IN_RINGS = 2 * TILE  # keys and values in the rings
_STEPS_OF_WIDE = 2  # pieces in the rings, of wider heads than 128
MOST_IN_RINGS = 4 * TILE  # with heads up to 64, and arrays up to
_FEW_ARRAYS = 16  # of a mask, with a number per key: these are in the rings, too
_SHORT = 1024  # keys


def takes_whole_tiles(signature: Signature) -> bool:
    """Whether the registers suffice for the scores of a whole tile of keys."""
    return max(signature.head_size, signature.value_size) <= 128


def default_piece(signature: Signature) -> int:
    """The number of keys in a piece, if nothing else was measured to be faster."""
    # Pieces behind a valid length are left out, which is worth smaller ones where there are few.
    # With a bias that was not measured.
    has_few = signature.is_ragged and signature.bias is None and signature.key_size <= _SHORT
    return TILE // 2 if has_few or not takes_whole_tiles(signature) else TILE


def piece_of(signature: Signature) -> int:
    """The number of keys in a piece."""
    return signature.piece or default_piece(signature)


def pieces(config: Config) -> tuple[int, int]:
    """The number of keys in a piece, and the number of pieces in the rings."""
    signature = config.signature
    rows = piece_of(signature)
    if not takes_whole_tiles(signature):
        return rows, _STEPS_OF_WIDE
    is_narrow = max(config.columns) <= 64 and len(config.rule.of_side(1)) <= _FEW_ARRAYS
    return rows, (MOST_IN_RINGS if is_narrow else _IN_RINGS) // rows
