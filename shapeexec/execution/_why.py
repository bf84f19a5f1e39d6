"""Why a call would compile: which part of a graph's key no graph has.

`_planner` plans the call; nothing is compiled here.
"""

import dataclasses
import math
from collections.abc import Hashable, Mapping

from shapeexec.execution._graphs import Graphs, row_of
from shapeexec.execution._key import kind_of, shown_sizes
from shapeexec.execution._placement import sharding_text
from shapeexec.execution._plan import Plan, Planned
from shapeexec.execution._row import GraphRow

_Parts = Mapping[str, tuple[Hashable, str]]
_STRUCTURE = "the structure of the arguments"
_MISSING: tuple[Hashable, str] = (None, "nothing")


@dataclasses.dataclass(frozen=True)
class WhyNew:
    """Whether a call needs a graph that is not compiled, and why; `print` it.

    Attributes:
        is_new: Whether no graph serves the call.
        missing: Parts of the call's key that no graph has, such as `s=128`; empty if each part is
            in some graph, but no graph has all of them.
        nearest: The number of the graph in `graphs` that has most in common with the call, or that
            serves it; None if there are no graphs of calls.
        differences: How that graph differs, such as `s: 64, here 128`.
        graphs: The graphs at that time. It keeps none of them alive: ask the Exec for their `hlo`.
        plan: What the call would run; for a map, its first example.
        examples: How many examples the graph takes; None: a graph of plain calls.

    Example:
        >>> run = sx.Exec(jnp.sum, ("s",))
        >>> _ = run(np.ones(5, np.float32))
        >>> print(run.why_new(np.ones(9, np.float32)))
        no graph has s=16; the nearest, graph 0 (s=8), differs in s: 8, here 16
    """

    is_new: bool
    missing: tuple[str, ...]
    nearest: int | None
    differences: tuple[str, ...]
    graphs: Graphs = dataclasses.field(repr=False)
    plan: Plan = dataclasses.field(repr=False)
    examples: int | None = None

    def __str__(self) -> str:
        if self.nearest is None:
            return f"no graph of a {'call' if self.examples is None else 'map'} is compiled yet"
        named = f"graph {self.nearest} ({self.graphs[self.nearest].sizes})"
        if not self.is_new:
            return f"not new: {named} serves this call"
        first = (
            f"no graph has {' or '.join(self.missing)}"
            if self.missing
            else "each part is in some graph, but no graph has all of them"
        )
        return f"{first}; the nearest, {named}, differs in {'; '.join(self.differences)}"


def why_new(planned: Planned, graphs: Graphs) -> WhyNew:
    """Compare a plan with all graphs of its kind: calls with calls, maps with maps.

    Args:
        planned: The plan of the call, or a group of examples.
        graphs: The graphs in the cache.
    """
    plan, examples = planned.first, planned.examples
    graphs = Graphs(tuple(dataclasses.replace(row, compiled=None) for row in graphs))
    for number, row in enumerate(graphs):
        if row.key == planned.key:
            return WhyNew(False, (), number, (), graphs, plan, examples)
    own = row_of(planned, "made")
    rows = {
        number: row
        for number, row in enumerate(graphs)
        if (row.examples is None) == (examples is None)
    }
    if not rows:
        return WhyNew(True, (), None, (), graphs, plan, examples)
    wanted = _parts_of(own)
    held = {number: _parts_of(row) for number, row in rows.items()}
    missing = tuple(
        _part_text(name, text)
        for name, (_, text) in wanted.items()
        if all(name in _differing(parts, wanted) for parts in held.values())
    )
    differing = {number: _differing(parts, wanted) for number, parts in held.items()}
    nearest = min(
        rows, key=lambda n: (len(differing[n]), _distance(rows[n].buckets, own.buckets), -n)
    )
    differences = tuple(
        f"{name}: {held[nearest].get(name, _MISSING)[1]}, here {wanted.get(name, _MISSING)[1]}"
        for name in differing[nearest]
    )
    forgotten = "the trace, which was forgotten and made anew"
    return WhyNew(True, missing, nearest, differences or (forgotten,), graphs, plan, examples)


def _parts_of(row: GraphRow) -> _Parts:
    """By name each part of the key of a graph: its value and a string."""
    kind = kind_of(row.key)
    base, exact = kind.base, dict(kind.exact)
    parts: dict[str, tuple[Hashable, str]] = {}
    for symbol, size in row.buckets.items():
        text = shown_sizes({symbol: size}, exact, examples=None)
        parts[symbol] = ((size, symbol in exact), text.removeprefix(f"{symbol}="))
    leaves = zip(base.paths, base.leaves, base.dims, base.dtypes, strict=True)
    for path, leaf, dims, dtype in leaves:
        shape = f"[{','.join(dims)}]"
        parts[f"the dtype of {path}"] = (dtype, leaf.replace(shape, ""))
        parts[f"the shape of {path}"] = (dims, shape)
    for path, sharding in kind.shardings.items():
        text = "not committed" if sharding is None else sharding_text(sharding)
        parts[f"the sharding of {path}"] = (sharding, text)
    padding = "zero" if kind.zero_results else "unspecified"
    parts["the padding of results"] = (kind.zero_results, padding)
    parts |= base.static_parts
    texts = frozenset(map(str, row.guards))
    parts["the guards"] = (texts, " and ".join(sorted(texts)) or "none")
    parts |= {name: (value, f"{value!r:.40}") for name, value in base.settings.items()}
    parts[_STRUCTURE] = (base.tree, f"{base.tree!s:.60}")
    if row.examples is not None:
        parts["the number of examples"] = (row.examples, str(row.examples))
        parts["reduce"] = (row.reduce, f"{row.reduce!r}")
    return parts


def _part_text(name: str, text: str) -> str:
    return f"{text} as {name}" if " " in name else f"{name}={text}"


def _differing(parts: _Parts, wanted: _Parts) -> list[str]:
    if parts[_STRUCTURE] != wanted[_STRUCTURE]:  # other differences follow from this one
        names = [name for name in wanted if name in parts]
    else:
        names = list(dict.fromkeys([*wanted, *parts]))
    return [n for n in names if parts.get(n, _MISSING)[0] != wanted.get(n, _MISSING)[0]]


def _distance(buckets: Mapping[str, int], wanted: Mapping[str, int]) -> float:
    """The distance of two sets of buckets: the sum of the absolute logs of their ratios."""
    both = buckets.keys() & wanted.keys()
    return sum(abs(math.log(max(1, buckets[s])) - math.log(max(1, wanted[s]))) for s in both)
