"""The rows of a cache as a table of at most 110 columns: by rich where it is, else plainly.

`_graphs` makes the rows, and `_plot` draws them.
"""

import collections
import importlib.util
import io
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shapeexec._errors import ConfigError
from shapeexec.execution._key import kind_of
from shapeexec.execution._row import GraphRow

WIDTH = 110
_GAP = 2
_NARROWEST = 8
_MOST_SHARED = 6
_BYTES = ("B", "kB", "MB", "GB", "TB")
_TEXTS = ("buckets", "parts")  # these are broken into lines where they are too long


def _share(row: GraphRow) -> str:
    return f"{row.waste:.1%}" if row.bucket_elements else "-"


def bytes_text(count: float) -> str:
    """Bytes as a string: `1.2 MB`, in powers of 1,000."""
    for unit in _BYTES[:-1]:
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} {_BYTES[-1]}"


def _ago(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    for unit, length in (("s", 60), ("min", 60), ("h", 24)):
        if seconds < length:
            return f"{seconds:.0f} {unit}"
        seconds /= length
    return f"{seconds:.0f} days"


_CELLS: dict[str, Callable[[GraphRow], str]] = {
    "hits": lambda row: str(row.hits),
    "last use": lambda row: _ago(row.last_use),
    "waste": _share,
    "bytes": lambda row: "-" if row.bytes is None else bytes_text(row.bytes.total),
    "seconds": lambda row: f"{row.seconds.total:.2f} s",
    "origin": lambda row: row.origin,
}
COLUMNS = (*_TEXTS, *_CELLS)


def drawn(rows: Sequence[GraphRow], columns: Sequence[str] = ()) -> str:
    """The table as a string.

    Args:
        rows: The graphs.
        columns: Of `COLUMNS`; none: all of them.

    Raises:
        ConfigError: A column is not one of `COLUMNS`.
    """
    above, grid = _laid_out(rows, columns)
    return "\n".join([*above, *grid_lines(grid, _TEXTS)])


def grid_lines(grid: Sequence[Sequence[str]], texts: Sequence[str]) -> list[str]:
    """A table as lines of text: by rich where it is installed; none if it has heads alone.

    Args:
        grid: The heads, and below them the rows.
        texts: The heads of columns that stand to the left.
    """
    if len(grid) == 1:
        return []
    if importlib.util.find_spec("rich") is None:
        return [*_plain(grid, texts)]
    from rich.console import Console  # noqa: PLC0415 - it may not be installed

    text = io.StringIO()
    console = Console(file=text, width=WIDTH, color_system=None, legacy_windows=False)
    console.print(rich_table(grid, texts))
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    return [*filter(None, lines)]


def renderable(rows: Sequence[GraphRow]) -> Any:
    """The table as a renderable of rich."""
    from rich.console import Group  # noqa: PLC0415 - rich asked for it
    from rich.text import Text  # noqa: PLC0415 - rich may not be installed

    above, grid = _laid_out(rows, ())
    return Group(*map(Text, above), *([rich_table(grid, _TEXTS)] if len(grid) > 1 else []))


def rich_table(grid: Sequence[Sequence[str]], texts: Sequence[str]) -> Any:
    """A table as rich draws it; see `grid_lines`."""
    from rich import box  # noqa: PLC0415 - it may not be installed
    from rich.table import Table  # noqa: PLC0415 - rich may not be installed
    from rich.text import Text  # noqa: PLC0415 - likewise

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1), pad_edge=False)
    for name in grid[0]:
        is_text = name in texts
        table.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text)
    for row in grid[1:]:
        table.add_row(*map(Text, row))  # brackets are no mark-up here
    return table


