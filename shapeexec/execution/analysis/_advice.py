"""`Advice`: observations with their price and the change that helps, as values that print.

The observers are in `_of_buckets`, `_of_running` and `_of_program`.
"""

import dataclasses
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shapeexec._errors import ConfigError
from shapeexec.execution._table import WIDTH, bytes_text


@dataclasses.dataclass(frozen=True)
class AdviceLine:
    """One observation, its price, and the change that helps.

    Attributes:
        kind: `"strategy"`: other buckets fit these sizes better. `"waste"`: a symbol with much
            padding would pay for more buckets. `"guards"`: branches on a size that make more
            graphs. `"thrash"`: graphs that are made again and again. `"copies"`: compilations that
            cut results. `"attention"`: attention written out. `"packed"`: attention over
            maps of short examples. `"masks"`: masks that take much of a call, by the clock.
        observation: What was seen, in words.
        change: The change as source.
        seconds: The time that the change would have saved the calls so far, in seconds; None: the
            price is in bytes.
        bytes: The bytes that would not have been moved; None: the price is in seconds.
        saves: By name of a field of `Stats` how much less it would have been.
        changes: The arguments of `Exec.variant`; empty: the function has to change.

    Example:
        >>> line = AdviceLine("thrash", "9 graphs were made again", "run = ...", seconds=2.5)
        >>> print(line)
        thrash, 2.5 s: 9 graphs were made again
          run = ...
    """

    kind: str
    observation: str
    change: str
    seconds: float | None = None
    bytes: float | None = None
    saves: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any], hash=False)

    @property
    def price(self) -> str:
        """The price as a string."""
        if self.seconds is not None:
            return f"{self.seconds:.3g} s"
        return bytes_text(self.bytes or 0.0)

    def __str__(self) -> str:
        wrapped = textwrap.wrap(
            f"{self.kind}, {self.price}: {self.observation}", WIDTH, subsequent_indent="    "
        )
        return "\n".join([*wrapped, *(f"  {line}" for line in self.change.splitlines())])


@dataclasses.dataclass(frozen=True)
class Advice:
    """Changes that would have made the calls of an `Exec` cheaper; `print` it, or iterate lines.

    Attributes:
        lines: The dearest first, those in seconds before those in bytes.
        make: Makes the Exec with changed settings.
        notes: What could not be looked at, and why.

    Example:
        >>> run = sx.Exec(lambda x: x * 2, ("s",))
        >>> for size in (65, 70, 80):
        ...     _ = run(np.ones(size, np.float32))
        >>> speed = sx.Speed(seconds_per_flop=1e-8, seconds_per_byte=1e-8)
        >>> (line,) = run.advise(speed)
        >>> line.kind, line.change
        ('strategy', 'run = run.variant(buckets={"s": sx.Ladder((80,), beyond=sx.Pow2())})')
        >>> run.advise(speed).apply().settings.strategies
        {'s': Ladder([80], beyond=Pow2())}
    """

    lines: tuple[AdviceLine, ...]
    make: Callable[[Mapping[str, Any]], Any] = dataclasses.field(repr=False, compare=False)
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[AdviceLine]:
        return iter(self.lines)

    def __len__(self) -> int:
        return len(self.lines)

    def __str__(self) -> str:
        lines = [str(line) for line in self.lines] or ["no advice"]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def apply(self, *kinds: str) -> Any:
        """Make the Exec that follows the advice.

        Of two lines that change one setting the dearer one counts. Lines that change the function
        are left to you.

        Args:
            *kinds: The kinds of lines to follow; none: all.

        Returns:
            An `Exec` with graphs of its own.

        Raises:
            ConfigError: There is no line of that kind, or none that can be applied.
        """
        for kind in kinds:
            if kind not in {line.kind for line in self.lines}:
                raise ConfigError(
                    f"apply: there is no advice of the kind {kind!r}.",
                    option="kinds",
                    got=", ".join(line.kind for line in self.lines) or "no advice",
                    fix="one of these, or apply() for all",
                )
        changes: dict[str, Any] = {}
        for line in self.lines:
            if not kinds or line.kind in kinds:
                changes = {**line.changes, **changes}
        if not changes:
            raise ConfigError(
                "apply: no advice changes a setting.",
                option="kinds",
                got=", ".join(line.kind for line in self.lines) or "no advice",
                fix="print(run.advise()), and change the function by hand",
            )
        return self.make(changes)
