"""How the tests of this room trace a function and check it."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from shapeexec.checking import Outcome, examine
from shapeexec.shape._dim import Dim
from shapeexec.shape._trace import Leaf, Trace, trace


def leaf(spec: str, dtype: Any = np.float32) -> Leaf:
    """A leaf of a spec such as "b, s, 4"."""
    parts = [part.strip() for part in spec.split(",") if part.strip()]
    return Leaf(tuple(int(p) if p.isdigit() else Dim(p) for p in parts), np.dtype(dtype))


def examined(
    fn: Callable[..., Any],
    spec: str,
    sizes: Mapping[str, int],
    traced_at: Mapping[str, int] | None = None,
) -> Outcome:
    """What checking a function of one f32 array at sizes finds."""
    traced = trace(fn, [leaf(spec)], sizes=sizes if traced_at is None else traced_at)
    assert traced.symbols, "nothing is symbolic in this trace"
    return examine(traced, fn, leaves=[leaf(spec)], sizes=sizes)


def plain_jaxpr(fn: Callable[..., Any], *structs: Any) -> Any:
    """What plain JAX traces."""
    return jax.jit(fn).trace(*structs).jaxpr


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    """The type of an f32 array."""
    return jax.ShapeDtypeStruct(shape, np.float32)


def traced_at(fn: Callable[..., Any], spec: str, sizes: Mapping[str, int]) -> Trace:
    """A symbolic trace."""
    return trace(fn, [leaf(spec)], sizes=sizes)
