"""Who may run the calls of a benchmark: op by op, `jax.jit`, compiled ahead, or an `Exec`.

When they run, and how they are compared, is in `_contest`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec._code import code
from shapeexec.bucketing import Strategy
from shapeexec.execution import Exec
from shapeexec.execution._compile import bytes_of
from shapeexec.execution._row import GraphBytes
from shapeexec.execution._split import taken

Args = Sequence[Any]


class Contestant(Protocol):
    """Who runs calls, and tells of the programs that were compiled for them.

    Attributes:
        name: What it is called.
        note: What runs, where that is worth knowing.
        is_timed: Whether its time means anything; else it runs one call, which is compared.
    """

    name: str
    note: str
    is_timed: bool

    def __call__(self, number: int) -> Any:
        """Run a call, by its number."""
        ...

    def programs(self) -> list[GraphBytes] | None:
        """The memory of each program; None: nobody knows."""
        ...

    def waste(self) -> float:
        """The share of elements that were padding."""
        ...

    @property
    def source(self) -> str:
        """What it is, as it is written."""
        ...


class Jitted:
    """A function through `jax.jit`, with a program for each shape."""

    name, source, note, is_timed = "jax.jit", "jax.jit(fn)", "", True

    def __init__(self, run: Exec, calls: Sequence[Args]) -> None:
        taken_apart = [taken(run.settings, args, kwargs={}) for args in calls]
        self._leaves = [jax.tree.leaves((tuple(c.arrays), dict(c.named))) for c in taken_apart]
        # One function for all calls: they differ in shapes alone.
        self.flat = jax.jit(taken_apart[0].pure())

    def leaves(self, number: int) -> list[Any]:
        """The flat arrays of a call."""
        return self._leaves[number]

    def __call__(self, number: int) -> Any:
        return self.flat(*self._leaves[number])

    def programs(self) -> list[GraphBytes] | None:
        """What XLA tells of the programs; they are compiled already, and JAX finds them."""
        by_shape = {tuple(map(np.shape, leaves)): leaves for leaves in self._leaves}
        compiled = (self.flat.lower(*leaves).compile() for leaves in by_shape.values())
        return [found for found in map(bytes_of, compiled) if found is not None]

    def waste(self) -> float:
        """Nothing is padded."""
        return 0.0


class Ahead(Jitted):
    """A function compiled ahead of its first call for each shape, as `jax.jit` compiles it."""

    name, source = "AOT", "jax.jit(fn).lower(...).compile()"

    def __init__(self, run: Exec, calls: Sequence[Args]) -> None:
        super().__init__(run, calls)
        self._compiled: dict[int, Any] = {}

    def __call__(self, number: int) -> Any:
        if number not in self._compiled:
            self._compiled[number] = self.flat.lower(*self.leaves(number)).compile()
        return self._compiled[number](*self.leaves(number))

    def programs(self) -> list[GraphBytes] | None:
        """What XLA tells of the programs."""
        return [found for one in self._compiled.values() if (found := bytes_of(one)) is not None]


@dataclasses.dataclass
class OpByOp:
    """A function without `jax.jit`, called for each example of a batch.

    Attributes:
        fn: Of parameters and a batch, whose examples do not see each other.
        calls: The arguments of all calls.
    """

    fn: Callable[..., Any]
    calls: Sequence[Args]
    name: str = "op by op"
    source: str = "[fn(params, x[i : i + 1]) for i in range(len(x))]"
    note: str = ""
    is_timed: bool = True

    def __call__(self, number: int) -> Any:
        params, batch = self.calls[number]
        rows = [self.fn(params, batch[i : i + 1]) for i in range(len(batch))]
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), *rows)

    def programs(self) -> list[GraphBytes] | None:
        """One for each operation at each shape, which JAX keeps to itself."""
        return None

    def waste(self) -> float:
        """Nothing is padded."""
        return 0.0


@dataclasses.dataclass
class Bucketed:
    """An Exec.

    Attributes:
        name: What it is called.
        run: The Exec, with graphs of its own.
        calls: The arguments of all calls.
        note: What runs.
        is_timed: Whether its time means anything.
    """

    name: str
    run: Exec
    calls: Sequence[Args]
    note: str = ""
    is_timed: bool = True

    def __call__(self, number: int) -> Any:
        return self.run(*self.calls[number])

    def programs(self) -> list[GraphBytes] | None:
        """What XLA tells of the graphs."""
        return [row.bytes for row in self.run.graphs if row.bytes is not None]

    def waste(self) -> float:
        """Of all calls so far."""
        return 1 - self.run.stats.efficiency

    @property
    def source(self) -> str:
        """Its buckets, as they are written."""
        strategies = self.run.settings.strategies
        if isinstance(strategies, Strategy):
            return code(strategies) or repr(strategies)
        return ", ".join(f"{s}: {code(one) or repr(one)}" for s, one in strategies.items())
