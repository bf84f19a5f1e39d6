"""Finds the equation that breaks the padding invariant: a padded and an unpadded run in lockstep.

Each equation runs twice on equal valid elements: by its rule on padded arrays, and as JAX defines
it on arrays without padding. So an equation that differs is itself wrong, whatever its operands.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec import _compat
from shapeexec.checking import instantiate
from shapeexec.execution._bind import BoundCall
from shapeexec.execution._plan import Plan
from shapeexec.execution._ready import make_ready
from shapeexec.masking._context import RuleContext
from shapeexec.masking._extents import is_ragged
from shapeexec.masking._values import Value
from shapeexec.shape import _dim
from shapeexec.tools import _closeness


@dataclasses.dataclass(frozen=True)
class Culprit:
    """The first equation whose valid part differs.

    Attributes:
        primitive: Its primitive.
        where: The user's line, `code  (file.py:12)`; None if unknown.
        shapes: The types of its operands and results, `f32[b,s] -> f32[b]`.
        difference: How the results differ.
    """

    primitive: str
    where: str | None
    shapes: str
    difference: str


class _Found(Exception):
    """Raised through the interpreter at the first equation that differs."""


@dataclasses.dataclass
class Lockstep:
    """The unpadded run beside a padded one, as the `watch` of an `Interpreter`.

    Attributes:
        sizes: The true size of each symbol of the jaxpr and of the call.
        unpadded: The array without padding, by the number of the value.
        culprit: The first equation that differs.
    """

    sizes: Mapping[str, int]
    unpadded: dict[int, Any] = dataclasses.field(default_factory=dict[int, Any])
    culprit: Culprit | None = None

    def __call__(self, ctx: RuleContext, results: list[Value]) -> list[Value]:
        """Compare one equation's results; return padded results with the correct valid elements."""
        if not is_ragged(ctx.eqn):
            return results
        arrays = [self.without_padding(each.value, each.aval) for each in ctx.operands]
        want = run_unpadded(ctx.eqn, self.sizes, arrays=arrays)
        outputs = zip(results, ctx.eqn.outvars, strict=True)
        got = [self._valid(value.array, var.aval) for value, var in outputs]
        reach = _reach(ctx, arrays)
        is_used = [result.is_used for result in ctx.results]
        differences = [  # unused results, such as a final carry, may be anything
            _closeness.difference(a, b, reach=reach) if is_used else None
            for a, b, is_used in zip(got, want, is_used, strict=True)
        ]
        if any(differences) and not _closeness.is_rounding(
            lambda *nudged: run_unpadded(ctx.eqn, self.sizes, arrays=nudged),
            arrays,
            got=got,
            want=want,
        ):
            self.culprit = _culprit(ctx, next(filter(None, differences)))
            raise _Found
        for value, array in zip(results, want, strict=True):
            self.unpadded[value.number] = array
        return [self._repaired(*pair) for pair in zip(results, want, strict=True)]

    def without_padding(self, value: Value, aval: Any) -> Any:
        """The array of a value in the unpadded run."""
        if value.number in self.unpadded:
            return self.unpadded[value.number]
        array = (
            value.array if hasattr(value.array, "dtype") else jnp.asarray(value.array, aval.dtype)
        )
        return self._valid(array, aval)

    def _valid(self, array: Any, aval: Any) -> Any:
        return _corner(array, [_dim.evaluate(dim, self.sizes) for dim in aval.shape])

    def _repaired(self, value: Value, want: Any) -> Value:
        """The padded array with the valid elements of the unpadded run."""
        if _compat.is_extended(want.dtype) or not np.shape(want) or want.dtype != value.array.dtype:
            return value
        array = np.array(value.array)
        array[tuple(slice(0, n) for n in np.shape(want))] = np.asarray(want)
        return Value(jnp.asarray(array), value.known, value.number)


def locate(plan: Plan, call: BoundCall) -> Culprit | None:
    """The first equation whose valid part differs.

    Args:
        plan: The plan of the call.
        call: The call.
    """
    args, kwargs = make_ready(plan, call).pad(call.call.arrays, call.call.named)
    traced = plan.recipe.trace
    lockstep = Lockstep({**plan.sizes, **traced.substitution.sizes(plan.sizes)})
    sizes = {symbol: np.int32(size) for symbol, size in plan.sizes.items()}
    leaves = jax.tree.leaves((tuple(args), kwargs))
    with contextlib.suppress(_Found):
        plan.recipe.masked.noted(sizes, traced.jaxpr.consts, leaves=leaves, watch=lockstep)
    return lockstep.culprit


def run_unpadded(eqn: Any, sizes: Mapping[str, int], *, arrays: Sequence[Any]) -> list[Any]:
    """The results of one equation on arrays without padding, as JAX defines it."""
    known = instantiate(_compat.jaxpr_of(eqn), sizes)
    return _compat.jaxpr_as_function(known)(*arrays)


def _corner(x: Any, shape: Sequence[int]) -> Any:
    return x[tuple(slice(0, n) for n in shape)] if len(shape) else x


def _reach(ctx: RuleContext, arrays: Sequence[Any]) -> float:
    """The magnitude of the terms of a result, which may be larger than their sum."""
    largest = _closeness.magnitude(arrays)
    return largest**2 if ctx.primitive in ("dot_general", "conv_general_dilated") else largest


def _culprit(ctx: RuleContext, difference: str) -> Culprit:
    def types(variables: Any) -> str:
        return ", ".join(_compat.describe_aval(var.aval) for var in variables)

    shapes = f"{types(ctx.eqn.invars)} -> {types(ctx.eqn.outvars)}"
    return Culprit(ctx.primitive, ctx.scope.line(ctx.eqn), shapes, difference)
