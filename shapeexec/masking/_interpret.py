"""Running a jaxpr over padded arrays: one rule per equation, and the facts about each result.

No primitive is named here. Shapes come from the jaxpr, data from the rules.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from shapeexec import _compat
from shapeexec._errors import ConfigError
from shapeexec.masking._context import Result, RuleContext
from shapeexec.masking._extents import Extents, holds_dim, is_ragged
from shapeexec.masking._fill import NoZeroError, conform
from shapeexec.masking._knowledge import Known, constant, nothing_known, nothing_known_of, uniform
from shapeexec.masking._poison import poison_padding
from shapeexec.masking._registry import KNOWLEDGE, RULES, nested_jaxpr, why_refused
from shapeexec.masking._scope import Scope
from shapeexec.masking._typed import TypedResults
from shapeexec.masking._values import Report, Value

Watch = Callable[[RuleContext, list[Value]], list[Value]]
"""`watch(ctx, results) -> results`: sees an equation and its results, and may replace these."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The values around an equation, or a jaxpr, that was run.

    Attributes:
        results: One per result; `_UNREAD` for a result that is not wanted.
        operands: The operands, some of them filled.
    """

    results: list[Value]
    operands: list[Value]


@dataclasses.dataclass(frozen=True)
class Interpreter:
    """One pass over a jaxpr and those nested in it.

    Attributes:
        poison: The name of the poison for the padding of each result; None: no poison.
        planned: The report of an earlier pass over the same jaxpr.
        report: The report of this pass.
        numbers: Numbers for the values, the same in each pass.
        outer: The equations that enclose the jaxpr, the outermost first.
        watch: Called for each equation outside of loops and branches; None: never.
        typed: Set in the planning pass: results have correct avals, arbitrary values.
    """

    poison: str | None = None
    planned: Report = dataclasses.field(default_factory=Report)
    report: Report = dataclasses.field(default_factory=Report)
    numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)
    outer: tuple[Any, ...] = ()
    watch: Watch | None = None
    typed: TypedResults | None = None

    def run(self, closed: Any, extents: Extents, *, operands: Sequence[Value]) -> list[Value]:
        """Run a closed jaxpr, and return its results at capacity."""
        numbered = [dataclasses.replace(value, number=next(self.numbers)) for value in operands]
        return self._run(closed, extents, operands=numbered).results

    def _run(
        self,
        closed: Any,
        extents: Extents,
        *,
        operands: Sequence[Value],
        wanted: Sequence[bool] | None = None,
    ) -> Outcome:
        """Run a closed jaxpr on numbered operands.

        Args:
            closed: The jaxpr.
            extents: Capacities and valid lengths.
            operands: One per input.
            wanted: Per result whether it is read; None: all are.
        """
        jaxpr = closed.jaxpr
        wanted = [True] * len(jaxpr.outvars) if wanted is None else wanted
        results = [*itertools.compress(jaxpr.outvars, wanted)]
        env = _compat.Environment(dict(zip(jaxpr.invars, operands, strict=True)), _of_literal)
        for var, const in zip(jaxpr.constvars, closed.consts, strict=True):
            env.values[var] = Value(const, nothing_known_of(var.aval), next(self.numbers))
        live = _compat.live_equations(jaxpr, results)
        scope = Scope(env.values, [*live], results=results, outer=self.outer)

        def step(eqn: Any) -> list[Value]:
            values = [env.read(atom) for atom in eqn.invars]
            outcome = self._equation(eqn, extents, values=values, is_used=live[eqn], scope=scope)
            env.write(eqn.invars, outcome.operands)
            return outcome.results

        env.walk(live, step)
        outs = zip(jaxpr.outvars, wanted, strict=True)
        return Outcome(
            [env.read(atom) if is_wanted else _UNREAD for atom, is_wanted in outs],
            [env.read(var) for var in jaxpr.invars],
        )

    def _equation(
        self,
        eqn: Any,
        extents: Extents,
        *,
        values: Sequence[Value],
        is_used: Sequence[bool],
        scope: Scope,
    ) -> Outcome:
        """Run one equation: in place if it only wraps a jaxpr, else by its rule."""
        nested = nested_jaxpr(eqn)
        if nested is not None:
            inside = dataclasses.replace(self, outer=(*self.outer, eqn))
            return inside._run(nested, extents, operands=values, wanted=is_used)
        numbers = [next(self.numbers) for _ in eqn.outvars]
        bodies = _Bodies(self, eqn, number=numbers[0] if numbers else -1)
        results = [
            Result(var.aval, extents, number, used, self.planned.requested(number), self.report)
            for var, number, used in zip(eqn.outvars, numbers, is_used, strict=True)
        ]
        ctx = RuleContext(
            eqn,
            extents,
            values=values,
            results=results,
            scope=scope,
            report=self.report,
            run=bodies.run,
            typed=self.typed,
        )
        made = _applied(ctx)
        bodies.report_to(self.report)
        know = KNOWLEDGE.get(ctx.primitive)
        facts = [operand.known for operand in ctx.operands]
        known = None if know is None else know(ctx, *facts, **eqn.params)
        finished = [
            _filled_at_source(result, self._conformed(result, one, known=known))
            for result, one in zip(results, made, strict=True)
        ]
        finished = finished if self.watch is None else self.watch(ctx, finished)
        return Outcome(finished, [operand.value for operand in ctx.operands])

    def _conformed(self, result: Result, made: Any, *, known: Known | None) -> Value:
        """A result at capacity, from the array or `Value` that its rule returned."""
        aval, array = result.aval, made
        if isinstance(made, Value):
            array, known = made.array, made.known
        if not hasattr(aval, "shape"):
            return Value(array, nothing_known(0, np.bool_), result.number)
        capacities = result.capacities
        if getattr(array, "shape", None) != capacities:
            if _is_narrower(array, capacities):
                known = None
            array = conform(array, capacities)
        if known is None:
            known = nothing_known_of(aval)
        if self.poison is not None and holds_dim(result.dims):
            array = poison_padding(array, result.lengths, known=known, poison=self.poison)
        return Value(array, known, result.number)


def _applied(ctx: RuleContext) -> Sequence[Any]:
    """Per result the array or `Value` that the equation's rule, or JAX itself, computes."""
    with _compat.settings_around(ctx.eqn):
        return _made(ctx)


