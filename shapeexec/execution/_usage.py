"""Elements of arguments that are data, and those that padding adds to them.

`_stats` adds them up.
"""

import math
from collections.abc import Mapping, Sequence

from shapeexec.execution._compile import Recipe
from shapeexec.execution._key import Base
from shapeexec.execution._stats import Elements
from shapeexec.shape import _dim


def elements_of(
    base: Base,
    recipe: Recipe,
    *,
    capacities: Sequence[tuple[int, ...]],
    all_sizes: Sequence[Mapping[str, int]],
    rows: int,
) -> Elements:
    """The elements of a call, or of examples that share a graph.

    Args:
        base: Tells which arguments are ragged.
        recipe: Its trace tells the dims and dtypes of the arguments.
        capacities: Per leaf of the arguments its capacities.
        all_sizes: Per example the true size of each symbol.
        rows: How many examples the graph takes, fillers too; 1 for a call.
    """
    valid = bucket = padded_bytes = 0
    trace = recipe.trace
    own_sizes = [trace.substitution.sizes(sizes) for sizes in all_sizes]
    for aval, capacity, is_ragged in zip(
        trace.jaxpr.in_avals, capacities, base.is_ragged, strict=True
    ):
        if not is_ragged:
            continue
        data = sum(math.prod(_dim.evaluate(d, own) for d in aval.shape) for own in own_sizes)
        held = rows * math.prod(capacity)
        valid, bucket = valid + data, bucket + held
        padded_bytes += (held - data) * aval.dtype.itemsize
    return Elements(valid, bucket, padded_bytes)
