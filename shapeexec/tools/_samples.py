"""Makes calls at other sizes from the arguments of one call.

`_validate` runs them and compares.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec.bucketing import checked_bucket
from shapeexec.execution._planner import Planner
from shapeexec.execution._split import Call
from shapeexec.shape import _dim


def size_sets(
    planner: Planner, sizes: Mapping[str, int], *, rounds: int, rng: np.random.Generator
) -> Iterator[dict[str, int]]:
    """Yield the given sizes, their buckets, 1, then random sizes up to the buckets; each once."""
    ragged = {symbol: size for symbol, size in sizes.items() if size}
    buckets = {s: checked_bucket(planner.strategy(s), size) for s, size in ragged.items()}
    fixed = [dict(sizes), {**sizes, **buckets}, {**sizes, **dict.fromkeys(ragged, 1)}]
    drawn = (
        {**sizes, **{s: int(rng.integers(1, buckets[s] + 1)) for s in ragged}}
        for _ in range(rounds)
    )
    seen: set[tuple[int, ...]] = set()
    for chosen in (*fixed, *drawn):
        if len(seen) < rounds and tuple(chosen.values()) not in seen:
            seen.add(tuple(chosen.values()))
            yield chosen


def resized(
    call: Call,
    dims: Mapping[int, Sequence[Any]],
    *,
    sizes: Mapping[str, int],
    rng: np.random.Generator,
) -> Call:
    """Make a call at other sizes, with rows drawn from those of the given call.

    Args:
        call: A call.
        dims: The dims of each ragged leaf, by its number.
        sizes: The size of each symbol.
        rng: Draws the rows.
    """
    leaves, tree = jax.tree.flatten((tuple(call.arrays), dict(call.named)))
    for index, leaf_dims in dims.items():
        shape = tuple(_dim.evaluate(dim, sizes) for dim in leaf_dims)
        leaves[index] = _drawn(leaves[index], shape, rng=rng)
    args, kwargs = jax.tree.unflatten(tree, leaves)
    return call.replaced(list(args), kwargs)


def _drawn(leaf: Any, shape: tuple[int, ...], *, rng: np.random.Generator) -> Any:
    if shape == leaf.shape:
        return leaf
    rows = [
        np.arange(new) if new == old else rng.integers(0, old, new)
        for new, old in zip(shape, leaf.shape, strict=True)
    ]
    if not isinstance(leaf, jax.Array):
        return np.asarray(leaf)[np.ix_(*rows)]
    for axis, chosen in enumerate(rows):
        leaf = jnp.take(leaf, chosen, axis=axis)
    return leaf
