"""From the arguments of a call to its plan: bind, bucket, trace, key.

Planning traces, since guards decide between graphs. It compiles nothing and runs nothing.
"""

import dataclasses
import itertools
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from shapeexec import _compat
from shapeexec._errors import (
    ConfigError,
    ConstraintError,
    InconclusiveShapeError,
    ShapeExecError,
    SpecError,
    UnsupportedPrimitiveError,
)
from shapeexec.bucketing import Exact, Strategy
from shapeexec.bucketing._fixed import runs_exact
from shapeexec.execution import _transfer
from shapeexec.execution._compile import Recipe
from shapeexec.execution._key import Base, Key, Kind, Padded
from shapeexec.execution._options import parameters_of, range_of
from shapeexec.execution._outcomes import are_many
from shapeexec.execution._placement import Placement, placement_of
from shapeexec.execution._plan import Plan
from shapeexec.execution._proofs import Check, Proofs
from shapeexec.execution._split import Call
from shapeexec.masking._extents import Extents
from shapeexec.shape import _dim
from shapeexec.shape._attempt import Program
from shapeexec.shape._binding import BoundSpec
from shapeexec.shape._foreign import refused_dtype
from shapeexec.shape._guards import Guard
from shapeexec.shape._search import needed
from shapeexec.shape._shape import is_array
from shapeexec.shape._spec import compile_spec
from shapeexec.shape._trace import Leaf, Trace, trace
from shapeexec.shape._unknown import names_for


@dataclasses.dataclass(frozen=True)
class Settings:
    """How an Exec maps calls to graphs; fixed when it is made.

    Attributes:
        fn: The plain function.
        in_shapes: One spec per positional argument; None: the defaults.
        kwarg_shapes: Specs by keyword; None: all static, or the defaults beside default specs.
        strategies: By symbol; a Strategy alone stands for all symbols.
        constraints: What every call's sizes fulfil.
        on_unsupported: Whether what cannot be padded is an error or makes its symbols exact.
        poison: What fills padding; None: nothing does.
        static_argnums: Positions of arguments that are Python values.
        static_argnames: Keywords of arguments that are Python values.
        donate_argnums: Positions of arguments whose memory may be reused.
        examples: The strategy for the number of examples of `Exec.map`.
        check: Which calls' traces are checked against the plain function's.
    """

    fn: Callable[..., Any]
    in_shapes: tuple[Any, ...] | None
    kwarg_shapes: Mapping[str, Any] | None
    strategies: Strategy | Mapping[str, Strategy]
    constraints: tuple[Guard, ...]
    on_unsupported: Literal["raise", "exact"]
    poison: str | None
    static_argnums: tuple[int, ...]
    static_argnames: tuple[str, ...]
    donate_argnums: tuple[int, ...]
    examples: Strategy
    check: Check = "graphs"

    def strategy(self, symbol: str) -> Strategy:
        """The strategy of a symbol; Exact for one that has none."""
        return strategy_of(symbol, self.strategies)


def strategy_of(symbol: str, strategies: Strategy | Mapping[str, Strategy]) -> Strategy:
    """The strategy of a symbol by its name, or by one that covers it; Exact if it has none."""
    if isinstance(strategies, Strategy):
        return strategies
    given = (strategies[name] for name in names_for(symbol) if name in strategies)
    return next(given, Exact())


@dataclasses.dataclass(frozen=True)
class Exactness:
    """Which symbols are exact in calls of one kind, as far as is known.

    Attributes:
        strategies: See `Settings`.
        always: Symbols that are exact at all sizes for want of a rule.
        apart: The symbols that are exact at some sizes alone, by these sizes, symbols sorted.
    """

    strategies: Strategy | Mapping[str, Strategy]
    always: frozenset[str]
    apart: Mapping[tuple[tuple[str, int], ...], frozenset[str]]

    def symbols(self, sizes: Mapping[str, int]) -> frozenset[str]:
        """The symbols that are exact in a call of these sizes."""
        found = self.always | self.apart.get(tuple(sorted(sizes.items())), frozenset())
        strategies = {symbol: strategy_of(symbol, self.strategies) for symbol in sizes}
        return found | {s for s, size in sizes.items() if runs_exact(strategies[s], size)}


_MOST_STRUCTURES = 1024  # each exact size is one; a trace that is dropped is made again

