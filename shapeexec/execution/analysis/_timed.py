"""The cost of the masks of a graph, timed against copies of the graph that lack some masks.

The copies are wrong by design. They run here only, on made-up data, and are dropped. `_of_masks`
makes advice of the times.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec import _compat
from shapeexec.execution._compile import Graph, Recipe
from shapeexec.masking._values import MaskNote
from shapeexec.shape import _dim

LeftOut = Callable[[MaskNote], bool]
_Arguments = tuple[Any, tuple[Any, ...], list[Any]]
"""The vector of sizes, the constants, and the leaves at capacity."""
_ROUNDS = 21
_TURN = 1e-3  # seconds of calls per turn, so that the overhead of the clock is negligible
_MOST = 6  # primitives that are timed one by one


@dataclasses.dataclass(frozen=True)
class TimedMask:
    """The cost of the masks of one primitive on one line, per call.

    Attributes:
        note: The first of these masks.
        symbols: The symbols along which they mask.
        seconds: The time of a call.
        spared: The time saved without them: the median over rounds in which both took turns.
        spared_mostly: The time saved in at least three of four rounds.
    """

    note: MaskNote
    symbols: frozenset[str]
    seconds: float
    spared: float
    spared_mostly: float


def timed_masks(graph: Graph) -> tuple[TimedMask, ...]:
    """Time the masks of a graph, the dearest first; empty if `why_not_timed` has a reason."""
    recipe = graph.outline.recipe
    if not isinstance(recipe, Recipe) or why_not_timed(graph) is not None:
        return ()
    arguments = _made_up(graph, recipe)
    groups: dict[tuple[str, str | None], list[MaskNote]] = {}
    for note in recipe.notes(graph.outline.args, graph.outline.kwargs):
        if note.masked and note.at:
            groups.setdefault((note.primitive, note.where), []).append(note)
    if not groups:
        return ()
    bare = _copy(recipe, arguments, left_out=lambda note: True)
    whole = _copy(recipe, arguments, left_out=None)
    _, spared_by_all, _ = _compared(whole, bare)
    if spared_by_all <= 0:
        return ()
    found: list[TimedMask] = []
    for key, notes in [*groups.items()][:_MOST]:
        left_out = bare if len(groups) == 1 else _copy(recipe, arguments, left_out=_is_of(key))
        symbols = frozenset[str]().union(*(_symbols(recipe, note) for note in notes))
        found.append(TimedMask(notes[0], symbols, *_compared(whole, left_out)))
    return tuple(sorted(found, key=lambda one: -one.spared))


def _is_of(key: tuple[str, str | None]) -> LeftOut:
    return lambda note: (note.primitive, note.where) == key


def why_not_timed(graph: Graph) -> str | None:
    """Why the masks of a graph cannot be timed by copies of it; None: they can be."""
    recipe = graph.outline.recipe
    if not isinstance(recipe, Recipe):
        return "the graph is one of a map"
    if graph.row.shardings:
        return f"{next(iter(graph.row.shardings))} is committed to its device"
    jaxpr = _compat.opened(recipe.trace.jaxpr)
    unsafe = _compat.UNSAFE_ON_MADE_UP_DATA
    for name in (eqn.primitive.name for eqn in _equations(jaxpr)):
        if name in unsafe:
            return f"copies of the graph run on made-up data, on which `{name}` {unsafe[name]}"
    return "the function has side effects" if jaxpr.effects else None


def _equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        yield from _compat.equations_inside(eqn)


def _symbols(recipe: Recipe, note: MaskNote) -> frozenset[str]:
    """The symbols of calls in the dims after "along" in a note."""
    dims = note.what.rpartition(" along ")[2].split(", ")
    inner = frozenset[str]().union(*map(_dim.symbols_of, dims))
    return recipe.trace.substitution.symbols(inner)


def _made_up(graph: Graph, recipe: Recipe) -> _Arguments:
    """Arguments at the sizes of the buckets: ones, and indices of 0."""
    sizes = {symbol: most for symbol, (_, most) in recipe.ranges.items()}
    leaves = [_filled(leaf) for leaf in jax.tree.leaves((graph.outline.args, graph.outline.kwargs))]
    return recipe.numbers.vector(sizes), graph.consts, leaves


def _filled(leaf: Any) -> Any:
    if _compat.is_extended(leaf.dtype):
        return jax.random.split(jax.random.key(0), leaf.shape)
    value = 1 if jnp.issubdtype(leaf.dtype, np.inexact) else 0
    return jnp.full(leaf.shape, value, leaf.dtype)


def _copy(recipe: Recipe, arguments: _Arguments, *, left_out: LeftOut | None) -> Callable[[], Any]:
    """A call of the function without some of its masks."""
    masked = dataclasses.replace(recipe.masked, left_out=left_out)

    def body(arguments: _Arguments) -> Any:
        vector, consts, leaves = arguments
        sizes, hosted = recipe.numbers.read(vector)
        return masked(sizes, consts, leaves=leaves, hosted=hosted)

    run = jax.jit(body).lower(arguments).compile()
    return lambda: jax.block_until_ready(run(arguments))


def _compared(whole: Callable[[], Any], other: Callable[[], Any]) -> tuple[float, float, float]:
    """The seconds of a call, how much less the other takes, and what most rounds spared."""
    both = _turn(whole, repeats=1) + _turn(other, repeats=1)  # which warms the caches, too
    repeats = max(1, round(2 * _TURN / both))
    turns = [(_turn(whole, repeats=repeats), _turn(other, repeats=repeats)) for _ in range(_ROUNDS)]
    gaps = [a - b for a, b in turns]
    mostly = float(np.percentile(gaps, 25))
    return statistics.median(a for a, _ in turns), statistics.median(gaps), mostly


def _turn(call: Callable[[], Any], *, repeats: int) -> float:
    """The seconds of a call."""
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - began) / repeats
