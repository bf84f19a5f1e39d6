"""Which graphs a range of sizes needs, before there is any data."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax

from shapeexec._errors import ConfigError
from shapeexec.bucketing import Strategy, checked_bucket
from shapeexec.execution._transfer import struct_like
from shapeexec.shape import _dim

MOST_COMBINATIONS = 100_000


def as_sizes(symbol: str, sizes: Any) -> tuple[int, ...]:
    """The sizes of one symbol, given as an int or an iterable of ints.

    Raises:
        ConfigError: They are neither, or there is none.
    """
    try:
        listed = (sizes,) if isinstance(sizes, int) else tuple(int(size) for size in sizes)
    except (TypeError, ValueError):
        listed = ()
    if not listed or min(listed) < 1:
        raise ConfigError(
            f"warmup: {symbol}={sizes!r} names no sizes of at least 1.",
            fix=f"{symbol}=range(1, 513), or {symbol}=128",
        )
    return tuple(sorted(set(listed)))


def representatives(strategy: Strategy, sizes: Iterable[int]) -> tuple[int, ...]:
    """The largest of `sizes` in each bucket that they use."""
    return tuple({checked_bucket(strategy, size): size for size in sizes}.values())


def combinations(sizes: Mapping[str, tuple[int, ...]]) -> Iterator[dict[str, int]]:
    """Every combination of one size per symbol."""
    for values in itertools.product(*sizes.values()):
        yield dict(zip(sizes, values, strict=True))


def at_sizes(tree: Any, dims: Mapping[int, tuple[Any, ...]], sizes: Mapping[str, int]) -> Any:
    """A tree of arguments with each ragged leaf replaced by its shape at `sizes`.

    Args:
        tree: The arguments: arrays or `jax.ShapeDtypeStruct`.
        dims: By number of leaf the dims of those that are ragged.
        sizes: The size of each symbol.
    """
    leaves, treedef = jax.tree.flatten(tree)
    for index, leaf_dims in dims.items():
        shape = tuple(_dim.evaluate(dim, sizes) for dim in leaf_dims)
        leaves[index] = struct_like(leaves[index], shape)
    return jax.tree.unflatten(treedef, leaves)
