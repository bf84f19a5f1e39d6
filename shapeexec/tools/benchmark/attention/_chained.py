"""Chained calls of attention: all programs are compiled on all cores first, then timed in turn.

The calls of a program are chained, so times include the gaps between kernels.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import concurrent.futures
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np

from shapeexec.tools.benchmark.attention._clock import clock
from shapeexec.tools.benchmark.attention._contestant import Program, compiled, compilers
from shapeexec.tools.benchmark.attention._problems import Pass

Array = Any
Attend = Callable[..., Array]

_CHAINED = 10
"""Calls in a program on a GPU, where a single one is too short to be timed.

On a CPU a program has one: XLA transposes keys for `jax.nn`, and would do it once for all calls,
while layers of a model have keys of their own.
"""


class Chains:
    """Programs by the keys of their owner: of one call, for its result, and of chained ones."""

    def __init__(self) -> None:
        self._programs: dict[tuple[Hashable, str], concurrent.futures.Future[Program]] = {}

    def begin(
        self, key: Hashable, attend: Attend, *, shapes: tuple[Any, ...], passes: Sequence[Pass]
    ) -> None:
        """Begin to compile chains of attend(q, k, v, ...) for `microseconds`.

        Args:
            key: A name.
            attend: The function.
            shapes: The shapes of its arguments.
            passes: The passes of the chains.
        """
        functions = {"forward": _chained, "both": _chained_gradients}
        for name in passes:
            self._compile((key, name), functools.partial(functions[name], attend), shapes=shapes)

    def begin_with_result(
        self, key: Hashable, attend: Attend, *, shapes: tuple[Any, ...], passes: Sequence[Pass]
    ) -> None:
        """As `begin`, and for `result` too."""
        self._compile((key, "result"), attend, shapes=shapes)
        self.begin(key, attend, shapes=shapes, passes=passes)

    def _compile(
        self, name: tuple[Hashable, str], function: Callable[..., Any], *, shapes: tuple[Any, ...]
    ) -> None:
        self._programs[name] = compilers().submit(compiled, function, shapes)

    def wait(self) -> None:
        """Wait until nothing compiles any more."""
        concurrent.futures.wait(self._programs.values())

    def result(self, key: Hashable, arguments: tuple[Any, ...]) -> np.ndarray:
        """The result of one call for the last example, f32; raises what compiling it raised."""
        program = self._programs[key, "result"].result()
        return np.asarray(program.call(*arguments)[-1], np.float32)

    def microseconds(
        self, key: Hashable, arguments: tuple[Any, ...], *, passes: Pass = "forward"
    ) -> float:
        """The microseconds of a chained call, by the host's clock; raises as `result` does."""
        program = self._programs[key, passes].result()
        return 1e3 * clock(program.call, arguments).wall / _calls()


def _calls() -> int:
    """The number of calls in a program."""
    return _CHAINED if jax.default_backend() == "gpu" else 1


def _chained(attend: Attend, q: Array, *rest: Array) -> Array:
    """The queries of each call are the result of the one before."""
    for _ in range(_calls()):
        q = attend(q, *rest)
    return q


def _chained_gradients(  # noqa: PLR0917 - operands of attention
    attend: Attend, q: Array, k: Array, v: Array, *rest: Array
) -> tuple[Array, list[Any]]:
    """The queries of each call are the gradient of the ones before."""
    d_out, others = q, []
    for _ in range(_calls()):
        _, pull = jax.vjp(lambda *operands: attend(*operands, *rest), q, k, v)
        q, *gradients = pull(d_out)
        others.append(gradients)  # results of the program, or XLA would leave them out
    return q, others
