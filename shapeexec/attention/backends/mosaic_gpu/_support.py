"""Which calls the Hopper kernels can run: devices, sizes, and the element rules of masks.

It traces a mask's rule and looks up its operations; it lowers nothing.
"""

import jax
import numpy as np

from shapeexec.attention.backends import _device
from shapeexec.attention.backends._base import Signature, refusal_of_sizes
from shapeexec.attention.backends._elementwise import refusal_of_operations
from shapeexec.attention.backends.mosaic_gpu._rules import rule_of, trace_rule
from shapeexec.attention.backends.mosaic_gpu._tiles import TILE
from shapeexec.attention.masks import ALiBi, Mask, RelativeBias, ScoreModifier

_DTYPES = ("bfloat16", "float16")
_LARGEST_HEAD = 256
_OLDEST_JAX = (0, 11)

# Known by type: a signature holds the type of a modifier, so its rule cannot be traced.
_MODIFIERS: tuple[type[ScoreModifier], ...] = (ALiBi, RelativeBias)

# The primitives that Mosaic lowers on values in an accumulator's layout.
_OPERATIONS = frozenset(
    """add sub mul max min neg abs sign rem div and or xor not eq ne lt le gt ge select_n
    broadcast_in_dim convert_element_type squeeze shift_left shift_right_logical
    shift_right_arithmetic clamp jit pjit closed_call""".split()
)


def of_device(platform: str) -> str | None:
    """Why it cannot run on the device at hand; None if it can."""
    if jax.__version_info__ < _OLDEST_JAX:
        return f"it needs jax {'.'.join(map(str, _OLDEST_JAX))}, and this is {jax.__version__}"
    if platform != "cuda":
        return f"it needs a Hopper GPU, and this is {platform}"
    capability = _device.compute_capability()
    if capability is None:
        return "there is no GPU, so whether it is a Hopper is unknown"
    if capability != _device.HOPPER:
        needed, there = (".".join(map(str, each)) for each in (_device.HOPPER, capability))
        return f"it needs compute capability {needed}, and this has {there}"
    return None


def of_call(signature: Signature, mask: Mask) -> str | None:
    """Why it cannot run a call; None if it can."""
    if reason := refusal_of_sizes(
        signature, _DTYPES, largest_head=_LARGEST_HEAD, memory="shared memory"
    ):
        return reason
    if signature.bias_gradient:
        return "its kernels make no gradient of a bias"
    if isinstance(signature.bias, type) and signature.bias not in _MODIFIERS:
        known = " and ".join(kind.__name__ for kind in _MODIFIERS)
        return f"of score modifiers it knows {known}, not {signature.bias.__name__}"
    if not signature.scale > 0:
        return f"it finds the largest score before it scales it, and {signature.scale} is not > 0"
    return of_mask(mask)


def of_mask(mask: Mask) -> str | None:
    """Why a mask's rule cannot run inside the kernels; None if it can."""
    rule = rule_of(mask)
    traced, reads = trace_rule(rule.allows, (TILE, TILE))
    if reason := refusal_of_operations(traced, _OPERATIONS):
        return reason
    for known in rule.uses:
        if np.dtype(known.dtype).itemsize > 4:
            return f"a mask holds {known.dtype}, and it takes at most 32 bits"
    for read in reads:
        if read.role == "of_table":
            return "it cannot look up tables inside a tile"
        if read.role == "of_tile" and any(size % TILE for size in read.more[0]):
            return f"blocks of {' x '.join(map(str, read.more[0]))} are not multiples of {TILE}"
    return None
