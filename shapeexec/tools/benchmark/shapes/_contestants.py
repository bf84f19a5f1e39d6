"""Who runs the shapes: `jax.jit` at each exact shape, or an `Exec` with a strategy.

When they run, and how they are compared, is in `_run`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from shapeexec import _compat
from shapeexec._code import code
from shapeexec.bucketing import Strategy
from shapeexec.costing import speed_of
from shapeexec.execution import Exec
from shapeexec.execution._compile import bytes_of
from shapeexec.execution._row import GraphBytes
from shapeexec.execution._split import taken
from shapeexec.tools._fit import fit
from shapeexec.tools._strategies import FIT, strategy_of

EXACT = "jax.jit"
Args = Sequence[Any]
Sizes = Mapping[str, int]


class Contestant(Protocol):
    """Who runs calls, and tells of the programs that were compiled for them."""

    name: str

    def __call__(self, number: int) -> Any:
        """Run a call, by its number."""
        ...

    def programs(self) -> list[GraphBytes]:
        """The memory of each program."""
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

    name = source = EXACT

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

    def programs(self) -> list[GraphBytes]:
        """What XLA tells of the programs; they are compiled already, and JAX finds them."""
        by_shape = {tuple(map(np.shape, leaves)): leaves for leaves in self._leaves}
        compiled = (self.flat.lower(*leaves).compile() for leaves in by_shape.values())
        return [found for found in map(bytes_of, compiled) if found is not None]

    def waste(self) -> float:
        """Nothing is padded."""
        return 0.0


@dataclasses.dataclass
class Bucketed:
    """An Exec with a strategy.

    Attributes:
        name: As it was asked for.
        run: The Exec, with graphs of its own.
        calls: The arguments of all calls.
    """

    name: str
    run: Exec
    calls: Sequence[Args]

    def __call__(self, number: int) -> Any:
        return self.run(*self.calls[number])

    def programs(self) -> list[GraphBytes]:
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
        return ", ".join(f"{s}: {code(one) or one!r}" for s, one in strategies.items())


def bucketed(
    run: Exec,
    calls: Sequence[Args],
    *,
    names: Iterable[str],
    sizes: Sequence[Sizes],
    keep: Mapping[str, str],
) -> list[Bucketed]:
    """An Exec for each strategy.

    Args:
        run: The function and its specs.
        calls: The arguments of all calls.
        names: The strategies, as texts.
        sizes: Of the calls.
        keep: The strategies of symbols that are not compared; what is fitted is fitted for all.

    Raises:
        ConfigError: One is no strategy.
    """

    def fitted(graphs: int) -> dict[str, Strategy]:
        model = run.cost_model(*calls[0])
        speed = speed_of(_compat.default_device())
        return dict(fit(model, [dict(at) for at in sizes], graphs=graphs, speed=speed).strategies)

    found: list[Bucketed] = []
    for name in names:
        chosen = strategy_of(name, fitted={FIT: fitted})
        if isinstance(chosen, Strategy):
            chosen = {symbol: keep.get(symbol, chosen) for symbol in sizes[0]}
        options = {"strategies": chosen, "returns": "device", "donate_argnums": ()}
        found.append(Bucketed(name, run.variant(**options), calls))
    return found
