"""The contestants of a benchmark: op by op, `jax.jit`, compiled ahead, or an `Exec`.

`_contest` runs and compares them.
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
    """Runs calls, and reports the programs that were compiled for them.

    Attributes:
        name: Its name.
        note: A remark on what runs.
        is_timed: Whether it is timed; otherwise it runs one call, which is compared.
    """

    name: str
    note: str
    is_timed: bool

    def __call__(self, number: int) -> Any:
        """Run a call, by its number."""
        ...

    def programs(self) -> list[GraphBytes] | None:
        """The memory of each program; None: unknown."""
        ...

    def waste(self) -> float:
        """The share of padding among all elements that ran."""
        ...

    @property
    def source(self) -> str:
        """Its source text, such as `sx.Pow2()`."""
        ...


class Jitted:
    """A function through `jax.jit`, with a program for each shape."""

    name, source, note, is_timed = "jax.jit", "jax.jit(fn)", "", True

    def __init__(self, run: Exec, calls: Sequence[Args]) -> None:
        taken_apart = [taken(run.settings, args, kwargs={}) for args in calls]
        self._leaves = [jax.tree.leaves((tuple(c.arrays), dict(c.named))) for c in taken_apart]
        # One function for all calls: only their shapes differ.
        self.flat = jax.jit(taken_apart[0].pure())

    def leaves(self, number: int) -> list[Any]:
        """The flat arrays of a call."""
        return self._leaves[number]

    def __call__(self, number: int) -> Any:
        return self.flat(*self._leaves[number])

    def programs(self) -> list[GraphBytes] | None:
        """The memory of the programs by XLA; they are compiled already, and in JAX's cache."""
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
        """The memory of the programs by XLA."""
        return [found for one in self._compiled.values() if (found := bytes_of(one)) is not None]


@dataclasses.dataclass
class OpByOp:
    """A function without `jax.jit`, called for each example of a batch.

    Attributes:
        fn: A function of parameters and a batch, whose examples do not depend on each other.
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
        """Return None: JAX does not give access to its programs of single operations."""
        return None

    def waste(self) -> float:
        """Nothing is padded."""
        return 0.0


@dataclasses.dataclass
class Bucketed:
    """An Exec.

    Attributes:
        name: Its name.
        run: The Exec, which shares no graphs with others.
        calls: The arguments of all calls.
        note: A remark on what runs.
        is_timed: Whether it is timed.
    """

    name: str
    run: Exec
    calls: Sequence[Args]
    note: str = ""
    is_timed: bool = True

    def __call__(self, number: int) -> Any:
        return self.run(*self.calls[number])

    def programs(self) -> list[GraphBytes] | None:
        """The memory of the graphs by XLA."""
        return [row.bytes for row in self.run.graphs if row.bytes is not None]

    def waste(self) -> float:
        """The share of padding in all calls so far."""
        return 1 - self.run.stats.efficiency

    @property
    def source(self) -> str:
        """Its buckets as source text."""
        strategies = self.run.settings.strategies
        if isinstance(strategies, Strategy):
            return code(strategies) or repr(strategies)
        return ", ".join(f"{s}: {code(one) or repr(one)}" for s, one in strategies.items())
