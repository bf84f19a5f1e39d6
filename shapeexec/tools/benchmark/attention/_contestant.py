"""The interface of contestants, both our back ends and the rivals.

Most contestants are functions of JAX; `JaxContestant` makes one from such a function.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import concurrent.futures
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from shapeexec._errors import BackendError
from shapeexec.tools._machine import cores
from shapeexec.tools.benchmark.attention._clock import Timing, clock
from shapeexec.tools.benchmark.attention._problems import Cell, Problem, Shape

Array = Any
NAMES_OF_RESULTS = ("out", "dq", "dk", "dv")


class RefusalError(Exception):
    """A contestant cannot compute a cell; the text says why, in words that follow "because"."""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The measurement of one cell.

    Attributes:
        timing: How long a call takes.
        compile_seconds: The seconds to trace, lower and compile the function.
        temporary_bytes: The memory of temporaries, without arguments and results; None: unknown.
        lower_seconds: The seconds to trace and lower it, part of `compile_seconds`; None: unknown.
    """

    timing: Timing
    compile_seconds: float
    temporary_bytes: int | None
    lower_seconds: float | None = None


class Contestant(Protocol):
    """An implementation of attention.

    Attributes:
        name: Its name on the command line and in tables.
        is_ours: Whether it is a back end of `sx.dot_product_attention`.
        rank: Contestants of rank 0 are measured at all shapes before any of rank 1.
    """

    name: str
    is_ours: bool
    rank: int

    def missing(self) -> str | None:
        """The reason why it cannot run here, such as "not installed"; None: it can."""
        ...

    def compile(self, cell: Cell) -> "concurrent.futures.Future[Any]":
        """Begin to compile; many do so at once, and nothing is timed meanwhile."""
        ...

    def measure(self, cell: Cell, check: Callable[[Mapping[str, np.ndarray]], None]) -> Measurement:
        """Time the compiled function, once `check` has seen its results.

        Args:
            cell: A cell that was compiled.
            check: Called with the `slices` of the results; raises if they are wrong.

        Raises:
            RefusalError: It cannot compute this cell.
            Exception: Any failure; the benchmark goes on with other cells.
        """
        ...

    def forget(self) -> None:
        """Release the compiled function."""
        ...

    def close(self) -> None:
        """Stop the processes that were started for it."""
        ...


@functools.cache
def compilers() -> concurrent.futures.ThreadPoolExecutor:
    """Threads that compile JAX's functions: on half of the cores, as rivals compile meanwhile."""
    return concurrent.futures.ThreadPoolExecutor(max(1, min(8, cores() // 2)))


@functools.lru_cache(maxsize=1)
def operands(shape: Shape) -> tuple[Array, Array, Array, Array]:
    """q, k, v and the cotangent of the output, the same for every contestant."""
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v, d_out = (
        jax.random.normal(key, aval.shape, aval.dtype)
        for key, aval in zip(keys, operand_avals(shape), strict=True)
    )
    return q, k, v, d_out


def operand_avals(shape: Shape) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The shapes and dtypes of `operands`."""
    heads = (shape.heads, shape.key_heads, shape.key_heads, shape.heads)
    return tuple(
        jax.ShapeDtypeStruct((shape.batch, shape.length, count, shape.head_size), shape.dtype)
        for count in heads
    )


def slices(shape: Shape, results: tuple[Array, ...]) -> dict[str, np.ndarray]:
    """The compared part of results [B, T, heads, D]: the last key head of the last example.

    They are f32[T, group, D] for out and dq, f32[T, 1, D] for dk and dv.
    """
    group = shape.heads // shape.key_heads
    heads = (group, group, 1, 1)
    return {
        name: np.asarray(result[-1, :, -count:], np.float32)
        for name, result, count in zip(NAMES_OF_RESULTS, results, heads, strict=False)
    }


def in_one_line(error: Exception) -> str:
    """The type and the text of an exception, shortened to one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def why_not(name: str, error: Exception) -> str:
    """Why a contestant of this name refused, in words that follow "because"."""
    if isinstance(error, BackendError):
        return (error.why or error.what).removeprefix(f"{name} because ")
    return str(error)


_LOWERS = threading.Lock()
"""Lowering is Python: threads do not speed it up, so it runs under a lock and is timed alone."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled JAX function, and its cost; see `Measurement`."""

    call: Callable[..., Any]
    compile_seconds: float
    temporary_bytes: int | None
    lower_seconds: float


def compiled(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Program:
    """Compile a function for arguments: arrays, or `jax.ShapeDtypeStruct` if it is not run."""
    with _LOWERS:
        start = time.perf_counter()
        lowered = jax.jit(function).lower(*arguments)
        lower_seconds = time.perf_counter() - start
    program = lowered.compile()
    seconds = time.perf_counter() - start
    memory = program.memory_analysis()
    temporary = None if memory is None else int(memory.temp_size_in_bytes)
    return Program(program, seconds, temporary, lower_seconds)


@dataclasses.dataclass(eq=False)
class JaxContestant:
    """A function of JAX.

    Attributes:
        name, is_ours, rank: See `Contestant`.
        attention: Returns for a problem the function attend(q, k, v, *more) -> out, and `more`. If
            the problem cannot be computed, it raises `RefusalError` or `BackendError`, or `attend`
            does when it is traced.
        absence: See `missing`.
    """

    name: str
    attention: Callable[[Problem], tuple[Callable[..., Array], tuple[Any, ...]]]
    is_ours: bool = False
    rank: int = 0
    absence: Callable[[], str | None] = lambda: None
    _programs: dict[Cell, "concurrent.futures.Future[Program]"] = dataclasses.field(
        default_factory=dict
    )

    def missing(self) -> str | None:
        """See `Contestant`."""
        return self.absence()

    def compile(self, cell: Cell) -> "concurrent.futures.Future[Any]":
        """See `Contestant`."""
        if cell not in self._programs:
            self._programs[cell] = compilers().submit(lambda: compiled(*self.function(cell)))
        return self._programs[cell]

    def function(self, cell: Cell) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The function to compile, and its arguments.

        Raises:
            RefusalError: It cannot compute this cell.
        """
        attend, more = self.attention(cell.problem)
        q, k, v, d_out = operands(cell.problem.shape)
        if cell.passes == "forward":
            return lambda q, k, v, *more: (attend(q, k, v, *more),), (q, k, v, *more)

        def both(q: Array, k: Array, v: Array, d_out: Array, *more: Any) -> tuple[Array, ...]:  # noqa: PLR0917 - the operands of attention
            out, transpose = jax.vjp(lambda q, k, v: attend(q, k, v, *more), q, k, v)
            return out, *transpose(d_out)

        return both, (q, k, v, d_out, *more)

    def measure(self, cell: Cell, check: Callable[[Mapping[str, np.ndarray]], None]) -> Measurement:
        """See `Contestant`."""
        try:
            program = self._programs[cell].result()
        except BackendError as error:
            raise RefusalError(why_not(self.name, error)) from error
        _, arguments = self.function(cell)
        check(slices(cell.problem.shape, program.call(*arguments)))
        timing = clock(program.call, arguments)
        return Measurement(
            timing, program.compile_seconds, program.temporary_bytes, program.lower_seconds
        )

    def forget(self) -> None:
        """See `Contestant`."""
        for future in self._programs.values():
            future.cancel()  # at the deadline some have not begun
        self._programs.clear()

    def close(self) -> None:
        """See `Contestant`."""
        self.forget()
