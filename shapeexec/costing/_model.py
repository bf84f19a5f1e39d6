"""`CostModel`: the cost of one call as a function of its sizes, as a value that prints.

`_count` reads the program, and `_speed` measures the device.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from shapeexec._errors import ConfigError, beside, sizes_text
from shapeexec.bucketing import _fit_joint
from shapeexec.bucketing._checks import as_float, is_int
from shapeexec.costing._count import Counted, alive, count
from shapeexec.costing._polynomial import Polynomial
from shapeexec.costing._speed import FRESH_ABOVE, Speed, speed_of
from shapeexec.costing._work import Work
from shapeexec.shape._trace import Trace

_MOST_SHOWN = 5
_LONGEST = 110


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one call costs at known sizes.

    Attributes:
        flops: Additions, multiplications and the like; 2 for each product of a matrix product.
        transcendentals: Exponentials, tanh, square roots and the like.
        bytes: Bytes read and written outside of fused loops.
        launches: Kernels that are started.
        memory: Bytes of results and of values in between that are needed at once.

    Example:
        >>> Cost(flops=6.0, transcendentals=0.0, bytes=24.0, launches=1.0, memory=8.0).flops
        6.0
    """

    flops: float
    transcendentals: float
    bytes: float
    launches: float
    memory: float


@dataclasses.dataclass(frozen=True)
class CostLine:
    """The work of one primitive on one line of the user's code.

    Attributes:
        primitive: Its name.
        where: The user's line, `code  (file.py:12)`; None if unknown.
        work: Its work in a call, as polynomials in the sizes.

    Example:
        >>> model = sx.Exec(lambda x: x @ x, ("n, n",)).cost_model(np.ones((3, 3), np.float32))
        >>> [(line.primitive, str(line.work.flops)) for line in model.lines]
        [('dot_general', '2*n^3')]
    """

    primitive: str
    where: str | None
    work: Work


@dataclasses.dataclass(frozen=True, eq=False)
class CostModel:
    """What a call costs at any sizes, as polynomials in the symbols; `print` it.

    It is computed from the trace of the plain function, without masks. Called with sizes it returns
    a `Cost`; `seconds` estimates the time.

    Attributes:
        name: The function's name.
        symbols: The symbols of its sizes, sorted.
        lines: The work by primitive and line of code, in the order of the program.
        guards: The conditions on the sizes under which it holds, as strings.
        notes: Work that was not counted, and assumptions.
        sizes: The sizes of the call that was traced.
        memory_peaks: Bytes of results and of values in between that are needed at once, one
            polynomial per candidate; at given sizes the greatest is `Cost.memory`.
        factor: A factor of its seconds; see `measured`.

    Example:
        >>> model = sx.Exec(lambda x: x @ x, ("n, n",)).cost_model(np.ones((3, 3), np.float32))
        >>> print(model.flops)
        2*n^3
        >>> model(n=10).flops
        2000.0
    """

    name: str
    symbols: tuple[str, ...]
    lines: tuple[CostLine, ...]
    guards: tuple[str, ...]
    notes: tuple[str, ...]
    sizes: Mapping[str, int]
    memory_peaks: tuple[Polynomial, ...] = dataclasses.field(repr=False)
    factor: float = 1.0

    @functools.cached_property
    def work(self) -> Work:
        """The work of a call, as polynomials in the sizes."""
        return sum((line.work for line in self.lines), start=Work())

    @property
    def flops(self) -> Polynomial:
        """The FLOPs of a call, without transcendentals."""
        return self.work.flops

    @property
    def bytes(self) -> Polynomial:
        """The bytes that a call reads and writes outside of fused loops."""
        return self.work.bytes

    def __call__(self, **sizes: int) -> Cost:
        """Compute what a call costs.

        Args:
            **sizes: The size of each symbol.

        Returns:
            FLOPs, bytes and the like.

        Raises:
            ConfigError: The sizes are not those of the symbols, or one is no integer of at least 0.
        """
        self._check(sizes, each="int")
        work, memory = self.work, bytes_needed(self, sizes)
        amounts = (work.flops, work.transcendentals, work.bytes, work.launches)
        return Cost(*(float(amount(sizes)) for amount in amounts), memory=float(memory))

    def seconds(self, speed: Speed | None = None, /, **sizes: Any) -> Any:
        """Compute how long a call takes: each kind of work at its speed, one after another.

        Args:
            speed: The speed of a device; None: of the default device, measured once per process.
            **sizes: The size of each symbol: ints, or integer arrays that broadcast.

        Returns:
            Seconds, a float; an array if sizes are.

        Raises:
            ConfigError: The sizes are not those of the symbols, or one is no integer of at least 0.
        """
        self._check(sizes, each="int or array")
        own = speed_of() if speed is None else speed
        amounts = (amount(sizes) for amount in self.work.amounts)
        total: Any = own.seconds_per_call + sum(map(operator.mul, amounts, own.rates))
        memory = bytes_needed(self, sizes)
        total = total + np.where(memory > FRESH_ABOVE, memory * own.seconds_per_fresh_byte, 0.0)
        total = total * self.factor
        return total if np.ndim(total) else float(total)

    def measured(self, seconds: float, speed: Speed | None = None, /, **sizes: int) -> "CostModel":
        """Fit the seconds to a call that was measured: by one factor, at all sizes.

        Args:
            seconds: The time of the call.
            speed: The speed that will be passed to `seconds`.
            **sizes: The sizes of the call.

        Returns:
            The model with another `factor`.

        Raises:
            ConfigError: The time is not positive, the model's own is 0, the sizes are not those of
                the symbols, or one is no integer of at least 0.
        """
        took = as_float(seconds)
        if not 0 < took < math.inf:
            raise ConfigError(
                f"measured: {seconds!r:.40} is not a positive number of seconds.",
                option="seconds",
                fix="the seconds of one call, the median of several",
            )
        self._check(sizes, each="int")
        expected = self.seconds(speed, **sizes)
        if not expected:
            raise ConfigError(
                f"measured: by the model a call of {self.name} takes 0 seconds.",
                option="speed",
                got=repr(speed),
                fix="a Speed above 0, or sizes of a call that does some work",
            )
        return dataclasses.replace(self, factor=self.factor * took / expected)

    def _check(self, sizes: Mapping[str, Any], *, each: Literal["int", "int or array"]) -> None:
        if set(sizes) != set(self.symbols):
            given = ", ".join(sorted(sizes)) or "no sizes"
            raise ConfigError(
                f"cost of {self.name}: the sizes are not those of its symbols.",
                option="sizes",
                got=given,
                fix=f"({', '.join(f'{symbol}=128' for symbol in self.symbols)})",
            )
        for symbol, size in sizes.items():
            if not (_is_size(size) if each == "int" else _are_sizes(size)):
                raise ConfigError(
                    f"cost of {self.name}: {symbol}={size!r:.40} is not a size.",
                    option=symbol,
                    fix=f"{symbol}=128, an integer of at least 0",
                )

    def __str__(self) -> str:
        return "\n".join(line[:_LONGEST] for line in _text(self))


