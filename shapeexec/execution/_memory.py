"""Graphs that do not fit into memory: the error, with its numbers.

`_runner` decides what a call does then, and `_exactness` remembers the buckets that were given up.
"""

from collections.abc import Mapping

from shapeexec._errors import OutOfMemoryError
from shapeexec.execution._row import GraphBytes, GraphRow


def raise_if_out_of_memory(error: Exception, row: GraphRow, *, sizes: Mapping[str, int]) -> None:
    """Raise an `OutOfMemoryError` if JAX's error means that memory ran out.

    Args:
        error: The error that JAX raised while a graph was made or ran.
        row: The graph.
        sizes: The true size of each symbol.

    Raises:
        OutOfMemoryError: Memory ran out.
    """
    text = str(error)
    if "RESOURCE_EXHAUSTED" not in text and "out of memory" not in text.lower():
        return
    raise OutOfMemoryError(
        f"the graph {row.sizes} does not fit into memory.",
        sizes=dict(sizes),
        buckets={s: bucket for s, bucket in row.buckets.items() if s not in row.exact},
        bytes=None if row.bytes is None else row.bytes.total,
        got=_bytes_text(row.bytes) + text.partition("\n")[0][:200],
        fix=f"{_less(row, sizes)}; or a finer strategy; or fewer graphs at once, "
        "limits=sx.CacheLimits(graphs=8)",
    ) from error


def _less(row: GraphRow, sizes: Mapping[str, int]) -> str:
    """A fix that takes less memory than this graph."""
    if row.examples is not None:
        return "map fewer examples at once"
    if row.buckets == sizes:  # nothing is padded
        return "a smaller batch"
    return 'on_memory="exact", which runs the sizes of such a bucket exactly'


def _bytes_text(held: GraphBytes | None) -> str:
    if held is None:
        return ""
    parts = ("inputs", "outputs", "temporaries", "code")
    amounts = ", ".join(f"{getattr(held, part) / 2**20:,.1f} MiB {part}" for part in parts)
    return f"it takes {amounts}; "
