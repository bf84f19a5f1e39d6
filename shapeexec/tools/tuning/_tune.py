"""`tune_attention`: from names to tilings that are kept. How they are timed is in `_trial`."""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import contextlib
import dataclasses
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import jax

from shapeexec._errors import BackendError, ConfigError
from shapeexec.attention.backends import _kept, _tuning
from shapeexec.attention.backends._base import Tiling
from shapeexec.attention.backends._kept import KeptRow, Place
from shapeexec.tools._given import Names, check_time, listed
from shapeexec.tools._machine import machine
from shapeexec.tools._progress import Tell, progress
from shapeexec.tools.benchmark.attention._contestant import JaxContestant, why_not
from shapeexec.tools.benchmark.attention._ours import DEFAULT, contestants
from shapeexec.tools.benchmark.attention._problems import (
    PASSES,
    Cell,
    Problem,
    defaults,
    pattern_of,
    shape_of,
)
from shapeexec.tools.benchmark.attention._reference import WrongResultError
from shapeexec.tools.tuning._report import TuningReport, TuningRow, told
from shapeexec.tools.tuning._trial import NOTICEABLE, Asked, Outcome, asked_by, trial

_FIX = f'file="tuning.json", and {_kept.VARIABLE}=tuning.json where attention runs'


def tune_attention(
    *,
    shapes: Names = None,
    masks: Names = None,
    implementation: str = DEFAULT,
    file: str | Path | None = None,
    keep: bool = True,
    minutes: float = 8.0,
    tell: Tell | None = lambda line: None,
) -> TuningReport:
    """Find the fastest tilings of attention on this device, and keep what gains over 3 %.

    Programs that are compiled afterwards have the kept tilings, in this process and in later ones;
    those that were compiled stay as they are. Results differ in the rounding of sums alone.

    Args:
        shapes: As `benchmark_attention` takes them. None: the first one for this device.
        masks: Likewise. None: those for this device.
        implementation: A name that `implementation=` takes; `"default"`: what is chosen by itself.
        file: Where to keep them. None: where attention looks, `SHAPEEXEC_TUNING` or
            `shapeexec/tuning.json` in the user's folder for caches.
        keep: Whether to keep them at all.
        minutes: After these nothing new is begun.
        tell: Takes lines of how far it is. None: stdout, as the command line has it.

    Returns:
        What was measured; `print` it.

    Raises:
        ConfigError: Nothing is called so, `minutes` is no time, or the file cannot be written.

    Example:
        >>> report = tune_attention(shapes=["1x512x4x2x64:float32"])  # doctest: +SKIP
        >>> report.has_failed  # doctest: +SKIP
        False
    """
    start = time.monotonic()
    check_time("minutes", minutes, such_as=8)
    contestant, cells = _contestant(implementation), _cells(shapes, masks)
    path = _path(file) if keep else None
    where = machine()  # before this run is itself the load
    found: list[_Found] = []
    try:
        with progress(len(cells), tell) as (say, advance):
            try:
                for one in _each(contestant, cells, deadline=start + 60 * minutes, tell=say):
                    found.append(one)
                    for _ in one.row.cells:
                        advance()
                    say(told(one.row))
            except KeyboardInterrupt:
                say("interrupted")
    finally:  # whatever ended it, such as a pipe that was closed: the measurements so far are kept
        if path is not None:
            _write(path, found)
    rows = [one.row for one in found]
    return TuningReport(where, time.monotonic() - start, rows, None if path is None else str(path))


@dataclasses.dataclass(frozen=True)
class _Found:
    """A row, and what is kept of it.

    Attributes:
        row: The row.
        place: Where what was kept before goes; None: nowhere.
        outcome: What is kept there if it pays; None: a result was wrong, and nothing is.
    """

    row: TuningRow
    place: Place | None = None
    outcome: Outcome | None = None


def _contestant(implementation: object) -> JaxContestant:
    known = {one.name: one for one in contestants()}
    if implementation not in known:
        raise ConfigError(
            f"implementation: there is no {implementation!r:.80}.",
            option="implementation",
            fix=", ".join(known),
        )
    return known[str(implementation)]


