"""Random programs against their unpadded selves, for as long as one likes.

    python -m tests.fuzz --programs 3000 --jobs 8
    python -m tests.fuzz --seed 1234 --programs 1

Each program of 10 to 20 operations over ragged arrays is run by `sx.validate`: values and
gradients, at random sizes, with poisoned padding. A program that fails is shrunk and printed.

    python -m tests.fuzz --programs 400 --only traces

Traces alone are held against the plain ones: nothing runs but those that differ. Traces cost
more than runs do: `--only runs` leaves them out.
"""

import argparse
import collections
import dataclasses
import functools
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import numpy as np

import shapeexec as sx
from shapeexec.tools import _locate
from shapeexec.tools._validate import UNEXPLAINED, gradient_of
from tests.fuzzing.differences import NONE, Survey, survey
from tests.fuzzing.programs import Program, make_program, smaller

_MOST_SHRINKS = 40
_KEPT = 25  # programs whose traces JAX may keep: they share what jnp is made of
_FAILURES = ("wrong", "crash")
_PARTS = ("runs", "traces")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of a program.

    Attributes:
        seed: Its seed.
        kind: `exact`; `refused` with one of the library's errors; `limit`, a difference that
            docs/limits.md names; `wrong`; or `crash`, which is an error of another kind where the
            plain program has none.
        text: The error.
        comparisons: How many runs were compared.
        source: The shrunk program, where it failed.
        odd: Roundings that nudges do not explain.
        traces: Where a symbolic trace was found to be another program than the plain one.
    """

    seed: int
    kind: str
    text: str = ""
    comparisons: int = 0
    source: str = ""
    odd: tuple[str, ...] = ()
    traces: Survey = NONE


def _execs(program: Program) -> tuple[sx.Exec, sx.Exec]:
    """What runs a program with its gradient in one graph, and what runs it alone."""
    fn = program.function()
    on_unsupported = "exact" if program.seed % 4 == 0 else "raise"
    ex = sx.Exec(fn, program.in_shapes, buckets=sx.Pow2(), on_unsupported=on_unsupported)
    gradients = gradient_of(ex.settings)
    return ex.variant(fn=lambda *args: (fn(*args), gradients(*args))), ex


def check(program: Program) -> Verdict:
    """Run a program, its gradient in the same graph where it has one, under one poison or none."""
    poison = (None, *sx.masking.POISONS)[program.seed % 5]
    both, ex = _execs(program)
    found = _validated(both, program, poison)
    has_none = found.kind == "exact" and not found.comparisons
    if found.kind == "refused" or has_none:  # perhaps it is the gradient alone
        values = _validated(ex, program, poison)
        return dataclasses.replace(values, text=values.text or found.text)
    return found


def _validated(ex: sx.Exec, program: Program, poison: str | None) -> Verdict:
    seed = program.seed
    try:
        with mock.patch.object(_locate, "run_unpadded", wraps=_locate.run_unpadded) as compared:
            done = sx.validate(
                ex, *program.arguments(), rounds=3, seed=seed, gradients=False, poisons=(poison,)
            )
    except sx.ValidationError as error:
        call = compared.call_args
        is_limit = error.primitive is not None and _has_odd_kernel(call.args[0], **call.kwargs)
        return Verdict(seed, "limit" if is_limit else "wrong", str(error))
    except sx.ShapeExecError as error:
        # "exact" leaves nothing to refuse
        kind = "crash" if ex.settings.on_unsupported == "exact" else "refused"
        return Verdict(seed, kind, f"{type(error).__name__}: {error}")
    except Exception as error:
        return Verdict(seed, "crash", f"{type(error).__name__}: {error}")
    skipped = "\n".join(done.skipped)
    odd = tuple(text for text in done.rounding if UNEXPLAINED in text)
    return Verdict(seed, "exact", skipped, done.comparisons, odd=odd)


def _has_odd_kernel(eqn: Any, *, arrays: Sequence[Any]) -> bool:
    """Whether an equation convolves with a kernel that is not finite, see docs/limits.md."""
    return eqn.primitive.name == "conv_general_dilated" and not np.isfinite(arrays[1]).all()


def traces(program: Program) -> Survey:
    """Hold the traces of a program and its gradient against the plain ones; else of it alone."""
    both, ex = _execs(program)
    found = survey(both, program)
    return found if found.checks else survey(ex, program)


def run(seed: int, parts: Sequence[str] = _PARTS) -> Verdict:
    """Make, run and, where it fails, shrink the program of a seed."""
    program = make_program(seed)
    verdict = check(program) if "runs" in parts else Verdict(seed, "traced")
    if "traces" in parts and verdict.kind not in _FAILURES:
        verdict = dataclasses.replace(verdict, traces=traces(program))
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


def run_all(seeds: Iterable[int], jobs: int, parts: Sequence[str] = _PARTS) -> Iterator[Verdict]:
    """Run the programs of many seeds, in as many processes."""
    one = functools.partial(run, parts=parts)
    if jobs == 1:
        yield from map(one, seeds)
        return
    # A process is replaced now and then: JAX keeps its traces.
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=60) as pool:
        yield from pool.imap_unordered(one, seeds)


def main(argv: list[str] | None = None) -> int:
    """Run the command; 1 if a program failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after these")
    parser.add_argument("--only", choices=_PARTS, help="the runs, or the traces; else both")
    given = parser.parse_args(argv)
    seeds = range(given.seed, given.seed + given.programs)
    verdicts = run_all(seeds, given.jobs, (given.only,) if given.only else _PARTS)
    return 1 if _report(verdicts, len(seeds), given.minutes) else 0


def _report(verdicts: Iterator[Verdict], total: int, minutes: float) -> int:
    """Print what happens, and return how many programs failed."""
    start = time.monotonic()
    kinds: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    comparisons, odd, traced = 0, [], NONE
    for number, verdict in enumerate(verdicts, 1):
        kinds[verdict.kind] += 1
        comparisons += verdict.comparisons
        odd += [f"{verdict.seed}: {text}" for text in verdict.odd]
        traced += verdict.traces
        for difference in verdict.traces.differences:
            print(f"  differs: {difference.text}", flush=True)
        if verdict.kind in _FAILURES:
            print(f"\n{verdict.kind}: seed {verdict.seed}\n\n{verdict.source}\n\n{verdict.text}\n")
        elif verdict.text:
            reasons.update(line.split(": ", 1)[-1][:160] for line in verdict.text.splitlines()[:1])
        elapsed = time.monotonic() - start
        if number % 25 == 0 or number == total:
            counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
            print(f"{number}/{total} programs in {elapsed:.0f} s: {counts}", flush=True)
        if elapsed > 60 * minutes:
            break
    print(f"{comparisons} comparisons of a padded run with the unpadded function")
    print(f"{len(odd)} roundings that nudges do not explain")
    for text in odd:
        print(f"  {text}")
    print(traced)
    for reason, count in reasons.most_common(12):
        print(f"  {count:4d}  {reason}")
    return sum(kinds[kind] for kind in _FAILURES)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(main())
