"""What fitted buckets cost on the lengths of a service, beside other ladders with as many graphs.

The four histograms are those of `ladders`, one symbol each. Pairs of a prompt and an answer are
drawn from both tables of a service, each length by itself, and fitted together: `sx.fit` beside
`Pow2`, `Geometric`, `Linear` and `Ladder.fit` of one symbol at a time. Each of these is the finest
with so many buckets, and of pairs gets the numbers of buckets that cost least with as many graphs.
The cost is that of a small encoder and decoder by its cost model, at a speed that is fixed; `waste`
is the share of it that padding takes.
"""

import argparse
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from benchmarks._common import Report, Table, run_benchmark
from benchmarks.ladders import histograms

GRAPHS = (4, 8, 16, 32)
PAIRS = 4000
WIDTH = 256
SPEED = sx.Speed(
    seconds_per_flop=1e-11,
    seconds_per_byte=2e-11,
    seconds_per_transcendental=2e-10,
    seconds_per_launch=3e-7,
    seconds_per_call=1e-5,
)
Counts = Mapping[tuple[int, ...], float]
Family = Callable[[Mapping[int, float], int], sx.Strategy]


def attend(query: jax.Array, read: jax.Array) -> jax.Array:
    """Attention of f32[t, WIDTH] to f32[s, WIDTH], and a layer of an MLP."""
    weights = jax.nn.softmax(query @ read.T / WIDTH**0.5, axis=1)
    hidden = jnp.tanh((weights @ read) @ jnp.ones((WIDTH, 4 * WIDTH)))
    return query + hidden @ jnp.ones((4 * WIDTH, WIDTH))


def answer(prompt: jax.Array, tokens: jax.Array) -> jax.Array:
    """An encoder of f32[c, WIDTH], and a decoder of f32[g, WIDTH] that reads both."""
    encoded = attend(prompt, prompt)
    return attend(attend(tokens, tokens), encoded)


@functools.cache
def models() -> dict[int, sx.CostModel]:
    """The cost model by the number of symbols."""
    x = np.ones((8, WIDTH), np.float32)
    one = sx.Exec(lambda x: attend(x, x), (f"c, {WIDTH}",)).cost_model(x)
    two = sx.Exec(answer, (f"c, {WIDTH}", f"g, {WIDTH}")).cost_model(x, x)
    return {1: one, 2: two}


def _shortest(made: Callable[[float], sx.Strategy], counts: Mapping[int, float], most: int) -> Any:
    """The finest of a family with at most so many buckets: `made` gets coarser from 0 to 1."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        strategy = made(middle)
        if len({strategy.bucket(size) for size in counts}) > most:
            low = middle
        else:
            high = middle
    return made(high)


def _pow2(counts: Mapping[int, float], most: int) -> sx.Strategy:
    bits = math.ceil(math.log2(max(counts)))
    return _shortest(lambda part: sx.Pow2(minimum=1 << round(part * bits)), counts, most)


def _geometric(counts: Mapping[int, float], most: int) -> sx.Strategy:
    first, last = min(counts), max(counts)

    def made(part: float) -> sx.Strategy:
        ratio = 1.001 + part * (last / first)
        return sx.Geometric(ratio, minimum=first, maximum=last)

    return _shortest(made, counts, most)


def _linear(counts: Mapping[int, float], most: int) -> sx.Strategy:
    return sx.Linear(-(-max(counts) // most), maximum=max(counts))


def _fitted(counts: Mapping[int, float], most: int) -> sx.Strategy:
    return sx.Ladder.fit(counts, most)


FAMILIES: dict[str, Family] = {
    "Pow2": _pow2,
    "Geometric": _geometric,
    "Linear": _linear,
    "Ladder.fit of each": _fitted,
}


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Requests, with what each costs without padding.

    Attributes:
        symbols: Of their sizes.
        sizes: int[n, symbols].
        counts: f64[n].
    """

    symbols: tuple[str, ...]
    sizes: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, counts: Counts) -> "Traffic":
        """The traffic of requests with counts."""
        sizes = np.array(list(counts))
        return cls(("c", "g")[: sizes.shape[1]], sizes, np.array(list(counts.values()), float))

    def marginal(self, axis: int) -> dict[int, float]:
        """How often each size of one symbol occurs."""
        found, place = np.unique(self.sizes[:, axis], return_inverse=True)
        return dict(zip(found.tolist(), np.bincount(place, self.counts).tolist(), strict=True))

    def cost(self, buckets: np.ndarray) -> float:
        """Seconds of all requests at int[n, symbols] buckets."""
        sizes = {symbol: buckets[:, i] for i, symbol in enumerate(self.symbols)}
        return float(self.counts @ models()[len(self.symbols)].seconds(SPEED, **sizes))


