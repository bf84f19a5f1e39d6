"""Running a jaxpr over padded arrays: one rule per equation, and what is known of each result.

No primitive is named here. Shapes come from the jaxpr, data from the rules.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking._context import RuleContext
from shapeexec.masking._extents import Extents, holds_dim
from shapeexec.masking._fill import fill
from shapeexec.masking._knowledge import Known, constant, nothing_known, nothing_known_of, uniform
from shapeexec.masking._poison import poison_padding
from shapeexec.masking._registry import KNOWLEDGE, NESTED, RULES, why_refused
from shapeexec.masking._scope import Scope
from shapeexec.masking._values import Fills, MaskNote, Value

Watch = Callable[[RuleContext, list[Value]], list[Value]]


@dataclasses.dataclass(frozen=True)
class Interpreter:
    """How jaxprs are run: with which poison, and where masks are reported.

    Attributes:
        poison: What fills the padding of each result; None: nothing does.
        planned: The fills that an earlier pass over the same jaxpr asked for.
        fills: Those that this pass asks for.
        numbers: Numbers the values, alike in each pass.
        notes: Filled in as the jaxpr is run, in the order of its equations.
        outer: The equations around the jaxpr, the innermost last: JAX keeps the user's line with
            the call of a jitted function, and not with what is inside of it.
        watch: Sees each equation that is not inside of a loop or branch, with the values of its
            results, and returns those to go on with; None: nobody looks.
    """

    poison: str | None = None
    planned: Fills = dataclasses.field(default_factory=Fills)
    fills: Fills = dataclasses.field(default_factory=Fills)
    numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)
    notes: list[MaskNote] = dataclasses.field(default_factory=list)
    outer: tuple[Any, ...] = ()
    watch: Watch | None = None

    def run(self, closed: Any, extents: Extents, operands: Sequence[Value]) -> list[Value]:
        """Run a closed jaxpr, and return its results at capacity."""
        numbered = [Value(v.array, v.known, next(self.numbers)) for v in operands]
        results, _ = self._run_noting_inputs(closed, extents, numbered)
        return results

    def _run_body(
        self,
        bodies: "dict[int, _Body]",
        number: int,
        closed: Any,
        extents: Extents,
        operands: Sequence[Value],
    ) -> list[Value]:
        """Run the body of a loop or branch, which may be traced any number of times.

        What the last time told and asked for is left in `bodies`.
        """
        known = bodies.get(id(closed.jaxpr))
        key = (number, len(bodies) if known is None else known.key[1])
        body = dataclasses.replace(
            self,
            planned=self.planned.body(key),
            fills=Fills(),
            numbers=itertools.count(),
            notes=[],
            watch=None,
        )
        strangers = [Value(v.array, dataclasses.replace(v.known, role=None)) for v in operands]
        results = body.run(closed, extents, strangers)
        bodies[id(closed.jaxpr)] = _Body(key, closed, body, tuple(v.number for v in operands))
        return [Value(v.array, dataclasses.replace(v.known, role=None)) for v in results]

    def _take_over(self, bodies: "dict[int, _Body]") -> None:
        """Keep what bodies told and asked for, once all of their tracing is done."""
        for body in bodies.values():
            self.notes.extend(body.interpreter.notes)
            self.fills.keep_body(body.key, body.interpreter.fills)
            for inside, outside in enumerate(body.operands):
                wish = body.interpreter.fills.at_source(inside)
                if outside >= 0 and wish is not None:
                    self.fills.ask(outside, wish)

    def _run_noting_inputs(
        self,
        closed: Any,
        extents: Extents,
        operands: Sequence[Value],
        wanted: Sequence[bool] | None = None,
    ) -> tuple[list[Value], list[Value]]:
        """The results, and the operands as filling has left them.

        Args:
            closed: The jaxpr.
            extents: Capacities and valid lengths.
            operands: One per input.
            wanted: Per result whether anybody reads it; the others are None. None: all are.
        """
        jaxpr = closed.jaxpr
        wanted = [True] * len(jaxpr.outvars) if wanted is None else wanted
        env: dict[Any, Value] = {}
        for var, const in zip(jaxpr.constvars, closed.consts, strict=True):
            env[var] = Value(const, nothing_known_of(var.aval), next(self.numbers))
        env.update(zip(jaxpr.invars, operands, strict=True))
        results = [var for var, is_wanted in zip(jaxpr.outvars, wanted, strict=True) if is_wanted]
        live = _live(jaxpr, results)
        scope = Scope(env, [eqn for eqn, _ in live], results)
        for eqn, is_used in live:
            values = [_read(env, var) for var in eqn.invars]
            made = self.run_equation(eqn, extents, values, is_used, scope)
            for var, value in zip(eqn.invars, values, strict=True):
                if not _compat.is_literal(var):
                    env[var] = value
            env.update(zip(eqn.outvars, made, strict=True))
        outs = [
            _read(env, var) if is_wanted else _NOBODYS
            for var, is_wanted in zip(jaxpr.outvars, wanted, strict=True)
        ]
        return outs, [env[var] for var in jaxpr.invars]

    def run_equation(
        self,
        eqn: Any,
        extents: Extents,
        values: list[Value],
        is_used: Sequence[bool],
        scope: Scope,
    ) -> list[Value]:
        """The results of one equation; `values` is left with what filling has made of it."""
        name = eqn.primitive.name
        within = dataclasses.replace(self, outer=(*self.outer, eqn))
        if name in NESTED:
            inner = _compat.closed(NESTED[name](eqn.params))
            results, values[:] = within._run_noting_inputs(inner, extents, values, is_used)
            return results
        numbers = [next(self.numbers) for _ in eqn.outvars]
        bodies: dict[int, _Body] = {}
        ctx = RuleContext(
            eqn,
            extents,
            values,
            self.fills,
            self.notes,
            functools.partial(within._run_body, bodies, numbers[0] if numbers else -1),
            self.planned,
            numbers,
            is_used,
            scope,
            self.outer,
        )
        rule = RULES.get(name)
        if not is_ragged(eqn) and not (rule and rule.also_static):
            # An equation without symbolic dims means what it meant.
            made = _compat.bind_equation(eqn, [value.array for value in values])
        elif rule:
            params = {key: extents.at_capacity(param) for key, param in eqn.params.items()}
            made = rule.apply(ctx, *[value.array for value in values], **params)
            made = made if eqn.primitive.multiple_results else [made]
        else:
            dims = [d for var in (*eqn.invars, *eqn.outvars) for d in _dims(var.aval)]
            raise ctx.unsupported(why_refused(name), dims)
        self._take_over(bodies)
        know = KNOWLEDGE.get(name)
        known = None
        if know is not None:
            known = know(ctx, *[value.known for value in values], **eqn.params)
        results = [
            self._filled_at_source(ctx, i, self._result(var, one, extents, known, numbers[i]))
            for i, (var, one) in enumerate(zip(eqn.outvars, made, strict=True))
        ]
        return results if self.watch is None else self.watch(ctx, results)

    def _result(
        self, var: Any, made: Any, extents: Extents, known: Known | None, number: int
    ) -> Value:
        """The value of a variable, of what its rule made: an array, or a `Value`."""
        aval, array = var.aval, made
        if isinstance(made, Value):
            array, known = made.array, made.known
        if not hasattr(aval, "shape"):
            return Value(array, nothing_known(0, np.bool_), number)
        capacities = extents.capacities(aval.shape)
        if known is None or _is_narrower(array, capacities):
            known = nothing_known_of(aval)
        array = conform(array, capacities)
        if self.poison is not None and holds_dim(tuple(aval.shape)):
            array = poison_padding(array, extents.lengths(aval.shape), known, self.poison)
        return Value(array, known, number)

    def _filled_at_source(self, ctx: RuleContext, result: int, made: Value) -> Value:
        """Fill a value for all its readers, if an earlier pass found that they want it."""
        wish = ctx.wish(result)
        if wish is None:
            return made
        axes = sorted(
            a for a in wish.axes if not made.known.axes[a].is_constant(wish.value, unless="nan")
        )
        if not axes:
            return made
        ctx.note_filled(result, axes)
        array = fill(made.array, ctx.out_lengths[result], wish.value, axes)
        return Value(array, made.known.filled(axes, constant(wish.value)), made.number)


@dataclasses.dataclass(frozen=True)
class _Body:
    """The body of a loop or branch, as it was interpreted last.

    Attributes:
        key: The equation's number, and the body's within it.
        closed: The jaxpr.
        interpreter: With its notes and the fills that it asks for.
        operands: The numbers of its operands outside; -1: they are made for the body.
    """

    key: tuple[int, int]
    closed: Any
    interpreter: Interpreter
    operands: tuple[int, ...]


_NOBODYS = Value(None, nothing_known(0, np.bool_))
"""A result that nobody reads."""


def _live(jaxpr: Any, wanted: Sequence[Any]) -> list[tuple[Any, tuple[bool, ...]]]:
    """The equations that results or effects hang on, and which of their results are read."""
    needed = {var for var in wanted if not _compat.is_literal(var)}
    live = []
    for eqn in reversed(jaxpr.eqns):
        is_used = tuple(var in needed for var in eqn.outvars)
        if any(is_used) or eqn.effects:
            live.append((eqn, is_used))
            needed.update(var for var in eqn.invars if not _compat.is_literal(var))
    return live[::-1]


def _read(env: dict[Any, Value], var: Any) -> Value:
    if not _compat.is_literal(var):
        return env[var]
    if var.aval.shape == () and not _compat.is_extended(var.aval.dtype):
        return Value(var.val, uniform(0, constant(np.asarray(var.val, var.aval.dtype))))
    return Value(var.val, nothing_known_of(var.aval))


def _dims(aval: Any) -> tuple[Any, ...]:
    return tuple(getattr(aval, "shape", ()))


def is_ragged(eqn: Any) -> bool:
    """Whether a symbolic dim occurs anywhere in an equation."""
    return (
        any(holds_dim(_dims(var.aval)) for var in (*eqn.invars, *eqn.outvars))
        or any(holds_dim(param) for param in eqn.params.values())
        or any(is_ragged_jaxpr(inner) for inner in _compat.sub_jaxprs(eqn.params))
    )


def is_ragged_jaxpr(jaxpr: Any) -> bool:
    """Whether a symbolic dim occurs anywhere in the equations of a jaxpr, closed or not."""
    return any(map(is_ragged, getattr(jaxpr, "jaxpr", jaxpr).eqns))


def _is_narrower(array: Array, shape: tuple[int, ...]) -> bool:
    """Whether `conform` would add padding of its own."""
    return any(have < want for have, want in zip(jnp.shape(array), shape, strict=True))


def conform(array: Array, shape: tuple[int, ...]) -> Array:
    """Cut or widen `array` to `shape`; what is added is padding."""
    if not hasattr(array, "shape") or tuple(array.shape) == shape:
        return array
    array = lax.slice(array, [0] * array.ndim, list(map(min, array.shape, shape)))
    missing = [want - have for want, have in zip(shape, array.shape, strict=True)]
    if not any(missing):
        return array
    if _compat.is_extended(array.dtype):
        return jnp.pad(array, [(0, more) for more in missing], mode="edge")
    return lax.pad(array, np.zeros((), array.dtype), [(0, more, 0) for more in missing])
