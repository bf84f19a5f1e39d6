"""What to write in place of a mask that holds numbers.

Which pairs it means is told by its values, where they are known: 1 may attend and 0 not, or 0 is
added to a score and -inf, or what is as good, where a query may not attend.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

_NO_WEIGHT = -1e3  # exp of it is 0 in f64, too: beside any score of 0 nothing is left


def of_numbers(mask: Any, *, name: str = "mask", to: str = "mask=", bias: str | None) -> str:
    """The way out for a mask of numbers.

    Args:
        mask: Of any shape and of a dtype that is not bool; traced or not.
        name: What the user calls it.
        to: What the boolean mask is given to, `mask=`.
        bias: What adds it to the scores, `bias=mask`; None: nothing can.

    Returns:
        The text of an error's Fix.
    """
    ones, zeros = f"{to}{name} != 0", f"{to}{name} == 0"
    values = _values(mask)
    if values is not None and values.any() and np.isin(values, (0, 1)).all():
        return f"{ones}, for it holds 1 where a query may attend to a key, and 0 elsewhere"
    if values is not None and (values < 0).any() and ((values == 0) | (values <= _NO_WEIGHT)).all():
        told = f"it holds 0 where a query may attend to a key, and {values.min():g} elsewhere"
        return f"{zeros}, for {told}" + (f"; or {bias}, which adds it to the scores" * bool(bias))
    told = f"{ones} if it holds 1 where a query may attend to a key, and 0 elsewhere"
    if jnp.issubdtype(mask.dtype, jnp.complexfloating):
        return told
    return f"{told}; {bias or zeros} if it is to be added to the scores: 0 there, -inf elsewhere"


def _values(mask: Any) -> Any:
    """The values of a mask of real numbers as a NumPy array; None if they are not known."""
    is_held = not isinstance(mask, Tracer) and getattr(mask, "is_fully_addressable", True)
    is_real = jnp.issubdtype(mask.dtype, jnp.integer) or jnp.issubdtype(mask.dtype, jnp.floating)
    return np.asarray(mask).astype(np.float64) if is_held and is_real else None
