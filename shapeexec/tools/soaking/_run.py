"""Runs a soak: the phases, the threads, and the judgement of their calls.

`_services` and `_traffic` decide which calls are made.
"""

import collections
import contextlib
import faulthandler
import gc
import itertools
import queue
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import jax

from shapeexec.tools.soaking._compare import Expected, WrongAnswerError, jitted
from shapeexec.tools.soaking._faults import Faults
from shapeexec.tools.soaking._outcome import PHASES, Findings, Outcome, Plain, Soak
from shapeexec.tools.soaking._services import Service, services
from shapeexec.tools.soaking._traffic import (
    ONCE,
    Draw,
    Traffic,
    is_absorbed,
    is_promised,
    shapes_of,
)
from shapeexec.tools.soaking._watch import Sample, Stall, Watch, resident_mib

_LINES = 5.0
"""Seconds from one line of progress to the next."""

_SAMPLES = 0.5
"""Seconds from one sample to the next."""

_PAUSE = 0.01
"""Seconds that a thread waits before it draws again where a service is not open yet."""

_MOST_REPEATED = 1000
"""The number of calls that each thread repeats in the last phase."""

_FEW = 20
"""The least number of plain programs whose growth is meaningful."""


def run(soak: Soak, tell: Callable[[str], object] = print) -> Outcome:
    """Run a soak.

    Args:
        soak: The settings.
        tell: Called with a line of progress every few seconds.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        return _run_in(Path(directory), soak, tell=tell)


def _run_in(directory: Path, soak: Soak, *, tell: Callable[[str], object]) -> Outcome:
    faults, findings = Faults(soak.seed, soak.rates), Findings()
    served = services(faults, directory, models=soak.models, ways=soak.ways)
    shapes = shapes_of(soak.models, seed=soak.seed, count=soak.shapes)
    traffic = Traffic(soak.seed, served, shapes, Expected())
    threads = _Threads(soak, traffic, faults=faults, findings=findings)
    is_interrupted, plain, stalls = False, None, list[Stall]()
    with _warnings_counted() as warned, _exact_products():
        threads.start()
        try:
            stalls = _watched(threads, tell) or threads.join()
            if not stalls:
                plain = _plain_growth(traffic, programs=min(100, int(20 * soak.minutes)))
        except KeyboardInterrupt:
            is_interrupted = True
            tell("interrupted")
            stalls = threads.join()
        if stalls:
            threads.stop.set()
            faulthandler.dump_traceback(2, all_threads=True)  # the real stderr, not sys.stderr
    books = [] if stalls else _books(served)
    return Outcome(
        soak=soak,
        seconds=threads.watch.seconds,
        watch=threads.watch,
        faults=faults,
        findings=findings,
        stalls=stalls,
        services=served,
        warned=dict(warned),
        books=books,
        plain=plain,
        is_interrupted=is_interrupted,
    )


class _Threads:
    """The threads that make calls."""

    def __init__(self, soak: Soak, traffic: Traffic, *, faults: Faults, findings: Findings) -> None:
        self.soak, self.traffic, self.faults, self.findings = soak, traffic, faults, findings
        self.watch = Watch(soak.threads)
        self.stop = threading.Event()
        self.phase = PHASES[0]
        self._to_warm: queue.SimpleQueue[Service] = queue.SimpleQueue()
        for service in traffic.services:
            if service.way.is_warmed:
                self._to_warm.put(service)
        # Daemons: one that is stuck must not keep the process.
        self._threads = [
            threading.Thread(target=self._work, args=(i,), name=f"soak-{i}", daemon=True)
            for i in range(soak.threads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def join(self) -> list[Stall]:
        """Start no further call, wait for all, and return those that do not end."""
        self.stop.set()
        until = time.monotonic() + self.soak.stall
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return self.watch.running()

    def _work(self, thread: int) -> None:
        is_warming = thread < max(1, self.soak.threads // 4)
        while is_warming and not self.stop.is_set():
            try:
                service = self._to_warm.get_nowait()
            except queue.Empty:
                break
            self._warm_up(thread, service)
        steady: list[Draw] = []
        for number in itertools.count():
            if self.phase == "steady" and steady:
                draw = steady[number % len(steady)]
            else:
                draw = self.traffic.draw(thread, number)
            if draw.service.is_open:
                self._call(draw, steady)
            else:
                self.stop.wait(_PAUSE)
            if self.stop.is_set():  # not before the first call
                return

    def _call(self, draw: Draw, steady: list[Draw]) -> None:
        self.watch.begin(draw.thread, draw)
        outcome = self._outcome(draw)
        self.watch.end(draw.thread, outcome)
        is_new = self.phase != "steady" and len(steady) < _MOST_REPEATED
        is_lasting = draw.operation not in ONCE and not draw.service.way.churns
        if is_new and outcome == draw.operation and is_lasting:
            steady.append(draw)

    def _warm_up(self, thread: int, service: Service) -> None:
        shape = self.traffic.shapes[service.model][0]
        call = f"warm-up of {service.name}"
        self.watch.begin(thread, call)
        outcome = "warm-up"
        try:
            service.warm_up(shape.arguments(0))
        except BaseException as error:  # of any kind: it is judged
            outcome = "fault"
            if self.faults.caused(error) is None:
                self.findings.add("faults", call, told=traceback.format_exc())
            else:
                self._to_warm.put(service)  # a warm-up goes on where it stopped
        self.watch.end(thread, outcome)

    def _outcome(self, draw: Draw) -> str:
        """Make a call, and judge its result or error."""
        was_warm = draw.service.is_warm.is_set()
        try:
            self.traffic.do(draw)
        except WrongAnswerError as error:
            self.findings.add("wrong", draw, told=str(error))
            return "wrong"
        except BaseException as error:  # of any kind: it is judged
            if is_promised(draw, error, was_warm=was_warm):
                return "refused"
            if self.faults.caused(error) is not None and not is_absorbed(draw, error):
                return "fault"
            self.findings.add("faults", draw, told=traceback.format_exc())
            return "wrong fault"
        return draw.operation


def _watched(threads: _Threads, tell: Callable[[str], object]) -> list[Stall]:
    """Go through the phases, take samples and report them; return stalled calls at once."""
    soak, watch = threads.soak, threads.watch
    each, next_line = 60 * soak.minutes / len(PHASES), _LINES
    for number, phase in enumerate(PHASES):
        if phase == "steady":
            gc.collect()
        threads.phase = phase
        while watch.seconds < each * (number + 1):
            stalls = [one for one in watch.running() if one.seconds > soak.stall]
            if stalls:
                return stalls
            sample = _sample(threads, phase)
            if sample.seconds >= next_line:
                next_line += _LINES
                tell(_line(sample, threads))
            threads.stop.wait(min(_SAMPLES, max(0.0, each * (number + 1) - watch.seconds)))
    _sample(threads, PHASES[-1])
    return []


def _sample(threads: _Threads, phase: str) -> Sample:
    served = threads.traffic.services
    return threads.watch.sample(
        phase,
        compiles=sum(service.total("compiles") for service in served),
        graphs=sum(service.total("graphs") for service in served),
    )


def _line(sample: Sample, threads: _Threads) -> str:
    counts = threads.findings.counts
    return (
        f"[{sample.seconds:4.0f} s, {sample.phase}] {sample.calls:,} calls, "
        f"{sample.compiles:,} compilations, {sample.graphs:,} graphs, "
        f"{sum(threads.faults.injected.values()):,} faults injected, "
        f"{counts['wrong']} wrong answers, {counts['faults']} wrong faults, {sample.mib:,.0f} MiB"
    )


@contextlib.contextmanager
def _warnings_counted() -> Generator[collections.Counter[str]]:
    """Count warnings by the beginnings of their texts, and do not show them."""
    counted: collections.Counter[str] = collections.Counter()

    def count(message: Any, *_: Any, **__: Any) -> None:
        counted[" ".join(str(message).split()[:8])] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")  # the default remembers each text, so memory would grow
        warnings.showwarning = count
        yield counted


@contextlib.contextmanager
def _exact_products() -> Generator[None]:
    """Compute products of f32 in f32 on a GPU too, in all threads."""
    name = "jax_default_matmul_precision"
    config: Any = jax.config
    before = getattr(config, name)
    config.update(name, "highest")
    try:
        yield
    finally:
        config.update(name, before)


def _plain_growth(traffic: Traffic, *, programs: int) -> Plain | None:
    """The growth of the process by plain JAX; None for too few programs."""
    shapes = [shape for known in traffic.shapes.values() for shape in known][:programs]
    if len(shapes) < _FEW:
        return None
    thousand, before = 1000 / len(shapes), resident_mib()
    held = [jitted(shape.model).lower(*shape.arguments(0)).compile() for shape in shapes]
    kept = resident_mib()
    held.clear()
    gc.collect()
    return Plain(thousand * (kept - before), thousand * (resident_mib() - before))


def _books(served: Sequence[Service]) -> list[str]:
    """Descriptions of counts of an `Exec` that differ from what it has done."""
    wrong: list[str] = []
    for service in served:
        ran = service.total("hits") + service.total("misses")
        pairs = [("events of calls", service.done["events"], ran)]
        if not service.model.is_example:  # a map is one call for each of its graphs
            pairs.append(("calls that returned", service.done["calls"], ran))
        pairs += [("plain calls", service.total("plain_calls"), 0)]
        pairs += [("differences", service.total("differences"), 0)]
        wrong += [
            f"{service.name}: {what}: {own:,}, not {right:,}"
            for what, own, right in pairs
            if own != right
        ]
    return wrong
