"""Running a jaxpr over padded arrays: one rule per equation, and what is known of each result.

No primitive is named here. Shapes come from the jaxpr, data from the rules.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking._context import Fills, MaskNote, RuleContext, Value
from shapeexec.masking._extents import Extents, holds_dim
from shapeexec.masking._fill import fill
from shapeexec.masking._knowledge import Known, constant, nothing_known, uniform
from shapeexec.masking._poison import poison_padding
from shapeexec.masking._registry import KNOWLEDGE, NESTED, RULES, why_refused


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
    """

    poison: str | None = None
    planned: Fills = dataclasses.field(default_factory=Fills)
    fills: Fills = dataclasses.field(default_factory=Fills)
    numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)
    notes: list[MaskNote] = dataclasses.field(default_factory=list)
    outer: tuple[Any, ...] = ()

    def run(self, closed: Any, extents: Extents, operands: Sequence[Value]) -> list[Value]:
        """Run a closed jaxpr, and return its results at capacity."""
        numbered = [Value(v.array, v.known, next(self.numbers)) for v in operands]
        results, _ = self._run_noting_inputs(closed, extents, numbered)
        return results

    def _run_body(self, closed: Any, extents: Extents, operands: Sequence[Value]) -> list[Value]:
        """Run the body of a loop or branch, which JAX may trace more than once: plan nothing."""
        body = dataclasses.replace(self, planned=Fills(), fills=Fills(), numbers=itertools.count())
        return body.run(closed, extents, operands)

    def _run_noting_inputs(
        self, closed: Any, extents: Extents, operands: Sequence[Value]
    ) -> tuple[list[Value], list[Value]]:
        """The results, and the operands as filling has left them."""
        jaxpr = closed.jaxpr
        env: dict[Any, Value] = {}
        for var, const in zip(jaxpr.constvars, closed.consts, strict=True):
            known = nothing_known(len(var.aval.shape), var.aval.dtype)
            env[var] = Value(const, known, next(self.numbers))
        env.update(zip(jaxpr.invars, operands, strict=True))
        for eqn in jaxpr.eqns:
            values = [_read(env, var) for var in eqn.invars]
            results = self._equation(eqn, extents, values)
            for var, value in zip(eqn.invars, values, strict=True):
                if not _compat.is_literal(var):
                    env[var] = value
            env.update(zip(eqn.outvars, results, strict=True))
        return [_read(env, var) for var in jaxpr.outvars], [env[var] for var in jaxpr.invars]

    def _equation(self, eqn: Any, extents: Extents, values: list[Value]) -> list[Value]:
        name = eqn.primitive.name
        within = dataclasses.replace(self, outer=(*self.outer, eqn))
        if name in NESTED:
            inner = NESTED[name](eqn.params)
            inner = inner if hasattr(inner, "consts") else _compat.ClosedJaxpr(inner, ())
            results, values[:] = within._run_noting_inputs(inner, extents, values)
            return results
        ctx = RuleContext(
            eqn, extents, values, self.fills, self.notes, within._run_body, self.outer
        )
        if not _is_ragged(eqn):
            arrays = _bind_as_is(eqn, [value.array for value in values])
        elif name in RULES:
            params = {key: extents.at_capacity(param) for key, param in eqn.params.items()}
            arrays = RULES[name].apply(ctx, *[value.array for value in values], **params)
        else:
            dims = [d for var in (*eqn.invars, *eqn.outvars) for d in _dims(var.aval)]
            raise ctx.unsupported(why_refused(name), dims)
        if not eqn.primitive.multiple_results:
            arrays = [arrays]
        know = KNOWLEDGE.get(name)
        known = None
        if know is not None:
            known = know(ctx, *[value.known for value in values], **eqn.params)
        return [
            self._filled_at_source(var.aval, self._result(var, array, extents, known), extents)
            for var, array in zip(eqn.outvars, arrays, strict=True)
        ]

    def _result(self, var: Any, array: Any, extents: Extents, known: Known | None) -> Value:
        aval = var.aval
        if not hasattr(aval, "shape"):
            return Value(array, nothing_known(0, np.bool_), next(self.numbers))
        capacities = extents.capacities(aval.shape)
        if known is None or _is_narrower(array, capacities):
            known = nothing_known(len(aval.shape), aval.dtype)
        array = conform(array, capacities)
        if self.poison is not None and holds_dim(tuple(aval.shape)):
            array = poison_padding(array, extents.lengths(aval.shape), known, self.poison)
        return Value(array, known, next(self.numbers))

    def _filled_at_source(self, aval: Any, made: Value, extents: Extents) -> Value:
        """Fill a value for all its readers, if an earlier pass found that they want it."""
        planned = self.planned.at_source(made.number)
        if planned is None:
            return made
        value, wanted = planned
        axes = [a for a in wanted if not made.known.axes[a].is_constant(value, or_nan=True)]
        if not axes:
            return made
        self.fills.at_source_now(made.number)
        array = fill(made.array, extents.lengths(aval.shape), value, axes)
        return Value(array, made.known.filled(axes, constant(value)), made.number)


def _read(env: dict[Any, Value], var: Any) -> Value:
    if not _compat.is_literal(var):
        return env[var]
    if var.aval.shape == () and not _compat.is_extended(var.aval.dtype):
        return Value(var.val, uniform(0, constant(np.asarray(var.val, var.aval.dtype))))
    return Value(var.val, nothing_known(len(var.aval.shape), var.aval.dtype))


def _dims(aval: Any) -> tuple[Any, ...]:
    return tuple(getattr(aval, "shape", ()))


def _is_ragged(eqn: Any) -> bool:
    """Whether a symbolic dim occurs anywhere in an equation."""
    return (
        any(holds_dim(_dims(var.aval)) for var in (*eqn.invars, *eqn.outvars))
        or any(holds_dim(param) for param in eqn.params.values())
        or any(_is_ragged_jaxpr(inner) for inner in _compat.sub_jaxprs(eqn.params))
    )


def _is_ragged_jaxpr(jaxpr: Any) -> bool:
    return any(_is_ragged(eqn) for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns)


def _bind_as_is(eqn: Any, arrays: Sequence[Any]) -> Any:
    """An equation without symbolic dims means what it meant."""
    return eqn.primitive.bind(*arrays, **eqn.primitive.get_bind_params(eqn.params))


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
