"""Masks as nested selects, without `and` and `or` of bool arrays.

Mosaic lowers `and` and `or` element by element, at several times the cost of the comparisons. So a
rule is traced, and where it joins conditions the choice between two values is nested instead: `x if
(a and b) else y` is `(x if b else y) if a else y`, one select for each comparison.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shapeexec import _compat
from shapeexec.attention.backends.mosaic_gpu import _i32 as i32


class Condition:
    """A condition on each element, made of simpler ones; plain ones are arrays of booleans."""

    def choose(self, yes: Array, no: Any) -> Array:
        """`yes` where the condition holds, else `no`."""
        raise NotImplementedError  # abstract


@dataclasses.dataclass(frozen=True)
class _Both(Condition):
    one: Any
    other: Any

    def choose(self, yes: Array, no: Any) -> Array:
        return choose(self.one, choose(self.other, yes, no), no)


@dataclasses.dataclass(frozen=True)
class _Either(Condition):
    one: Any
    other: Any

    def choose(self, yes: Array, no: Any) -> Array:
        return choose(self.one, yes, choose(self.other, yes, no))


@dataclasses.dataclass(frozen=True)
class _Not(Condition):
    one: Any

    def choose(self, yes: Array, no: Any) -> Array:
        return choose(self.one, no, yes)


def choose(condition: Any, yes: Array, no: Array | float) -> Array:
    """`yes` where a `Condition` or an array of booleans holds, else `no`."""
    if isinstance(condition, Condition):
        return condition.choose(yes, no)
    # Mosaic selects by one boolean for all elements only if that is written out.
    shape = jnp.broadcast_shapes(jnp.shape(condition), jnp.shape(yes), jnp.shape(no))
    return jnp.where(jnp.broadcast_to(condition, shape), yes, no)


def evaluate(function: Callable[..., Any], *arguments: Array) -> Any:
    """function(*arguments), with booleans joined into a `Condition`.

    Args:
        function: An elementwise function without effects that returns one array.
        *arguments: Arrays; the function is traced for their shapes and dtypes only.
    """
    shapes = [jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)) for x in arguments]
    traced = jax.make_jaxpr(function)(*shapes)
    (result,) = _compat.evaluate(traced, arguments, step=_step)
    return result


def _step(eqn: Any, operands: list[Any]) -> list[Any]:
    inner = eqn.params.get("jaxpr")
    if inner is not None:
        return _compat.evaluate(inner, operands, step=_step)
    if eqn.outvars[0].aval.dtype == bool and (join := _JOINS.get(eqn.primitive.name)):
        return [join(*operands)]
    if eqn.primitive.name == "select_n" and isinstance(operands[0], Condition):
        which, no, yes = operands
        if eqn.outvars[0].aval.dtype != bool:
            return [choose(which, yes, no)]
        return [_Either(_Both(which, yes), _Both(_Not(which), no))]
    plain = [_as_array(x) if isinstance(x, Condition) else x for x in operands]
    return _compat.bind_equation(eqn, plain)


def _as_array(condition: Condition) -> Array:
    return condition.choose(i32.constant(1), i32.constant(0)) != 0


def _xor(one: Any, other: Any) -> Condition:
    for known, rest in ((one, other), (other, one)):
        if isinstance(known, (bool, np.bool_)) or (
            isinstance(known, np.ndarray) and known.ndim == 0
        ):
            return _Not(rest) if known else rest
    return _Either(_Both(one, _Not(other)), _Both(_Not(one), other))


_JOINS: dict[str, Callable[..., Any]] = {"and": _Both, "or": _Either, "not": _Not, "xor": _xor}