Arguments = tuple[Sequence[Any], Mapping[str, Any]]
"""The positional and the keyword arguments of a call."""


class _Structure:
    """All calls that differ in ragged sizes only: one trace per outcome of their guards."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.traces: dict[int, Trace] = {}
        self.seconds: dict[int, float] = {}


@dataclasses.dataclass(frozen=True)
class _Bound:
    """A call, its arguments bound to their specs.

    Attributes:
        base: All that the call has in common with others that may share its traces.
        dims: Per leaf its dims, symbolic where its spec says so.
        dtypes: Per leaf its dtype and weak type.
        sizes: The size of each symbol.
        fn: The plain function, of flat arrays.
        placement: Where the leaves stand.
    """

    base: Base
    dims: tuple[tuple[Any, ...], ...]
    dtypes: tuple[tuple[Any, bool], ...]
    sizes: dict[str, int]
    fn: Callable[..., Any]
    placement: Placement

    def leaves(self, exact: Mapping[str, int]) -> list[Leaf]:
        """The arguments to trace, with some symbols replaced by their sizes."""
        dims = [tuple(_dim.substitute(dim, exact) for dim in leaf) for leaf in self.dims]
        return [Leaf(d, *dtype) for d, dtype in zip(dims, self.dtypes, strict=True)]


class Planner:
    """Plans calls, and keeps the traces that this takes.

    Args:
        settings: How calls map to graphs.
        is_cached: Whether the graph of a key is compiled.
        count: Told what to add to the counters `traces`, `checks` and `differences`.
    """

    def __init__(
        self,
        settings: Settings,
        is_cached: Callable[[Hashable], bool],
        count: Callable[..., None],
    ) -> None:
        self._settings = settings
        self._is_cached = is_cached
        self._count = count
        self._proofs = Proofs(settings.check, count)
        self._lock = threading.Lock()
        self._trace_numbers = itertools.count()
        self._bound: dict[Hashable, BoundSpec] = {}
        self._structures: dict[Hashable, _Structure] = {}
        self._forced_exact: dict[Hashable, dict[str, str]] = {}

    def clear(self) -> None:
        """Forget all traces."""
        with self._lock:
            self._bound.clear()
            self._structures.clear()
            self._forced_exact.clear()
        self._proofs.clear()

    def plan(self, call: Call, trial: Iterable[str] = (), *, is_proven_later: bool = False) -> Plan:
        """Plan a call, whose arguments may be arrays or `jax.ShapeDtypeStruct`.

        Args:
            call: The call.
            trial: Symbols that are exact in this plan, and not for that in the next.
            is_proven_later: Whether the caller proves what `may_wait`, by planning once more.

        Raises:
            ConfigError: A static argument cannot be hashed, or another is not an array.
            SpecError: The arguments contradict the specs.
            ConstraintError: The sizes break a constraint.
            BucketOverflowError: A size has no bucket.
            StrategyError: A strategy breaks one of its laws.
            InconclusiveShapeError: The function cannot be traced at symbolic sizes.
        """
        bound = self._take_apart(call)
        while True:
            forced = self._forced_exact.get(bound.base, {}) | dict.fromkeys(trial, "on trial")
            forced |= self._proofs.exact(bound.base, bound.sizes)
            try:
                plan = self._plan(bound, forced)
            except InconclusiveShapeError as error:
                if not self.make_exact(bound.base, error.symbols or bound.sizes.keys(), error):
                    raise
                continue
            if is_proven_later and self.may_wait(plan):
                return plan
            difference = self._difference(bound, plan)
            if difference is None:
                return plan
            fewest = self._fewest_apart(bound, forced)
            self._proofs.set_apart(bound.base, bound.sizes, fewest, difference)

    def may_wait(self, plan: Plan) -> bool:
        """Whether a graph may run before its trace is proven, and perhaps in vain."""
        settings, jaxpr = self._settings, plan.recipe.trace.jaxpr
        in_vain = not settings.donate_argnums and not jaxpr.effects
        return settings.check == "worker" and plan.is_compiled and in_vain

    def _difference(self, call: _Bound, plan: Plan) -> str | None:
        """How the trace of a plan differs from the plain function at the sizes of the call."""
        graph, traced = (plan.key, plan.kind), plan.recipe.trace
        leaves = call.leaves({})
        found = self._proofs.difference(graph, traced, call.fn, leaves, call.sizes)
        if found is not None:
            return found
        try:
            _ = plan.size_vector
        except Exception as error:
            Program(call.fn, leaves, call.sizes, ()).run_plain()
            return f"{type(error).__name__}: {error}"
        return None

    def _fewest_apart(self, call: _Bound, forced: Mapping[str, str]) -> list[str]:
        """The fewest symbols to be exact so that the trace is the plain function's."""
        open_symbols = [symbol for symbol in call.sizes if symbol not in forced]

        def is_proven(symbols: Sequence[str]) -> bool:
            try:
                plan = self._plan(call, {**forced, **dict.fromkeys(symbols, "on trial")})
            except InconclusiveShapeError:
                return False
            return self._difference(call, plan) is None

        return needed(open_symbols, is_proven)

    def make_exact(self, base: Hashable, symbols: Iterable[str], error: ShapeExecError) -> bool:
        """Run calls of one kind at the exact sizes of `symbols` from now on, because of `error`.

        Returns:
            False if that is not allowed, or is nothing new.
        """
        reason = f"{error.what}   <- {error.where}" if error.where else error.what
        with self._lock:
            known = self._forced_exact.get(base, {})
            if self._settings.on_unsupported == "raise" or not frozenset(symbols) - known.keys():
                return False
            self._forced_exact[base] = dict.fromkeys(symbols, reason) | known
            return True

    def make_fewest_exact(
        self,
        plan: Plan,
        error: UnsupportedPrimitiveError,
        call: Call,
    ) -> bool:
        """Make exact what has to be for a call to be masked, and no symbol more.

        Args:
            plan: The plan whose masking met `error`.
            error: What it met.
            call: The call.

        Returns:
            False if that is not allowed, or does not help.
        """
        if self._settings.on_unsupported == "raise":
            return False
        suspects: dict[str, None] = {}
        met: UnsupportedPrimitiveError | None = error
        while met is not None:
            known = len(suspects)
            suspects |= dict.fromkeys(sorted(met.symbols or plan.sizes))
            if len(suspects) == known:
                return False
            met = self._met_on_trial(call, suspects)
        fewest = needed(list(suspects), lambda symbols: self._met_on_trial(call, symbols) is None)
        # None if another thread, or a trace on trial, has made them exact meanwhile.
        return not fewest or self.make_exact(plan.base, fewest, error)

    def _met_on_trial(self, call: Call, symbols: Iterable[str]) -> UnsupportedPrimitiveError | None:
        """What masking a call meets while some symbols are exact."""
        plan = self.plan(call, symbols)
        try:
            plan.recipe.notes(*structs_at_capacity(plan, call.arrays, call.named))
        except UnsupportedPrimitiveError as error:
            return error
        return None

    def strategy(self, symbol: str) -> Strategy:
        """The strategy of a symbol."""
        return self._settings.strategy(symbol)

    def exactness(self, base: Hashable) -> Exactness:
        """Which symbols are exact in calls of one kind."""
        with self._lock:
            always = frozenset(self._forced_exact.get(base, ()))
        return Exactness(self._settings.strategies, always, self._proofs.apart(base))

    def sizes(self, call: Call) -> dict[str, int]:
        """The size of each symbol in a call."""
        return self._take_apart(call).sizes

    def ragged_dims(self, call: Call) -> dict[int, tuple[Any, ...]]:
        """By number of leaf the dims of those arguments that are ragged."""
        dims = self._take_apart(call).dims
        return {i: d for i, d in enumerate(dims) if any(_dim.symbols_of(dim) for dim in d)}

    def _take_apart(self, call: Call) -> _Bound:
        _check_constants(call)
        arrays, named = call.trees()
        leaves, treedef = jax.tree.flatten((tuple(arrays), named))
        self._check_specs(call)
        bound = self._bind(treedef, arrays, named)
        shapes = bound.shapes(leaves)
        _check_known(shapes)
        sizes = dict(sorted(bound.sizes(shapes).items()))
        self._check_constraints(sizes)
        dims = tuple(() if d is None else d for d in bound.dims(shapes))
        dtypes = tuple(_dtype(leaf, index, treedef) for index, leaf in enumerate(leaves))
        texts = tuple(tuple(map(_dim.dim_text, leaf_dims)) for leaf_dims in dims)
        base = Base(treedef, texts, dtypes, call.static, _compat.config_fingerprint())
        fn = _compat.told_as(self._settings.fn, call.pure())
        return _Bound(base, dims, dtypes, sizes, fn, placement_of(leaves))

    def _plan(self, call: _Bound, forced: Mapping[str, str]) -> Plan:
        exact = {
            symbol: size
            for symbol, size in call.sizes.items()
            if symbol in forced or runs_exact(self._settings.strategy(symbol), size)
        }
        traced, number, trace_seconds = self._trace(call, exact)
        symbols = traced.substitution
        ranges = {symbol: self._range(symbol, call.sizes[symbol]) for symbol in traced.symbols}
        ranges = dict(sorted(ranges.items()))
        extents = Extents(ranges, {}, symbols)
        kind = Key(Kind(call.base, tuple(exact.items()), number, call.placement))
        key = Key(Padded(kind, tuple(ranges.items())))
        out_dims = [tuple(aval.shape) for aval in traced.jaxpr.out_avals]
        own_sizes = symbols.sizes(call.sizes)
        return Plan(
            sizes=call.sizes,
            buckets={
                symbol: size if symbol in exact else extents.capacity(symbols.inward(symbol))
                for symbol, size in call.sizes.items()
            },
            guards=traced.guards,
            in_capacities=tuple(extents.capacities(aval.shape) for aval in traced.jaxpr.in_avals),
            out_shapes=tuple(
                tuple(_dim.evaluate(dim, own_sizes) for dim in shape) for shape in out_dims
            ),
            out_capacities=tuple(map(extents.capacities, out_dims)),
            exact=tuple(sorted(forced.keys() & exact.keys())),
            reasons={symbol: forced[symbol] for symbol in sorted(forced.keys() & exact.keys())},
            is_compiled=self._is_cached(key),
            base=call.base,
            kind=kind,
            key=key,
            recipe=Recipe(
                trace=traced,
                symbols=tuple(call.sizes),
                ranges=ranges,
                poison=self._settings.poison,
                donate=self._settings.donate_argnums,
                trace_seconds=trace_seconds,
            ),
        )

    def _range(self, symbol: str, size: int) -> tuple[int, int]:
        """The least size in the bucket of a size, and the bucket."""
        return range_of(symbol, self._settings.strategy(symbol), size)

    def _trace(self, call: _Bound, exact: Mapping[str, int]) -> tuple[Trace, int, float]:
        """The trace that speaks for these sizes.

        Besides its number, which no other one ever has, and the seconds that it took.
        """
        with self._lock:
            key = (call.base, tuple(exact.items()))
            structure = self._structures.pop(key, None) or _Structure()
            self._structures[key] = structure  # the last used stands last
            if len(self._structures) > _MOST_STRUCTURES:
                del self._structures[next(iter(self._structures))]
        with structure.lock:
            for number, known in structure.traces.items():
                if known.admits(call.sizes):
                    return known, number, structure.seconds[number]
            symbolic = [g for g in self._settings.constraints if not g.symbols & exact.keys()]
            start = time.perf_counter()
            made = trace(call.fn, call.leaves(exact), call.sizes, constraints=symbolic)
            self._count(traces=1)
            number = next(self._trace_numbers)
            structure.seconds[number] = time.perf_counter() - start
            structure.traces[number] = made
            if are_many(tuple(structure.traces.values())):
                _warn_of_guards(tuple(structure.traces.values()))
            return made, number, structure.seconds[number]

    def _bind(self, treedef: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundSpec:
        # By default an array is ragged if it has an axis.
        has_axes = [is_array(arg) and len(arg.shape) > 0 for arg in (*args, *kwargs.values())]
        key = (treedef, tuple(kwargs), tuple(has_axes))
        bound = self._bound.get(key)
        if bound is None:
            bound = compile_spec(
                _given_specs(self._settings, len(args), kwargs),
                args,
                kwarg_shapes=self._settings.kwarg_shapes,
                kwargs=kwargs,
            )
            self._bound[key] = bound
        return bound

    def _check_specs(self, call: Call) -> None:
        in_shapes, named = self._settings.in_shapes or (), self._settings.kwarg_shapes or {}
        for place, part in call.parts.items():
            if isinstance(place, int):
                path, spec = f"args[{place}]", in_shapes[place] if place < len(in_shapes) else None
            else:
                path, spec = f"kwargs[{place!r}]", named.get(place)
            if spec is not None and part.is_constant:
                raise SpecError(
                    f'{path} has the spec "{spec}" but is not an array.',
                    got=type(part.leaves[0].value).__name__,
                    fix="pass an array, or make its spec None",
                )

    def _check_constraints(self, sizes: dict[str, int]) -> None:
        for constraint in self._settings.constraints:
            if constraint.symbols <= sizes.keys() and not constraint.holds(sizes):
                told = ", ".join(f"{s}={sizes[s]}" for s in sorted(constraint.symbols))
                raise ConstraintError(
                    f"this call breaks the constraint `{constraint}`: {told}.",
                    constraint=str(constraint),
                    sizes=sizes,
                    fix="call the plain function at these sizes, or loosen constraints=...",
                )


def _given_specs(settings: Settings, count: int, named: Mapping[str, Any]) -> Any:
    """The specs by position, without those of arguments behind `count` that have defaults."""
    specs = settings.in_shapes
    if specs is None or count >= len(specs):
        return specs
    rest = parameters_of(settings.fn)[count : len(specs)]
    may_miss = len(rest) == len(specs) - count and all(
        parameter.default is not parameter.empty and parameter.name not in named
        for parameter in rest
    )
    return specs[:count] if may_miss else specs


def _check_known(shapes: Iterable[Any]) -> None:
    if _dim.any_symbolic(shapes):
        raise SpecError(
            "the sizes are symbolic here, in a function that is traced for all sizes.",
            why="which bucket an axis has follows from its size",
            fix="ask outside of that function, with arrays or jax.ShapeDtypeStruct",
        )


def _check_constants(call: Call) -> None:
    for place, value in call.constants.items():
        try:
            hash(value)
        except TypeError as error:
            path = place if isinstance(place, str) else f"args[{place}]"
            raise ConfigError(
                f"the static argument {path} cannot be hashed: {type(value).__name__}.",
                fix="pass a hashable value (a tuple for a list), or do not make it static",
            ) from error


def structs_at_capacity(
    plan: Plan, arrays: Sequence[Any], named: Mapping[str, Any]
) -> tuple[Any, Any]:
    """The arguments with shapes at capacity in the place of padded arrays."""
    leaves, treedef = jax.tree.flatten((tuple(arrays), dict(named)))
    for index, aval in enumerate(plan.recipe.trace.jaxpr.in_avals):
        if any(not isinstance(dim, int) for dim in aval.shape):
            leaves[index] = _transfer.struct_like(leaves[index], plan.in_capacities[index])
    return jax.tree.unflatten(treedef, leaves)


def _warn_of_guards(traces: Sequence[Trace]) -> None:
    guards = dict.fromkeys(guard for known in traces for guard in known.guards)
    places = dict.fromkeys(_compat.describe_line(guard.place) for guard in guards)
    told = "; ".join(place for place in places if place)
    warnings.warn(
        f"shapeexec: the function was traced {len(traces)} times, for its branches depend on its "
        f"sizes: {', '.join(map(str, list(guards)[:6]))}, ... Each outcome is a graph of its own.\n"
        f"  Where: {told or 'in JAX'}\n"
        "  Fix:   decide with jnp.where or lax.cond on the size, or give the symbol sx.Exact() "
        "in buckets=",
        RuntimeWarning,
        stacklevel=2,
    )


def _dtype(leaf: Any, index: int, treedef: Any) -> tuple[Any, bool]:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.dtype, bool(leaf.weak_type)
    try:
        aval = jax.typeof(leaf)
    except TypeError as error:
        indices = jax.tree.unflatten(treedef, range(treedef.num_leaves))
        (first, *rest), _ = jax.tree_util.tree_leaves_with_path(indices)[index]
        path = ("args", "kwargs")[first.idx] + jax.tree_util.keystr(tuple(rest))
        if isinstance(leaf, np.ndarray | np.generic):
            raise refused_dtype(path, leaf) from error
        raise ConfigError(
            f"{path} is a {type(leaf).__name__} that JAX has no dtype for.",
            got=f"{leaf!r:.80}",
            fix="pass numbers, or a tuple, which is a constant of the graph",
        ) from error
    return aval.dtype, bool(getattr(aval, "weak_type", False))
