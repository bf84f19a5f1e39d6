"""The calls of a soak: a draw for each call, the operations, and the checks of their results.

A call is identified by the seed, its thread and its number in that thread, so its draw is the same
each time. `_run` has the threads.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shapeexec import _compat
from shapeexec._errors import FrozenError, OutOfMemoryError
from shapeexec.execution import Padded
from shapeexec.tools.soaking._compare import VARIANTS, Expected, Shape, added, check, expected
from shapeexec.tools.soaking._models import BATCH, LENGTH, Model
from shapeexec.tools.soaking._services import Service

_STEPS = 4
"""The number of steps of a decode loop."""

ONCE = frozenset(("restart",))
"""Operations after which graphs are made or loaded, and which the last phase does not repeat."""


class NotRefusedError(Exception):
    """A call returned although it must raise a `FrozenError`."""


@dataclasses.dataclass(frozen=True)
class Draw:
    """A call.

    Attributes:
        seed, thread, number: The numbers that identify it.
        service: The service that is called.
        operation: A key of `OPERATIONS`.
        shapes: The sizes; only maps use more than the first.
        variant: The number of the data set.
    """

    seed: int
    thread: int
    number: int
    service: Service
    operation: str
    shapes: tuple[Shape, ...]
    variant: int

    @property
    def shape(self) -> Shape:
        """The sizes of the call."""
        return self.shapes[0]

    def __str__(self) -> str:
        shapes = "; ".join(map(str, self.shapes if self.operation == "map" else self.shapes[:1]))
        return (
            f"{self.operation} of {self.service.name} at {shapes}, data {self.variant} "
            f"(seed {self.seed}, thread {self.thread}, call {self.number})"
        )


def shapes_of(models: Sequence[Model], *, seed: int, count: int) -> dict[Model, list[Shape]]:
    """Distinct shapes: `count` in total, taken from the models in turn while they have more."""
    found: dict[Model, dict[Shape, None]] = {model: {} for model in models}
    rng = np.random.default_rng(seed)
    most = {"b": BATCH, "s": LENGTH}
    for left in range(20 * count):
        model = models[left % len(models)]
        sizes = tuple((symbol, int(rng.integers(1, most[symbol] + 1))) for symbol in model.symbols)
        if sum(map(len, found.values())) < count:
            found[model][Shape(model, sizes)] = None
    return {model: list(shapes) for model, shapes in found.items()}


@dataclasses.dataclass(frozen=True)
class Traffic:
    """The calls of all threads.

    Attributes:
        seed: The seed of the draws.
        services: The services that may be called.
        shapes: The shapes of each model.
        expected: The expected results.
    """

    seed: int
    services: Sequence[Service]
    shapes: Mapping[Model, Sequence[Shape]]
    expected: Expected

    def draw(self, thread: int, number: int) -> Draw:
        """The call of this number in a thread."""
        rng = np.random.default_rng([self.seed, thread, number])
        service = self.services[int(rng.integers(len(self.services)))]
        known = self.shapes[service.model]
        weights = service.operations
        share = np.array(list(weights.values()), float)
        return Draw(
            seed=self.seed,
            thread=thread,
            number=number,
            service=service,
            operation=str(rng.choice(list(weights), p=share / share.sum())),
            shapes=tuple(known[int(rng.integers(len(known)))] for _ in range(rng.integers(1, 4))),
            variant=int(rng.integers(VARIANTS)),
        )

    def do(self, draw: Draw) -> None:
        """Make a call, and check its result.

        Raises:
            WrongAnswerError: The result is wrong.
            NotRefusedError: The call must raise, but returned.
            BaseException: The error of the call.
        """
        OPERATIONS[draw.operation](self, draw)


def is_promised(draw: Draw, error: BaseException, *, was_warm: bool) -> bool:
    """Whether a call may raise this error without any fault having been injected.

    Args:
        draw: The call.
        error: The error.
        was_warm: Whether the warm-up was done when the call began.
    """
    service = draw.service
    if not isinstance(error, FrozenError) or not service.way.refuses:
        return False
    return draw.operation == "map" or not was_warm or service.refuses(draw.shape)


def is_absorbed(draw: Draw, error: BaseException) -> bool:
    """Whether the options of a call promise that it does not raise this error."""
    service = draw.service
    if not isinstance(error, OutOfMemoryError) or draw.operation in ("map", "session"):
        return False
    sizes = dict(draw.shape.sizes)
    is_padded = any(sizes[symbol] != bucket for symbol, bucket in error.buckets.items())
    return service.run.settings.on_memory == "exact" and is_padded


# Operations


def _answer(traffic: Traffic, draw: Draw, *, got: Any) -> None:
    """Check the result of one call with the data of a draw."""
    draw.service.count("calls")
    _check(traffic, draw, got=got, variant=draw.variant)


def _check(traffic: Traffic, draw: Draw, *, got: Any, variant: int) -> None:
    if draw.service.refuses(draw.shape):
        raise NotRefusedError(f"not refused, with the result {got!r:.200}")
    check(got, traffic.expected.of(draw.shape, variant))


def _call(traffic: Traffic, draw: Draw) -> None:
    _answer(traffic, draw, got=draw.service.run(*draw.shape.arguments(draw.variant)))


def _padded(traffic: Traffic, draw: Draw) -> None:
    _answer(traffic, draw, got=draw.service.run.padded(*draw.shape.arguments(draw.variant)))


def _acall(traffic: Traffic, draw: Draw) -> None:
    """Call with all data sets of a shape at once; check all results before an error is raised."""
    run = draw.service.run

    async def gathered() -> list[Any]:
        calls = (run.acall(*draw.shape.arguments(variant)) for variant in range(VARIANTS))
        return await asyncio.gather(*calls, return_exceptions=True)

    results = asyncio.run(gathered())
    errors = [one for one in results if isinstance(one, BaseException)]
    for _ in range(VARIANTS - len(errors)):
        draw.service.count("calls")
    for variant, result in enumerate(results):
        if not isinstance(result, BaseException):
            _check(traffic, draw, got=result, variant=variant)
    if errors:
        raise errors[0]


def _handles(traffic: Traffic, draw: Draw) -> None:
    """A call with handles of arrays whose padding is not zero."""
    args = list(draw.shape.arguments(draw.variant))
    for place, spec in enumerate(draw.shape.model.specs):
        if spec is not None:
            args[place] = _poisoned(args[place])
    _answer(traffic, draw, got=draw.service.run(*args))


def _poisoned(array: np.ndarray) -> Padded:
    """A handle of an array padded with poison to the next power of two along each axis."""
    poison = np.nan if array.dtype.kind == "f" else 1 << 20
    whole = np.full([1 << (size - 1).bit_length() for size in array.shape], poison, array.dtype)
    whole[tuple(map(slice, array.shape))] = array
    return Padded(_compat.asarray(whole), array.shape)


def _map(traffic: Traffic, draw: Draw) -> None:
    model, run = draw.shape.model, draw.service.run
    given = [shape.arguments(draw.variant) for shape in draw.shapes]
    args = [
        given[0][place] if spec is None else [one[place] for one in given]
        for place, spec in enumerate(model.specs)
    ]
    right = [traffic.expected.of(shape, draw.variant) for shape in draw.shapes]
    if draw.number % 2:
        check(run.map(*args, reduce="sum"), added(right))
        return
    for got, want in zip(run.map(*args), right, strict=True):
        check(got, want)


def _session(traffic: Traffic, draw: Draw) -> None:
    """A decode loop, in which each call takes the handle that the previous one returned."""
    del traffic
    service = draw.service
    w, plain, token = draw.shape.arguments(draw.variant)
    handle = Padded(_compat.asarray(plain), plain.shape)
    for step in range(_STEPS if plain.shape[0] + _STEPS <= LENGTH else 1):
        if step:
            handle, plain = handle.grown(), np.concatenate([plain, np.zeros_like(plain[:1])])
        at = np.int32((token + step) % 20)
        result = service.run.padded(w, handle, at)
        service.count("calls")
        right = expected(service.model, (w, plain, at))
        check(result, right)
        handle, plain = result[0], right[0]
        if not isinstance(handle, Padded):  # its size is exact
            handle = Padded(handle, handle.shape)


def _preview(traffic: Traffic, draw: Draw) -> None:
    """All operations that inspect an `Exec` and run nothing."""
    del traffic
    run, args = draw.service.run, draw.shape.arguments(draw.variant)
    for look in (run.plan, run.why_new, run.explain):
        str(look(*args))
    for seen in (run.graphs, run.stats, run.last_miss()):
        str(seen)
    if draw.service.registry is not None:
        import prometheus_client  # noqa: PLC0415 - it may not be installed

        prometheus_client.generate_latest(draw.service.registry)


def _clear(traffic: Traffic, draw: Draw) -> None:
    del traffic
    draw.service.run.clear()


def _warm_up(traffic: Traffic, draw: Draw) -> None:
    """Warm up a shape's graph while other threads call and clear."""
    del traffic
    args = draw.shape.arguments(draw.variant)
    draw.service.run.warmup(*args, workers=2, sizes=dict(draw.shape.sizes))


def _restart(traffic: Traffic, draw: Draw) -> None:
    """Restart from files while other threads call, then call the loaded `Exec`."""
    draw.service.restart(is_late=bool(draw.number % 2))
    _call(traffic, draw)


OPERATIONS: Mapping[str, Callable[[Traffic, Draw], None]] = {
    "call": _call,
    "acall": _acall,
    "padded": _padded,
    "handles": _handles,
    "map": _map,
    "session": _session,
    "preview": _preview,
    "clear": _clear,
    "warmup": _warm_up,
    "restart": _restart,
}
