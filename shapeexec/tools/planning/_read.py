"""Reads lengths from files: one a line, or a column of a CSV file. It knows nothing of buckets."""

import contextlib
import csv
import math
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from shapeexec._errors import ConfigError


def read_lengths(
    path: str | Path,
    *,
    column: str | None = None,
    count: str | None = None,
    where: Mapping[str, str] | None = None,
) -> dict[int, float]:
    """Read lengths from a file.

    Without options each line holds one length, or several separated by blanks or commas. With any
    option, or if the file is named `*.csv`, it is a CSV file whose first line names the columns.

    Args:
        path: The file; `"-"` is the standard input.
        column: The column of the lengths. It may be left out if the file has only one column that
            neither `count` nor `where` names.
        count: The column that says how often a length occurs. None: once a row.
        where: Only rows that have these strings in these columns.

    Returns:
        How often each length occurs. Lengths of 0 are left out: they need no bucket.

    Raises:
        ConfigError: The file cannot be read, has no such column, or holds values that are not
            lengths.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "lengths.csv"
        >>> _ = path.write_text(chr(10).join(["tokens", "12", "3", "12"]))
        >>> read_lengths(path)
        {3: 1, 12: 2}
    """
    is_table = bool(column or count or where) or str(path).endswith(".csv")
    counts: dict[int, float] = {}
    try:
        with _opened(path) as file:
            rows = (
                _of_table(file, path, column=column, count=count, where=where or {})
                if is_table
                else _of_text(file, path)
            )
            for length, weight in rows:
                counts[length] = counts.get(length, 0) + weight
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}.", option="path", fix="pass a text file of lengths"
        ) from error
    counts.pop(0, None)
    if not counts:
        raise ConfigError(
            f"{path} holds no length of 1 or more.",
            option="path",
            fix="a file with a length on each line, or a CSV file and its column",
        )
    return dict(sorted(counts.items()))


@contextlib.contextmanager
def _opened(path: str | Path) -> Generator[TextIO]:
    if str(path) == "-":
        yield sys.stdin
        return
    with Path(path).open(encoding="utf-8-sig", newline="") as file:
        yield file


def _of_text(lines: Iterable[str], path: str | Path) -> Iterator[tuple[int, float]]:
    for number, line in enumerate(lines, 1):
        for text in line.replace(",", " ").split():
            yield _length(text, f"{path}:{number}"), 1


def _of_table(
    lines: Iterable[str],
    path: str | Path,
    *,
    column: str | None,
    count: str | None,
    where: Mapping[str, str],
) -> Iterator[tuple[int, float]]:
    reader = csv.DictReader(lines, skipinitialspace=True)
    names = [name.strip() for name in reader.fieldnames or ()]
    if not names:
        raise ConfigError(
            f"{path} is empty.", option="path", fix="a CSV file whose first line names the columns"
        )
    reader.fieldnames = names
    left = [name for name in names if name != count and name not in where]
    own = _named(names, left[0] if column is None and len(left) == 1 else column, path=path)
    others = [_named(names, name, path=path) for name in (*where, *([count] if count else []))]
    for row in reader:
        place = f"{path}:{reader.line_num}"
        if any(row[name] is None for name in (own, *others)):
            raise ConfigError(
                f"{place} has fewer columns than the first line.",
                option="path",
                fix="mend that line",
            )
        if all(row[name] == text for name, text in where.items()):
            yield _length(row[own], place), 1 if count is None else _weight(row[count], place)


def _named(names: Sequence[str], name: str | None, *, path: str | Path) -> str:
    """The name of an existing column.

    Raises:
        ConfigError: There is no such column, or several to choose from.
    """
    if names.count(name or "") == 1:
        return str(name)
    known = ", ".join(names) or "none"
    raise ConfigError(
        f"{path} has {'several columns' if name in names else 'no column'} {name!r}."
        if name
        else f"{path} has several columns.",
        option="column",
        got=f"columns {known}",
        fix="name the column of the lengths, such as column='tokens' (--column tokens); columns are"
        " separated by commas",
    )


def _length(text: str, place: str) -> int:
    try:
        length = int(text)
    except ValueError:
        length = -1
    if length < 0:
        raise ConfigError(
            f"{place}: {text!r:.40} is not a length.",
            option="path",
            fix="an integer of at least 0; for a table, name the file *.csv or its column",
        )
    return length


def _weight(text: str, place: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0 <= weight < math.inf:
        raise ConfigError(
            f"{place}: {text!r:.40} is not a count.",
            option="count",
            fix="a finite number of at least 0",
        )
    return weight