def _made(ctx: RuleContext) -> Sequence[Any]:
    eqn, rule = ctx.eqn, RULES.get(ctx.primitive)
    arrays = [operand.array for operand in ctx.operands]
    if not is_ragged(eqn) and not (rule and rule.also_static):
        # Without symbolic dims the equation at capacity is the equation itself.
        made = ctx.bind(*arrays, **eqn.primitive.get_bind_params(eqn.params))
        return made if eqn.primitive.multiple_results else [made]
    if rule is None:
        dims = [d for var in (*eqn.invars, *eqn.outvars) for d in getattr(var.aval, "shape", ())]
        raise ctx.unsupported_error(why_refused(ctx.primitive), dims)
    params = {key: ctx.extents.at_capacity(param) for key, param in eqn.params.items()}
    try:
        made = rule.apply(ctx, *arrays, **params)
    except NoZeroError as error:
        raise ctx.unsupported_error(error.reason, fix=error.fix) from error
    made = made if eqn.primitive.multiple_results else [made]
    _check_made(ctx, made)
    return made


def _check_made(ctx: RuleContext, made: Sequence[Any]) -> None:
    """Check that a rule has returned one array per result, of its rank and dtype.

    Raises:
        ConfigError: It has not; no later check would notice another dtype.
    """
    avals = [result.aval for result in ctx.results]
    arrays = [one.array if isinstance(one, Value) else one for one in made]
    if len(arrays) != len(avals) or not all(map(_are_alike, arrays, avals)):
        wanted = [_kind(aval) for aval in avals if hasattr(aval, "shape")]
        raise ConfigError(
            f"the rule of `{ctx.primitive}` returns other arrays than the primitive.",
            got=f"{', '.join(map(_kind, arrays))}; wanted {', '.join(wanted)}",
            fix="return one array per result, of its rank and dtype",
        )