def bytes_needed(model: CostModel, sizes: Mapping[str, Any]) -> Any:
    """The `memory` of a call at sizes by symbol, ints or arrays that broadcast."""
    return functools.reduce(np.maximum, (peak(sizes) for peak in model.memory_peaks), 0.0)


def in_seconds(model: CostModel, speed: Speed | None) -> _fit_joint.Cost:
    """The seconds of a call, as ladders are fitted to them; see `CostModel.seconds`."""
    return _fit_joint.Cost(lambda sizes: model.seconds(speed, **sizes), may_fall=True)


def _is_size(value: Any) -> bool:
    return np.ndim(value) == 0 and _are_sizes(value)


def _are_sizes(value: Any) -> bool:
    dtype = np.dtype(getattr(value, "dtype", object))
    return (is_int(value) or dtype.kind in "iu") and bool(np.all(np.asarray(value) >= 0))


def model_of(trace: Trace, *, name: str, sizes: Mapping[str, int]) -> CostModel:
    """The cost model of a trace.

    Args:
        trace: The function at symbolic sizes.
        name: The function's name.
        sizes: The sizes of the call that was traced.
    """
    outward = trace.substitution.outward
    found = count(trace.jaxpr, outward)
    return CostModel(
        name=name,
        symbols=tuple(sorted(sizes)),
        lines=_lines(found),
        guards=tuple(map(str, trace.guards)),
        notes=tuple(dict.fromkeys(beside(one.note, one.where) for one in found if one.note)),
        sizes=dict(sizes),
        memory_peaks=alive(trace.jaxpr, outward),
    )


def _lines(found: Sequence[Counted]) -> tuple[CostLine, ...]:
    by_line: dict[tuple[str, str | None], Work] = {}
    for one in found:
        key = one.primitive, one.where
        by_line[key] = by_line.get(key, Work()) + one.work
    return tuple(CostLine(*key, work) for key, work in by_line.items())


def _text(model: CostModel) -> list[str]:
    at = sizes_text(model.sizes)
    work, sizes = model.work, model.sizes
    lines = [f"{model.name}: the cost of a call" + (f", at {at}" if at else "")]
    for title, amount in (
        ("FLOPs", work.flops),
        ("transcendentals", work.transcendentals),
        ("bytes", work.bytes),
        ("launches", work.launches),
    ):
        lines.append(f"  {title:<15} {_short(amount(sizes)):>8}  {amount}")
    lines.append(f"  {'memory, bytes':<15} {_short(bytes_needed(model, sizes)):>8}")
    lines += [f"  holds where {guard}" for guard in model.guards]
    lines += _costliest(model)
    return lines + [f"  note: {note}" for note in model.notes]


def _costliest(model: CostModel) -> list[str]:
    """The lines of code that do most, by FLOPs and bytes at the sizes of the call."""
    sizes = model.sizes
    by_line: dict[str | None, Work] = {}
    for line in model.lines:
        by_line[line.where] = by_line.get(line.where, Work()) + line.work

    def does(work: Work) -> tuple[float, float]:
        return float((work.flops + work.transcendentals)(sizes)), float(work.bytes(sizes))

    amounts = {where: does(work) for where, work in by_line.items()}
    totals = [sum(column) or 1.0 for column in zip(*amounts.values(), strict=True)] or [1.0, 1.0]
    shares = {where: (a / totals[0], b / totals[1]) for where, (a, b) in amounts.items()}
    ranked = sorted(shares, key=lambda where: -sum(shares[where]))
    return [
        f"  {shares[where][0]:>5.0%} of FLOPs, {shares[where][1]:>4.0%} of bytes   {where or '?'}"
        for where in ranked[:_MOST_SHOWN]
    ]


def _short(value: Any) -> str:
    """A number in at most four digits and a letter: 1.2 M."""
    amount = float(value)
    for letter in ("", " k", " M", " G", " T"):
        if amount < 1000 or letter == " T":
            return f"{amount:.4g}{letter}" if amount < 1000 else f"{amount:.3e}"
        amount /= 1000
    return f"{amount:.3e}"