def _laid_out(
    rows: Sequence[GraphRow], columns: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """Lines that stand above the table, and its cells, which fit; the first row are the heads."""
    for column in columns:
        if column not in COLUMNS:
            raise ConfigError(
                f"table: there is no column {column!r}.",
                option="columns",
                fix=f"one of {', '.join(COLUMNS)}",
            )
    shared, own = parts(rows)
    above = [_total(rows), *_listed(shared)]
    texts = {
        "buckets": [row.sizes for row in rows],
        "parts": [", ".join(named) for named in own],
    }
    if not columns and not any(texts["parts"]):
        columns = [column for column in COLUMNS if column != "parts"]
    columns = columns or COLUMNS
    cells = {
        name: texts[name] if name in texts else [_CELLS[name](row) for row in rows]
        for name in columns
    }
    numbers = [str(number) for number in range(len(rows))]
    widths = {name: max(map(len, (name, *column))) for name, column in cells.items()}
    taken = sum(width + _GAP + 1 for name, width in widths.items() if name not in _TEXTS)
    left = WIDTH - max(map(len, ("#", *numbers))) - taken - _GAP - 1
    for name, width in _fitted({n: w for n, w in widths.items() if n in _TEXTS}, left).items():
        cells[name] = ["\n".join(_wrapped(text, width)) for text in cells[name]]
    lines = zip(numbers, *cells.values(), strict=True)
    return above, [["#", *cells], *map(list, lines)]


def parts(rows: Sequence[GraphRow]) -> tuple[list[str], list[list[str]]]:
    """The parts of keys that all graphs share, and per graph the other parts; without buckets."""
    counts = collections.Counter(text for row in rows for text in dict.fromkeys(row.named))
    shared = [text for text, count in counts.items() if count == len(rows)]
    own = [[text for text in row.named if counts[text] < len(rows)] for row in rows]
    own = [sorted(texts, key=lambda text: counts[text]) for texts in own]  # what tells most, first
    kinds = [kind_of(row.key) for row in rows]
    settings = [kind.base.settings for kind in kinds]
    for name in dict.fromkeys(name for own in settings for name in own):
        values = [own.get(name) for own in settings]
        if any(value != values[0] for value in values):
            for texts, value in zip(own, values, strict=True):
                texts.append(f"{name} {value!r:.30}")
    alike = collections.Counter((row.sizes, *texts) for row, texts in zip(rows, own, strict=True))
    for row, texts, kind in zip(rows, own, kinds, strict=True):
        if alike[row.sizes, *texts] > 1:  # of two objects that print alike
            texts.append(f"trace {kind.trace}")
    return shared, own


def _total(rows: Sequence[GraphRow]) -> str:
    valid, bucket = (
        sum(row.valid_elements for row in rows),
        sum(row.bucket_elements for row in rows),
    )
    waste = f", {1 - valid / bucket:.1%} padding" if bucket else ""
    hits = sum(row.hits for row in rows)
    named = f"{len(rows)} graph{'s' * (len(rows) != 1)}, {hits} hit{'s' * (hits != 1)}"
    return f"{named}{waste}" + (":" if rows else "")


def _listed(shared: Sequence[str]) -> list[str]:
    lines = [_clipped(f"  {text}", WIDTH) for text in shared[:_MOST_SHARED]]
    more = len(shared) - len(lines)
    return [*lines, *([f"  and {more} more that all have"] if more else [])]


def _clipped(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _fitted(widths: dict[str, int], left: int) -> dict[str, int]:
    """Widths of columns that may be broken into lines, so that they have room together."""
    left -= (_GAP + 1) * len(widths)
    while sum(widths.values()) > left and max(widths.values()) > _NARROWEST:
        longest = max(widths, key=lambda name: widths[name])
        widths[longest] -= 1
    return widths


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def _plain(grid: Sequence[Sequence[str]], texts: Sequence[str]) -> Iterable[str]:
    heads = grid[0]
    split = [[cell.splitlines() or [""] for cell in row] for row in grid]
    widths = [max(len(line) for row in split for line in row[i]) for i in range(len(heads))]
    for number, row in enumerate(split):
        for line in range(max(map(len, row))):
            cells = [cell[line] if line < len(cell) else "" for cell in row]
            aligned = (
                cell.ljust(width) if head in texts else cell.rjust(width)
                for cell, width, head in zip(cells, widths, heads, strict=True)
            )
            yield (" " * _GAP).join(aligned).rstrip()
        if not number:
            yield "-" * (sum(widths) + _GAP * (len(widths) - 1))
