"""How long a second process waits for its first answer, beside the first process.

The first process makes its graph and saves it; the second loads it. Each is a process of its own,
and so are a third, which calls at other sizes of the same buckets, and a fourth, which does not
prove its trace (`check="off"`). The time runs from the call to the answer; importing JAX and
shapeexec is told apart, and the device is there before. The functions are the gradient of four
layers of the demo's model, and a small one.
"""

import argparse
import tempfile
from typing import Any

from benchmarks._common import Claim, Report, Table, in_a_process, run_benchmark

MOST = 0.1
ROUNDS = 3
WAYS = {"first": 0, "second": 0, "other sizes": 1, "no proof": 1}
"""Per process which of two sizes of one bucket it calls at."""


def run(options: argparse.Namespace) -> Report:
    """Run each function in its processes, several times over."""
    names = ("small",) if options.tiny else ("small", "gradient")
    figures: dict[str, Any] = {}
    rows, claims = [], []
    for name in names:
        rounds = [_round(name) for _ in range(1 if options.tiny else ROUNDS)]
        best = {way: min((r[way] for r in rounds), key=_answer) for way in rounds[0]}
        figures[name] = {"best": best, "rounds": rounds}
        for way, one in best.items():
            ratio = one["answer"] / best["first"]["answer"]
            parts = (one[part] for part in ("import", "load", "answer", "trace", "graph", "rest"))
            cells = (*(f"{1e3 * part:.0f}" for part in parts), f"{1e6 * one['hit']:.0f}")
            rows.append((f"{name}, {way}", *cells, str(one["compiles"]), f"{ratio:.3f}"))
        for way in [way for way in WAYS if way != "first"]:
            ratio = best[way]["answer"] / best["first"]["answer"]
            promise = f"{name}, {way}: at most {MOST:g} of the first process's time"
            claims.append(Claim(promise, ratio, bool(ratio <= MOST)))
    columns = ("", "import", "load()", "answer", "trace", "graph", "rest", "hit, us", "compiles")
    title = "Milliseconds to the first answer, best of the rounds; rest: proof, digests and the run"
    return Report([Table(title, (*columns, "of the first"), rows)], figures, claims=claims)


def _answer(one: dict[str, Any]) -> float:
    return one["answer"]


def _round(name: str) -> dict[str, dict[str, Any]]:
    """One function in its three processes."""
    with tempfile.TemporaryDirectory() as directory:
        return {
            way: in_a_process("_restart", way, name, directory, str(sizes))
            for way, sizes in WAYS.items()
        }


def main(arguments: list[str] | None = None) -> Report:
    """Measure, print, and write JSON."""
    return run_benchmark("restart", __doc__, run=run, arguments=arguments)


if __name__ == "__main__":
    main()
