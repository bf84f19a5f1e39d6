"""A study: the seconds to lower and to compile each pass, one program at a time.

Rows of the benchmark also hold these seconds, but while other programs compile. It times no calls.

Mosaic keeps compiled kernels for the process. So what rows, other studies, contestants or passes
have compiled before is not in the seconds of compiling: measure one of our names, and no rows.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import contextlib
import dataclasses
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, cast

import jax
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import AbstractMesh

from shapeexec._errors import BackendError
from shapeexec.attention import _early
from shapeexec.attention.backends import _device
from shapeexec.attention.backends._registry import REGISTERED
from shapeexec.tools.benchmark.attention._contestant import (
    JaxContestant,
    RefusalError,
    in_one_line,
    why_not,
)
from shapeexec.tools.benchmark.attention._finding import Finding
from shapeexec.tools.benchmark.attention._problems import PASSES, Cell, Problem
from shapeexec.tools.benchmark.attention._run import Plan, Row

_BASES = ("jax_nn_cudnn", "jax_nn_xla")
"""The rivals whose seconds ours are divided by: the first one that can compile the cell."""

_OF_CUDA = tuple(row.name for row in REGISTERED if "cuda" in (row.platforms or ()))

_HOPPER = jax.sharding.AbstractDevice(
    device_kind="NVIDIA H100 80GB HBM3", num_cores=None, platform="gpu"
)


@dataclasses.dataclass(frozen=True)
class _Stages:
    """The seconds of one program, or the reason why they are unknown.

    Attributes:
        lower: The seconds to trace and lower it, with its modules imported and JAX's caches empty.
        compile: The seconds to compile the lowered program; None: it was only lowered.
        reason: The reason why `lower` or `compile` is None.
    """

    lower: float | None = None
    compile: float | None = None
    reason: str = ""


def compile_times(plan: Plan, rows: Sequence[Row]) -> Iterator[Finding]:
    """The seconds to lower and to compile each contestant, at the first shape and mask.

    Without the GPU that our kernels need, they are lowered for it and not compiled.
    """
    del rows
    for one in plan.contestants:
        if not isinstance(one, JaxContestant):
            why = "its workers compile it; rows tell how long"
            yield Finding("compile", one.name, "s", None, None, why)
    contestants = [one for one in plan.contestants if isinstance(one, JaxContestant)]
    for passes in PASSES:
        cell = Cell(Problem(plan.shapes[0], plan.patterns[0]), passes)
        with _nothing_kept():
            found: dict[str, _Stages] = {}
            for one in contestants:
                found[one.name] = _stages(one, cell)
        yield from _told(cell, found)


def _stages(contestant: JaxContestant, cell: Cell) -> _Stages:
    try:
        return _measured(contestant, cell, platform=None)
    except (BackendError, RefusalError) as error:
        reason = why_not(contestant.name, error)
        if contestant.name not in _OF_CUDA or jax.default_backend() == "gpu":
            return _Stages(reason=reason)
    except Exception as error:  # as in rows: a failing rival ends nothing
        return _Stages(reason=in_one_line(error))
    try:
        half = _in_half_precision(cell)
        with _as_on_a_hopper():
            found = _measured(contestant, half, platform="cuda")
    except (BackendError, RefusalError) as error:
        return _Stages(reason=why_not(contestant.name, error))
    reason = f"lowered only, for a Hopper in {half.problem.shape.dtype}: none is here"
    return dataclasses.replace(found, reason=reason)


def _measured(contestant: JaxContestant, cell: Cell, *, platform: str | None) -> _Stages:
    function, arguments = contestant.function(cell)
    shapes = jax.tree.map(_shape, arguments)

    def lower() -> Any:
        traced = jax.jit(function).trace(*shapes)
        return traced.lower(lowering_platforms=None if platform is None else (platform,))

    with _early.held_back():  # else kernels are compiled while it is lowered again
        lower()  # imports what it needs
    jax.clear_caches()
    lower_seconds, lowered = _timed(lower)
    if platform is not None:
        return _Stages(lower_seconds)
    return _Stages(lower_seconds, _timed(lowered.compile)[0])


def _shape(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def _told(cell: Cell, found: dict[str, _Stages]) -> Iterator[Finding]:
    base = next((name for name in _BASES if name in found and found[name].compile is not None), "")
    by = found.get(base, _Stages())
    for name, stages in found.items():
        case = f"{cell.name}, {name}"
        meaning = f"of {base}" if base and name != base else ""
        if stages.lower is None:
            yield Finding("compile", case, "s", None, None, stages.reason)
            continue
        about = "; ".join(filter(None, (meaning, stages.reason)))
        lowering, compiling = f"{case}: trace and lower", f"{case}: compile"
        yield Finding("compile", lowering, "s", stages.lower, by.lower, about)
        if stages.compile is not None:
            yield Finding("compile", compiling, "s", stages.compile, by.compile, about)


def _in_half_precision(cell: Cell) -> Cell:
    shape = cell.problem.shape
    if shape.dtype != "float32":
        return cell
    shape = dataclasses.replace(shape, dtype="bfloat16")  # the Hopper kernels take no f32
    return dataclasses.replace(cell, problem=dataclasses.replace(cell.problem, shape=shape))


@contextlib.contextmanager
def _as_on_a_hopper() -> Generator[None]:
    mesh = AbstractMesh((), (), abstract_device=_HOPPER)
    with jax.sharding.use_abstract_mesh(mesh), _device.assumed(_device.HOPPER):
        yield


@contextlib.contextmanager
def _nothing_kept() -> Generator[None]:
    """Empty JAX's caches in memory before and afterwards, and disable its cache on disk."""
    directory: str | None = cast(Any, jax.config).jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    try:
        jax.clear_caches()
        yield
    finally:
        jax.clear_caches()  # they may hold programs lowered for a GPU that is not here
        jax.config.update("jax_compilation_cache_dir", directory)
        compilation_cache.reset_cache()
