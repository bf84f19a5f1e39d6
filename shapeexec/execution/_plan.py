"""The decision before the deed: which graph a call runs in, at which sizes.

`_planner` makes plans, and `_runner` runs them.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from shapeexec._errors import sizes_text
from shapeexec.execution._bind import BoundCall
from shapeexec.execution._compile import Compilable, Recipe
from shapeexec.execution._fillings import Filling
from shapeexec.execution._key import Base, Key
from shapeexec.execution._placement import Shape
from shapeexec.execution._row import GraphRow
from shapeexec.execution._stats import Elements
from shapeexec.execution._traffic import Padding
from shapeexec.execution._usage import elements_of
from shapeexec.masking._values import MaskNote
from shapeexec.shape._questions import AnyGuard


class Planned(Protocol):
    """A call, or examples of a map, that have one graph."""

    @property
    def key(self) -> Key:
        """The key of the graph."""
        ...

    @property
    def recipe(self) -> Compilable:
        """The recipe that compiles the graph."""
        ...

    @property
    def first(self) -> "Plan":
        """The plan of the call, or of the first example."""
        ...

    @property
    def examples(self) -> int | None:
        """How many examples the graph takes; None: it is one of a call."""
        ...

    @property
    def reduce(self) -> str | None:
        """`"sum"` if the results of examples are added."""
        ...

    @property
    def padding(self) -> tuple[tuple[str, int, int], ...]:
        """(symbol, size, bucket) of each symbol; over all examples."""
        ...

    @property
    def requests(self) -> tuple[Padding, ...]:
        """(symbol, size, bucket) of each symbol, for the call or for each example."""
        ...

    @property
    def exact(self) -> tuple[str, ...]:
        """Symbols that have a strategy and yet run at their exact size."""
        ...

    @property
    def elements(self) -> Elements:
        """How many elements of arguments are data, and how many run."""
        ...

    @property
    def warm_up(self) -> str:
        """How to have the graph compiled before it is needed."""
        ...


@dataclasses.dataclass(frozen=True)
class Plan:
    """The decisions for one call, made before anything is compiled.

    Attributes:
        sizes: The true size of each symbol.
        buckets: The size that each symbol is padded to; its true size where it is exact.
        guards: The conditions on the sizes under which this graph is valid.
        in_capacities: Per leaf of the arguments its capacities.
        out_shapes: Per leaf of the result its true shape.
        out_capacities: Per leaf of the result its capacities.
        exact: Symbols that have a strategy and yet run at their exact size in this call.
        reasons: The reason for each symbol in `exact`.
        is_compiled: Whether the graph was in the cache when the plan was made.
        base: The part of the key that calls with a common trace share.
        kind: The part of the key that two calls must share to run in one graph; buckets aside.
        key: The key of the graph. It contains no true sizes except those of exact symbols.
        recipe: Everything needed to compile the graph.
        fillings: The padding of each leaf of the arguments; empty: zeros, which no result
            depends on.
        runs_in: The graph in which the call would run now: its own, or a larger one until its own
            is compiled (`missing="larger"`). None: there is none, or it was not looked up.

    Example:
        >>> plan = sx.Exec(jnp.sum, ("s",)).plan(np.ones(5, np.float32))
        >>> print(plan)
        s=5 in bucket 8 (38% padding); not compiled yet
        >>> plan.buckets, plan.in_capacities, plan.is_compiled
        ({'s': 8}, ((8,),), False)
    """

    sizes: Mapping[str, int]
    buckets: Mapping[str, int]
    guards: tuple[AnyGuard, ...]
    in_capacities: tuple[Shape, ...]
    out_shapes: tuple[Shape, ...]
    out_capacities: tuple[Shape, ...]
    exact: tuple[str, ...]
    reasons: Mapping[str, str]
    is_compiled: bool
    base: Base = dataclasses.field(repr=False)
    kind: Key = dataclasses.field(repr=False)
    key: Key = dataclasses.field(repr=False)
    recipe: Recipe = dataclasses.field(repr=False)
    fillings: tuple[Filling, ...] = ()
    runs_in: GraphRow | None = dataclasses.field(default=None, repr=False, compare=False)

    examples = None
    reduce = None

    @property
    def first(self) -> "Plan":
        """Itself: see `Planned`."""
        return self

    @functools.cached_property
    def size_vector(self) -> np.ndarray:
        """i32[words]: the true sizes, and numbers computed from them, as the graph takes them."""
        return self.recipe.numbers.vector(self.sizes)

    @property
    def elements(self) -> Elements:
        """How many elements of arguments are data, and how many run."""
        return elements_of(self.base, capacities=self.in_capacities, all_sizes=[self.sizes], rows=1)

    @property
    def padding(self) -> tuple[tuple[str, int, int], ...]:
        """(symbol, size, bucket) of each symbol."""
        return tuple((symbol, size, self.buckets[symbol]) for symbol, size in self.sizes.items())

    @property
    def requests(self) -> tuple[Padding, ...]:
        """Its padding alone: see `Planned`."""
        return (self.padding,)

    @property
    def waste(self) -> Mapping[str, float]:
        """Per symbol the share of its bucket that is padding, 0 to 1."""
        return {
            symbol: 1 - size / self.buckets[symbol] if size else 0.0
            for symbol, size in self.sizes.items()
        }

    @property
    def warm_up(self) -> str:
        """How to have the graph compiled before a call needs it."""
        way = f"by `warmup(*args, {warmup_sizes(self.sizes)})` with args such as these"
        if self.recipe.zero_results:
            way += ', of an Exec with returns="padded"'
        return way

    def __str__(self) -> str:
        dims = ", ".join(
            f"{symbol}={size} in bucket {self.buckets[symbol]} ({self.waste[symbol]:.0%} padding)"
            for symbol, size in self.sizes.items()
        )
        state = "compiled" if self.is_compiled else "not compiled yet"
        if self.runs_in is not None:
            if not self.is_compiled:
                state += f", runs in {self.runs_in.sizes} until then"
            elif self.runs_in.origin in ("quick", "tuned"):
                state += f", {self.runs_in.origin}"
        guards = f"; guards: {', '.join(map(str, self.guards))}" if self.guards else ""
        return f"{dims or 'no symbols'}; {state}{guards}"


def notes_of(plan: Plan, call: BoundCall) -> list[MaskNote]:
    """Each mask that the graph of a plan has or is spared; nothing is compiled.

    Raises:
        UnsupportedPrimitiveError: A primitive cannot be made exact.
    """
    return plan.recipe.notes(*call.structs(plan.in_capacities))


WARMUP_OPTIONS = frozenset(("progress", "workers", "sizes"))
"""The parameters of `Exec.warmup` that are not symbols; a test holds them to its signature."""


def warmup_sizes(sizes: Mapping[str, object]) -> str:
    """Sizes as `Exec.warmup` takes them: by keyword, unless a symbol is named like an option."""
    if WARMUP_OPTIONS.isdisjoint(sizes):
        return sizes_text(sizes)
    return "sizes={" + ", ".join(f"'{symbol}': {size}" for symbol, size in sizes.items()) + "}"
