"""Elements of arguments that are data, and those that padding adds to them.

`_stats` adds them up.
"""

import math
from collections.abc import Mapping, Sequence

from shapeexec.execution._key import Base
from shapeexec.execution._stats import Elements
from shapeexec.shape import _dim


def elements_of(
    base: Base,
    *,
    capacities: Sequence[tuple[int, ...]],
    all_sizes: Sequence[Mapping[str, int]],
    rows: int,
) -> Elements:
    """The elements of a call, or of examples that share a graph.

    Args:
        base: Tells which arguments are ragged, and their dims and dtypes.
        capacities: Per leaf of the arguments its capacities.
        all_sizes: Per example the true size of each symbol.
        rows: How many examples the graph takes, fillers too; 1 for a call.
    """
    valid = bucket = padded_bytes = 0
    leaves = zip(base.dims, base.dtypes, capacities, base.is_ragged, strict=True)
    for dims, (dtype, _), capacity, is_ragged in leaves:
        if not is_ragged:
            continue
        data = sum(math.prod(_dim.evaluate(d, sizes) for d in dims) for sizes in all_sizes)
        held = rows * math.prod(capacity)
        valid, bucket = valid + data, bucket + held
        padded_bytes += (held - data) * dtype.itemsize
    return Elements(valid, bucket, padded_bytes)
