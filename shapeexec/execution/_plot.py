"""A plot of the cache; the one module of this package that imports matplotlib.

`Graphs.plot` imports it when it is called; `_table` prints the same rows.
"""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.ticker import EngFormatter, MaxNLocator

from shapeexec.execution._row import GraphRow
from shapeexec.execution._table import parts

_MOST = 40
_HITS, _DATA, _PADDING = "#5b6770", "#2f6f9f", "#f0a35e"
_LONGEST = 48


def plot_rows(rows: Sequence[GraphRow], figure: Any) -> Any:
    """Draw hits to the left, and to the right the elements that ran: data and padding.

    Graphs stand in the order of their buckets; of more than 40 those without much use are one bar.

    Args:
        rows: The graphs, at least one.
        figure: A matplotlib figure; None makes a new one.

    Returns:
        The figure.
    """
    _, own = parts(rows)
    labels = [_label(row, named) for row, named in zip(rows, own, strict=True)]
    bars = [
        (labels[i], row.hits, row.valid_elements, row.bucket_elements)
        for i, row in sorted(enumerate(rows), key=lambda one: _place(one[1]))
    ]
    bars = _fewer(bars)
    if figure is None:
        figure = plt.figure(figsize=(10, 1.4 + 0.3 * len(bars)), layout="constrained")  # pyright: ignore[reportUnknownMemberType] - other keywords have no type
    left, right = figure.subplots(1, 2, sharey=True)
    labels, hits, valid, bucket = zip(*bars, strict=True)
    places = range(len(bars))
    left.barh(places, hits, color=_HITS)
    left.bar_label(left.containers[0], fmt="{:,.0f}", padding=3)
    left.set_yticks(places, labels)
    left.invert_yaxis()
    left.set(title="hits", xlim=(0, 1.2 * max(*hits, 1)))
    left.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    padding = [ran - data for data, ran in zip(valid, bucket, strict=True)]
    right.barh(places, valid, color=_DATA, label="data")
    right.barh(places, padding, left=valid, color=_PADDING, label="padding")
    shares = [
        f"{lost / ran:.0%} padding" if ran else "not run"
        for lost, ran in zip(padding, bucket, strict=True)
    ]
    right.bar_label(right.containers[1], labels=shares, padding=3)
    lost, ran = sum(padding), sum(bucket)
    share = f", {lost / ran:.1%} padding" if ran else ""
    right.set(title=f"elements{share}", xlim=(0, 1.35 * max(*bucket, 1)))
    right.xaxis.set_major_formatter(EngFormatter())
    right.xaxis.set_major_locator(MaxNLocator(5))
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _label(row: GraphRow, named: Sequence[str]) -> str:
    text = ", ".join([row.sizes, *named])
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _place(row: GraphRow) -> tuple[Any, ...]:
    return (row.examples or 0, *row.buckets.values())


_Bar = tuple[str, int, int, int]


def _fewer(bars: list[_Bar]) -> list[_Bar]:
    if len(bars) <= _MOST:
        return bars
    used = sorted(range(len(bars)), key=lambda i: -bars[i][3])
    kept = sorted(used[: _MOST - 1])
    others = [bars[i] for i in used[_MOST - 1 :]]
    _, hits, valid, bucket = zip(*others, strict=True)
    rest = (f"{len(others)} others", sum(hits), sum(valid), sum(bucket))
    return [*(bars[i] for i in kept), rest]
