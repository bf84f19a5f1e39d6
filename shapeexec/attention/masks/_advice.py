"""The fix for a `mask=` that is not a mask: numbers, a function, a score modifier.

If the values are known, they show the meaning of the numbers: 1 for allowed pairs and 0 for others,
or 0 and -inf (or a number with the same effect) to be added to scores.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from shapeexec.attention.masks._base import Mask
from shapeexec.attention.masks.scores import ScoreModifier

_NO_WEIGHT = -1e3  # exp(-1e3) is 0 in f64, too: the weight vanishes beside any score of 0


def of_numbers(mask: Any, *, name: str = "mask", to: str = "mask=", bias: str | None) -> str:
    """The fix for a mask of numbers.

    Args:
        mask: An array of any shape and of a dtype that is not bool; it may be traced.
        name: The user's name for the mask.
        to: The argument for the boolean mask, `mask=`.
        bias: The argument that adds it to the scores, `bias=mask`; None: no argument does.

    Returns:
        The text of an error's Fix.
    """
    ones, zeros = f"{to}{name} != 0", f"{to}{name} == 0"
    values = _values(mask)
    if values is not None and values.any() and np.isin(values, (0, 1)).all():
        return f"{ones}, for it holds 1 where a query may attend to a key, and 0 elsewhere"
    if values is not None and (values < 0).any() and ((values == 0) | (values <= _NO_WEIGHT)).all():
        meaning = f"it holds 0 where a query may attend to a key, and {values.min():g} elsewhere"
        return f"{zeros}, for {meaning}" + (
            f"; or {bias}, which adds it to the scores" * bool(bias)
        )
    general = f"{ones} if it holds 1 where a query may attend to a key, and 0 elsewhere"
    if jnp.issubdtype(mask.dtype, jnp.complexfloating):
        return general
    return f"{general}; {bias or zeros} if it is to be added to the scores: 0 there, -inf elsewhere"


def of_no_array(given: Any, name: str) -> str:
    """The fix for a `mask=` or `bias=` that is neither an array nor a mask or modifier."""
    general = {
        "mask": "pass a bool array, or a mask such as Causal() & other",
        "bias": "pass an array, or a score modifier such as ALiBi(slopes)",
    }[name]
    items = given if isinstance(given, (list, tuple)) else ()
    if isinstance(given, Mask | ScoreModifier):
        way_out = "mask=bias" if name == "bias" else "bias=mask"
    elif items and all(isinstance(item, Mask) for item in items):
        way_out = "mask=functools.reduce(operator.and_, mask), or with operator.or_"
    elif callable(given) and not isinstance(given, type) and name == "mask":
        way_out = "mask=sx.MaskFunction(mask)"
    else:
        return general
    return f"{way_out}; or {general}"


def _values(mask: Any) -> Any:
    """The values of a mask of real numbers as a NumPy array; None if they are not known."""
    is_held = not isinstance(mask, Tracer) and getattr(mask, "is_fully_addressable", True)
    is_real = jnp.issubdtype(mask.dtype, jnp.integer) or jnp.issubdtype(mask.dtype, jnp.floating)
    return np.asarray(mask).astype(np.float64) if is_held and is_real else None