def _cells(shapes: Names, masks: Names) -> list[Cell]:
    device_shapes, device_masks = defaults(jax.default_backend())
    asked = listed(shapes, device_shapes[:1], option="shapes")
    patterns = listed(masks, device_masks, option="masks")
    return [
        Cell(Problem(shape, pattern), passes)
        for shape in map(shape_of, asked)
        for pattern in map(pattern_of, patterns)
        for passes in PASSES
    ]


def _each(
    contestant: JaxContestant, cells: list[Cell], *, deadline: float, tell: Callable[[str], object]
) -> Iterator[_Found]:
    """What is found of the cells; those that share a place are tried together."""
    groups: dict[Place, list[Asked]] = {}
    for cell in cells:
        asked = _asked(contestant, cell)
        if isinstance(asked, TuningRow):
            yield _Found(asked)
        else:
            groups.setdefault(asked.place, []).append(asked)
    for place, group in groups.items():
        if time.monotonic() >= deadline:
            yield _Found(_row(group, reason="out of time"))
            continue
        try:
            outcome = trial(contestant, group, tell=tell)
        except WrongResultError as error:
            yield _Found(_row(group, reason=f"WRONG: {error}", is_failure=True), place)
        except Exception as error:  # one that does not compile must not end the run
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            yield _Found(_row(group, reason=reason, is_failure=True))
        else:
            yield _Found(_row_of(group, outcome), place, outcome)


def _asked(contestant: JaxContestant, cell: Cell) -> Asked | TuningRow:
    """The pass that a cell is timed for, or the row that says that there is nothing to choose."""
    try:
        asked = asked_by(contestant, cell)
    except BackendError as error:
        return TuningRow((cell.name,), reason=why_not(contestant.name, error))
    if asked is None:
        return TuningRow((cell.name,), reason="its back end has no tilings to choose from")
    if len(asked.tilings) == 1:
        return _row([asked], reason=f"{_named(asked.tilings[0])} is the only tiling")
    return asked


def _row(asked: Sequence[Asked], *, reason: str, is_failure: bool = False) -> TuningRow:
    cells, place = tuple(one.cell.name for one in asked), dataclasses.asdict(asked[0].place)
    return TuningRow(cells, place, reason=reason, is_failure=is_failure)


def _row_of(asked: Sequence[Asked], outcome: Outcome) -> TuningRow:
    own, best = (sum(times) for times in outcome.times)
    return TuningRow(
        cells=tuple(one.cell.name for one in asked),
        place=dataclasses.asdict(asked[0].place),
        own=_named(outcome.own),
        best=_named(outcome.best),
        milliseconds=(own, best),
        gain=outcome.gain,
        pays=outcome.gain > NOTICEABLE,
        tried=outcome.tried,
    )


def _named(tiling: Tiling) -> str:
    tile = "x".join(map(str, tiling.tile))
    return tile if tiling.piece is None else f"{tile} by {tiling.piece}"


def _path(file: str | Path | None) -> Path:
    """Where tilings are kept, in a folder that is there.

    Raises:
        ConfigError: Nobody says where, or nothing can be written there.
    """
    path = _kept.path() if file is None else Path(file)
    if path is None:
        raise ConfigError(
            f"there is no file to keep tilings in: {_kept.VARIABLE} is empty.",
            option="file",
            fix=f"{_FIX}; or keep=False",
        )
    with _written(path):
        _kept.check(path)
    return path


@contextlib.contextmanager
def _written(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"the file {path} cannot be written: {error}.", option="file", fix=_FIX
        ) from error


def _write(path: Path, found: Sequence[_Found]) -> None:
    measured = [one for one in found if one.place is not None]
    gained = [
        KeptRow(one.place, one.outcome.best, one.outcome.gain)
        for one in measured
        if one.place is not None and one.outcome is not None and one.row.pays
    ]
    if not measured:
        return
    places = [one.place for one in measured if one.place is not None]
    with _written(path):
        _kept.keep(path, _platform(), rows=gained, measured=places)
    _tuning.forget()


def _platform() -> str:
    """The platform that programs for this device are lowered for."""
    backend = jax.default_backend()
    if backend != "gpu":
        return backend
    device = cast(Any, jax).devices()[0]
    return "rocm" if "rocm" in device.client.platform_version else "cuda"