def _cheapest(traffic: Traffic, family: Family, graphs: int) -> tuple[float, int]:
    """The least cost of a family with at most so many graphs, and how many these are."""

    @functools.cache
    def column(axis: int, most: int) -> np.ndarray:
        counts = traffic.marginal(axis)
        strategy = family(counts, most)
        known = {size: strategy.bucket(size) for size in counts}
        return np.array([known[size] for size in traffic.sizes[:, axis].tolist()])

    found: list[tuple[float, int]] = []
    for most in _shares(graphs, len(traffic.symbols)):
        buckets = np.stack([column(axis, part) for axis, part in enumerate(most)], axis=1)
        used = len(np.unique(buckets, axis=0))
        if used <= graphs:
            found.append((traffic.cost(buckets), used))
    return min(found)


def _shares(graphs: int, symbols: int) -> Iterator[tuple[int, ...]]:
    """How many buckets each symbol may have: not all pairs of them need be in use."""
    if symbols == 1:
        return iter([(graphs,)])
    pairs = itertools.product(range(1, graphs + 1), repeat=2)
    return ((a, b) for a, b in pairs if graphs / 3 < a * b <= 2 * graphs)


def drawn(tables: Mapping[str, Mapping[int, int]], service: str, *, count: int) -> Counts:
    """Pairs of a prompt's and an answer's length, each drawn by itself."""
    random = np.random.default_rng(0)
    columns: list[np.ndarray] = []
    for kind in ("context", "generated"):
        lengths = tables[f"{service}, {kind}"]
        weights = np.array(list(lengths.values()), float)
        columns.append(random.choice(list(lengths), size=count, p=weights / weights.sum()))
    pairs, counts = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)
    return {tuple(pair): float(n) for pair, n in zip(pairs.tolist(), counts, strict=True)}


def _measure(counts: Counts, graphs: Sequence[int]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    traffic = Traffic.of(counts)
    exact = traffic.cost(traffic.sizes)
    for most in graphs:
        fit = sx.fit(models()[len(traffic.symbols)], counts, graphs=most, speed=SPEED)
        own = {"least_waste": fit.least_waste, "is_optimal": fit.is_optimal}
        yield most, "sx.fit", {**_figures(fit.cost, fit.graphs, exact=exact), **own}
        for name, family in FAMILIES.items():
            cost, used = _cheapest(traffic, family, most)
            yield most, name, _figures(cost, used, exact=exact)


def _figures(cost: float, used: int, *, exact: float) -> dict[str, Any]:
    waste = max(0.0, 1 - exact / cost)  # two orders of one sum may differ in the last bit
    return {"graphs": used, "seconds": cost, "waste": waste}


def run(options: argparse.Namespace) -> Report:
    """Compare all ladders on all traffic."""
    tables = histograms(options.data)
    traffic: dict[str, Counts] = {
        name: {(size,): float(count) for size, count in lengths.items()}
        for name, lengths in tables.items()
    }
    count = 50 if options.tiny else PAIRS
    for service in ("code", "conv"):
        traffic[f"{service}, pairs"] = drawn(tables, service, count=count)
    figures: dict[str, Any] = {}
    rows: list[tuple[str, ...]] = []
    for name, counts in traffic.items():
        for most, family, one in _measure(counts, GRAPHS[:2] if options.tiny else GRAPHS):
            figures.setdefault(name, {}).setdefault(str(most), {})[family] = one
            least = f"{one['least_waste']:.1%}" if "least_waste" in one else ""
            cells = (f"{one['graphs']}", f"{one['seconds']:.4g}", f"{one['waste']:.1%}", least)
            rows.append((name, str(most), family, *cells))
    if options.plot is not None:
        save_plot(figures, options.plot)
    columns = ("requests", "at most", "strategy", "graphs", "cost, s", "waste", "at least")
    title = "Azure LLM inference trace 2023 (Patel et al., ISCA 2024; CC-BY 4.0)"
    return Report([Table(title, columns, rows)], figures)


def save_plot(figures: Mapping[str, Any], path: Path) -> None:
    """Draw the waste of each strategy by the number of graphs, a panel per traffic."""
    import matplotlib  # noqa: PLC0415 - only a plot needs it

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415 - behind the choice of its back end

    drawing, panels = plt.subplots(2, 3, figsize=(12, 7), sharex=True, layout="constrained")
    for axes, (name, by_graphs) in zip(panels.flat, figures.items(), strict=True):
        for family in ("sx.fit", *FAMILIES):
            wastes = [100 * by_graphs[most][family]["waste"] for most in by_graphs]
            axes.plot([int(most) for most in by_graphs], wastes, marker="o", label=family)
        axes.set_title(name)
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
    panels[0, 0].legend()
    drawing.supxlabel("graphs, at most")
    drawing.supylabel("padding, percent of the modelled cost")
    drawing.savefig(path, dpi=80)
    plt.close(drawing)


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run as a program."""
    return run_benchmark("fitting", __doc__, run=run, arguments=arguments, add_options=_options)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, metavar="DIRECTORY")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the table into a PNG")


if __name__ == "__main__":
    main()