def _are_alike(array: Any, aval: Any) -> bool:
    """Whether an array has the rank and dtype of a result; one without a shape may be anything."""
    if not hasattr(aval, "shape"):
        return True
    shape = getattr(array, "shape", None)
    return shape is not None and len(shape) == len(aval.shape) and array.dtype == aval.dtype


def _kind(array: Any) -> str:
    shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    return type(array).__name__ if shape is None else f"{dtype} of rank {len(shape)}"


def _filled_at_source(result: Result, value: Value) -> Value:
    """A result, filled as all of its readers request."""
    request = result.requested
    if request is None:
        return value
    axes = sorted(
        a for a in request.axes if not value.known.axes[a].is_constant(request.value, unless="nan")
    )
    if not axes:
        return value
    result.note_filled(axes)
    array = result.extents.filled(
        value.array, result.dims, value=request.value, axes=axes, note=request.note
    )
    return Value(array, value.known.filled(axes, constant(request.value)), value.number)


class _Bodies:
    """The bodies of one equation's loop or branches, which JAX may trace any number of times.

    Only the last trace of each body counts.

    Args:
        interpreter: The interpreter of the equation.
        eqn: The equation.
        number: The number of the equation's first result, which identifies the equation.
    """

    def __init__(self, interpreter: Interpreter, eqn: Any, *, number: int) -> None:
        self._interpreter, self._eqn, self._number = interpreter, eqn, number
        self._last: dict[int, _Body] = {}

    def run(self, closed: Any, extents: Extents, operands: Sequence[Value]) -> list[Value]:  # noqa: PLR0917 - `RuleContext` calls it
        """Run a body. Softmax roles do not cross the body's boundary."""
        last = self._last.get(id(closed.jaxpr))
        key = (self._number, len(self._last) if last is None else last.key[1])
        body = dataclasses.replace(
            self._interpreter,
            planned=self._interpreter.planned.body(key),
            report=Report(),
            numbers=itertools.count(),
            outer=(*self._interpreter.outer, self._eqn),
            watch=None,
            typed=None if self._interpreter.typed is None else TypedResults(),
        )
        results = body.run(closed, extents, operands=[*map(_without_role, operands)])
        numbers = tuple(value.number for value in operands)
        self._last[id(closed.jaxpr)] = _Body(key, closed, body.report, numbers)
        return [_without_role(value, number=-1) for value in results]

    def report_to(self, report: Report) -> None:
        """Add the reports of all bodies to the report of the pass over the equation."""
        for body in self._last.values():
            report.add_body(body.key, body.report, operands=body.operands)


@dataclasses.dataclass(frozen=True)
class _Body:
    """The last trace of the body of a loop or branch.

    Attributes:
        key: The equation's number, and the body's within it.
        closed: The jaxpr, held so that no other one gets its id.
        report: Its report.
        operands: The numbers of its operands outside; -1: computed for the body.
    """

    key: tuple[int, int]
    closed: Any
    report: Report
    operands: tuple[int, ...]


def _without_role(value: Value, *, number: int | None = None) -> Value:
    known = dataclasses.replace(value.known, role=None)
    return Value(value.array, known, value.number if number is None else number)


_UNREAD = Value(None, nothing_known(0, np.bool_))
"""Stands for a result that nothing reads."""


def _of_literal(var: Any) -> Value:
    if var.aval.shape == () and not _compat.is_extended(var.aval.dtype):
        return Value(var.val, uniform(0, constant(np.asarray(var.val, var.aval.dtype))))
    return Value(var.val, nothing_known_of(var.aval))


def _is_narrower(array: Array, shape: tuple[int, ...]) -> bool:
    """Whether `conform` would add padding of its own."""
    return any(have < want for have, want in zip(jnp.shape(array), shape, strict=True))
