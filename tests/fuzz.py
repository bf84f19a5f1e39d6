"""Random programs against their unpadded selves, for as long as one likes.

    python -m tests.fuzz --programs 3000 --jobs 8
    python -m tests.fuzz --seed 1234 --programs 1

Each program of 10 to 20 operations over ragged arrays is run by `sx.validate`: values and
gradients, at random sizes, with poisoned padding. A program that fails is shrunk and printed.
"""

import argparse
import collections
import dataclasses
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator

import jax

import shapeexec as sx
from shapeexec.tools._validate import UNEXPLAINED, gradient_of
from tests.fuzzing.programs import Program, make_program, smaller

_MOST_SHRINKS = 40
_KEPT = 25  # programs whose traces JAX may keep: they share what jnp is made of
_FAILURES = ("wrong", "crash")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of a program.

    Attributes:
        seed: Its seed.
        kind: `exact`; `refused` with one of the library's errors; `wrong`; or `crash`, which is
            an error of another kind where the plain program has none.
        text: The error.
        comparisons: How many runs were compared.
        source: The shrunk program, where it failed.
        differences: Where a symbolic trace was found to be another program than the plain one,
            and roundings that nudges do not explain.
    """

    seed: int
    kind: str
    text: str = ""
    comparisons: int = 0
    source: str = ""
    differences: tuple[str, ...] = ()


def check(program: Program) -> Verdict:
    """Run a program, its gradient in the same graph where it has one, under one poison or none."""
    seed, fn = program.seed, program.function()
    policy = "exact" if seed % 4 == 0 else "raise"
    poison = (None, *sx.masking.POISONS)[seed % 5]
    ex = sx.Exec(fn, program.in_shapes, sx.Pow2(), on_unsupported=policy)
    gradients = gradient_of(ex.settings)
    both = ex.variant(fn=lambda *args: (fn(*args), gradients(*args)))
    found = _validated(both, program, poison)
    has_none = found.kind == "exact" and not found.comparisons
    if found.kind == "refused" or has_none:  # perhaps it is the gradient alone
        values = _validated(ex, program, poison)
        return dataclasses.replace(values, text=values.text or found.text)
    return found


def _validated(ex: sx.Exec, program: Program, poison: str | None) -> Verdict:
    seed = program.seed
    try:
        done = sx.validate(
            ex, *program.arguments(), rounds=3, seed=seed, gradients=False, poisons=(poison,)
        )
    except sx.ValidationError as error:
        return Verdict(seed, "wrong", str(error))
    except sx.ShapeExecError as error:
        # "exact" leaves nothing to refuse
        kind = "crash" if ex.settings.on_unsupported == "exact" else "refused"
        return Verdict(seed, kind, f"{type(error).__name__}: {error}")
    except Exception as error:
        return Verdict(seed, "crash", f"{type(error).__name__}: {error}")
    skipped = "\n".join(done.skipped)
    odd = tuple(text for text in done.rounding if UNEXPLAINED in text)
    differences = (*done.differences, *odd)
    return Verdict(seed, "exact", skipped, done.comparisons, differences=differences)


def run(seed: int) -> Verdict:
    """Make, run and, where it fails, shrink the program of a seed."""
    program = make_program(seed)
    verdict = check(program)
    if seed % _KEPT == 0:
        jax.clear_caches()
    if verdict.kind not in _FAILURES:
        return verdict
    program, verdict = shrunk(program, verdict)
    return dataclasses.replace(verdict, source=str(program))


def shrunk(program: Program, verdict: Verdict) -> tuple[Program, Verdict]:
    """The least program found that fails in the same way."""
    tried = 0
    shrinks = True
    while shrinks and tried < _MOST_SHRINKS:
        shrinks = False
        for candidate in smaller(program):
            tried += 1
            found = check(candidate)
            if found.kind == verdict.kind:
                program, verdict, shrinks = candidate, found, True
                break
            if tried >= _MOST_SHRINKS:
                break
    return program, verdict


def run_all(seeds: Iterable[int], jobs: int) -> Iterator[Verdict]:
    """Run the programs of many seeds, in as many processes."""
    if jobs == 1:
        yield from map(run, seeds)
        return
    # A process is replaced now and then: JAX keeps what it has traced.
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=60) as pool:
        yield from pool.imap_unordered(run, seeds)


def main(argv: list[str] | None = None) -> int:
    """Run the command; 1 if a program failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after these")
    given = parser.parse_args(argv)
    seeds = range(given.seed, given.seed + given.programs)
    return 1 if _report(run_all(seeds, given.jobs), len(seeds), given.minutes) else 0


def _report(verdicts: Iterator[Verdict], total: int, minutes: float) -> int:
    """Print what happens, and return how many programs failed."""
    start = time.monotonic()
    kinds: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    comparisons, differing = 0, []
    for number, verdict in enumerate(verdicts, 1):
        kinds[verdict.kind] += 1
        comparisons += verdict.comparisons
        differing += [f"{verdict.seed}: {text}" for text in verdict.differences]
        if verdict.kind in _FAILURES:
            print(f"\n{verdict.kind}: seed {verdict.seed}\n\n{verdict.source}\n\n{verdict.text}\n")
        elif verdict.text:
            reasons.update(line.split(": ", 1)[-1][:160] for line in verdict.text.splitlines()[:1])
        elapsed = time.monotonic() - start
        if number % 25 == 0 or number == total:
            told = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
            print(f"{number}/{total} programs in {elapsed:.0f} s: {told}", flush=True)
        if elapsed > 60 * minutes:
            break
    print(f"{comparisons} comparisons of a padded run with the unpadded function")
    print(f"{len(differing)} traces differed from the plain one, or roundings from nudges:")
    for text in differing:
        print(f"  {text}")
    for reason, count in reasons.most_common(12):
        print(f"  {count:4d}  {reason}")
    return sum(kinds[kind] for kind in _FAILURES)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(main())
