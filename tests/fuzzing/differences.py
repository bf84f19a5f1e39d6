"""Whether a trace that is told to differ from the plain one gives other results.

A difference that is none costs a graph per size, and nobody sees it. So each is run without the
check: if all results are the unpadded function's, it was false.
"""

import collections
import dataclasses
import itertools
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import jax
import numpy as np

import shapeexec as sx
from shapeexec.tools import _closeness
from tests.fuzzing.programs import Program

Kind = Literal["true", "false"]

_DRAWS = 3
_UNHEARD = re.compile(r"\battempt\(|\btype\(")


@dataclasses.dataclass(frozen=True)
class Difference:
    """Sizes at which a trace was told to be another program than the plain one.

    Attributes:
        is_asked: Whether the program holds a question that is not heard, and so may truly differ.
        kind: `true` if results differ, `false` if none does, or nothing could be run.
        text: Where, and what the check said.
    """

    is_asked: bool
    kind: Kind
    text: str


@dataclasses.dataclass(frozen=True)
class Survey:
    """What holding the traces of programs against the plain ones told.

    Attributes:
        checks: At how many sets of sizes traces of programs were held against the plain ones.
        asking: How many of these were of programs that ask what is not heard.
        differences: Where they differed.
    """

    checks: int = 0
    asking: int = 0
    differences: tuple[Difference, ...] = ()

    def __add__(self, other: "Survey") -> "Survey":
        return Survey(
            self.checks + other.checks,
            self.asking + other.asking,
            self.differences + other.differences,
        )

    def __str__(self) -> str:
        count = collections.Counter((one.is_asked, one.kind) for one in self.differences)
        others = self.checks - self.asking
        lines = [
            f"{checks} checks of programs {which}: "
            f"{count[asked, 'true']} differ, and so do results; "
            f"{count[asked, 'false']} differ, and results are the same"
            for checks, which, asked in (
                (self.asking, "that ask what is not heard", True),
                (others, "that do not", False),
            )
        ]
        share = f" ({count[False, 'false'] / others:.2%})" if others else ""
        return "\n".join(lines) + share


NONE = Survey()


def asks_unheard(program: Program) -> bool:
    """Whether a program may be another one at symbolic sizes without anybody's hearing it."""
    return _UNHEARD.search(program.source) is not None


def survey(ex: sx.Exec, program: Program, rounds: int = 3) -> Survey:
    """Hold the traces of a program at some sizes against the plain ones.

    Args:
        ex: Runs the program; with any way to check.
        program: The program.
        rounds: At how many sets of sizes.
    """
    asks = asks_unheard(program)
    watched, found = ex.variant(check="sizes"), []
    checked = 0
    for sizes in itertools.islice(_sizes(program), rounds):
        before = watched.stats
        args = dataclasses.replace(program, sizes=sizes).arguments()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "shapeexec:", RuntimeWarning)
            try:
                plan = watched.plan(*args)
            except Exception:  # refused, or the plain program fails: there is nothing to compare
                continue
        checked += watched.stats.checks > before.checks
        if watched.stats.differences > before.differences:
            kind = _truth(ex, program, sizes)
            at = ", ".join(f"{symbol}={size}" for symbol, size in sizes.items())
            reason = "; ".join(dict.fromkeys(plan.reasons.values()))
            told = f"{program.seed}, {'asked, ' if asks else ''}{kind}, at {at}: {reason}"
            found.append(Difference(asks, kind, told))
    return Survey(checked, checked if asks else 0, tuple(found))


def _sizes(program: Program) -> Iterator[dict[str, int]]:
    """The sizes of the program, their powers of two, 1, where most is unlike, and random ones."""
    used = sorted({symbol for spec in program.in_shapes for symbol in re.findall("[a-z]", spec)})
    given = {symbol: program.sizes[symbol] for symbol in used}
    yield given
    most = {symbol: 1 << (size - 1).bit_length() for symbol, size in given.items()}
    yield most
    yield dict.fromkeys(used, 1)
    rng = np.random.default_rng(program.seed)
    while True:
        yield {symbol: int(rng.integers(1, size + 1)) for symbol, size in most.items()}


def _truth(ex: sx.Exec, program: Program, sizes: Mapping[str, int]) -> Kind:
    """Whether results differ, too, by more than the function magnifies its own rounding."""
    unchecked, plain = ex.variant(check="off"), jax.jit(ex.settings.fn)
    for draw in range(_DRAWS):
        drawn = dataclasses.replace(program, sizes=sizes, seed=program.seed + draw)
        args = drawn.arguments()
        try:
            want, got = plain(*args), unchecked(*args)
        except Exception:  # of padding, or of what the sizes make of it: nothing is shown
            continue
        if _differ(plain, args, got, want):
            return "true"
    return "false"


def _differ(plain: Any, args: list[Any], got: Any, want: Any) -> bool:
    """Whether results differ by more than rounding."""
    ours, theirs = jax.tree.leaves(got), jax.tree.leaves(want)
    if jax.tree.structure(got) != jax.tree.structure(want):
        return True
    pairs = [*zip(ours, theirs, strict=True)]
    if any(_described(a) != _described(b) for a, b in pairs):
        return True
    if not any(_closeness.difference(a, b) for a, b in pairs):
        return False
    return not _closeness.is_rounding(
        lambda *flat: jax.tree.leaves(plain(*flat)), args, got=ours, want=theirs
    )


def _described(x: Any) -> Any:
    return x.shape, x.dtype, bool(getattr(x, "weak_type", False))
