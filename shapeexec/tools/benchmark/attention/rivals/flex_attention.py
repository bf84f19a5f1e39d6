"""FlexAttention of torch, compiled, with its own block masks of 128 by 128.

Processes of their own run it (`_flex_worker`), so that many compile at once. Each keeps what it
compiled and times it on request, while the others wait.
"""

# The rivals are not installed here, so their types are unknown.
# pyright: reportUnknownVariableType=false

import concurrent.futures
import contextlib
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shapeexec.tools._machine import cores
from shapeexec.tools.benchmark.attention._clock import Timing
from shapeexec.tools.benchmark.attention._contestant import (
    NAMES_OF_RESULTS,
    Measurement,
    operands,
)
from shapeexec.tools.benchmark.attention._problems import Cell, Pattern, Shape
from shapeexec.tools.benchmark.attention._reference import slopes

SCRIPT = Path(__file__).with_name("_flex_worker.py")
"""The script that each worker runs."""

_PATIENCE = 150.0
"""Seconds within which a worker must answer."""


class WorkerError(Exception):
    """A worker reports a failure, or does not answer."""


class _Worker:
    """A process, and a thread that waits for it."""

    def __init__(self, number: int, directory: Path) -> None:
        self._log = directory / f"worker{number}.log"
        # All of them compile at once: each with one thread leaves some cores for JAX.
        environment = {"TORCHINDUCTOR_COMPILE_THREADS": "1", **os.environ}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(SCRIPT)],  # -P: no imports from the script's folder
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                text=True,
                bufsize=1,
            )
        self._thread = concurrent.futures.ThreadPoolExecutor(1)

    def ask(self, **request: Any) -> "concurrent.futures.Future[dict[str, Any]]":
        return self._thread.submit(self._ask, request)

    def close(self) -> None:
        self._process.kill()
        self._thread.shutdown(cancel_futures=True)
        with contextlib.suppress(BrokenPipeError), self._process:
            pass  # closes the pipes, and waits

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(_PATIENCE, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
            raise WorkerError(f"its process ended: {' '.join(last)[:200]}")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer


class _Workers:
    """All processes, and the folder in which operands and results are handed over."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="shapeexec-flex-")
        self.directory = Path(self._folder.name)
        count = max(1, min(8, cores() // 2))
        self._workers = [_Worker(number, self.directory) for number in range(count)]
        self._kinds: dict[Any, int] = {}
        self._shape: Shape | None = None

    def of_kind(self, kind: Any) -> _Worker:
        """The worker for programs of a kind; kinds are assigned to workers in turn."""
        number = self._kinds.setdefault(kind, len(self._kinds))
        return self._workers[number % len(self._workers)]

    def hand_over(self, shape: Shape) -> None:
        """Write the operands of a shape as raw bits: NumPy's files know no bfloat16."""
        if shape != self._shape:
            for i, array in enumerate(operands(shape)):
                raw = np.asarray(array)
                np.save(self.directory / f"{i}.npy", raw.view(f"int{8 * raw.itemsize}"))
            self._shape = shape

    def elements(self, pattern: Pattern, length: int) -> str | None:
        """The file with a pattern's array of pairs, which is too large for a request; or None."""
        if pattern.pair_share is None:
            return None
        path = self.directory / f"{pattern.name}.{length}.npy"
        if not path.exists():
            np.save(path, pattern.elements(length))
        return str(path)

    def forget(self) -> None:
        concurrent.futures.wait([worker.ask(do="forget") for worker in self._workers])

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._folder.cleanup()


@dataclasses.dataclass(eq=False)
class FlexAttention:
    """See the module, and `Contestant`."""

    name: str = "flex_attention"
    is_ours: bool = False
    rank: int = 0
    _started: _Workers | None = None
    _compiling: dict[Cell, Any] = dataclasses.field(default_factory=dict)

    def missing(self) -> str | None:
        """See `Contestant`."""
        if importlib.util.find_spec("torch") is None:
            return "not installed (torch)"
        return None if jax.default_backend() == "gpu" else "it is measured on GPUs only"

    def compile(self, cell: Cell) -> "concurrent.futures.Future[Any]":
        """See `Contestant`. Random tiles of one shape share a program, and so a worker."""
        if self._started is None:
            self._started = _Workers()
        problem, workers = cell.problem, self._started
        pattern, shape = problem.pattern, problem.shape
        workers.hand_over(shape)
        documents = pattern.document_lengths(shape.length).tolist() if pattern.documents else []
        kind = "tiles" if pattern.density is not None else pattern.name
        if pattern.pair_share is not None:
            kind = "elements"
        worker = workers.of_kind((shape, cell.passes, kind))
        results = workers.directory / f"{cell.name.replace('/', '.')}.npz"
        future = worker.ask(
            do="compile",
            cell=cell.name,
            operands=str(workers.directory),
            shape=shape.name,
            dtype=shape.dtype,
            group=shape.heads // shape.key_heads,
            results=str(results),
            passes=cell.passes,
            is_causal=pattern.is_causal,
            window=pattern.window,
            documents=documents,
            tiles=None if pattern.density is None else pattern.tiles(shape.length).tolist(),
            elements=workers.elements(pattern, shape.length),
            slopes=slopes(problem).tolist() if pattern.has_alibi else None,
        )
        self._compiling[cell] = (worker, future, results)
        return future

    def measure(self, cell: Cell, check: Callable[[Mapping[str, np.ndarray]], None]) -> Measurement:
        """See `Contestant`. The device's time is measured for a CUDA graph of several calls."""
        worker, future, path = self._compiling.pop(cell)
        seconds = future.result()["seconds"]
        with np.load(path) as file:
            check(dict(zip(NAMES_OF_RESULTS, file.values(), strict=False)))
        path.unlink()
        answer = worker.ask(do="measure", cell=cell.name).result()
        return Measurement(Timing(answer["wall"], answer["device"]), seconds, None)

    def forget(self) -> None:
        """See `Contestant`."""
        self._compiling.clear()
        if self._started is not None:
            self._started.forget()

    def close(self) -> None:
        """See `Contestant`."""
        if self._started is not None:
            self._started.close()
        self._started = None


rival = FlexAttention()
