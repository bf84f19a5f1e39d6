"""Finds where a function that masks for itself (`masking=False`) lets padding in.

`_locate` finds a wrong rule of the library; this module finds a wrong equation of the user. The
function's programs at the true sizes and at the buckets run side by side, up to the first equation
whose valid elements differ.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Never

import jax
import numpy as np

from shapeexec import _compat
from shapeexec._errors import InconclusiveShapeError, ValidationError
from shapeexec.checking import instantiate
from shapeexec.execution._bind import BoundCall
from shapeexec.execution._plan import Plan
from shapeexec.execution._ready import make_ready
from shapeexec.shape._trace import trace
from shapeexec.tools import _closeness
from shapeexec.tools._gradients import corner
from shapeexec.tools._locate import Culprit, run_unpadded

Pair = tuple[Any, Any]  # a value at the true sizes, and the same at the buckets


class _Met(NamedTuple):
    """A value in both runs.

    Attributes:
        true: The array at the true sizes.
        whole: The array at the buckets.
        is_aligned: Whether `true` is a corner of `whole`, up to rounding.
    """

    true: Any
    whole: Any
    is_aligned: bool


def padded_leaves(plan: Plan, call: BoundCall) -> list[Any]:
    """The flat arguments of a call, padded to its buckets."""
    args, kwargs = make_ready(plan, call).pad(call.call.arrays, call.call.named)
    return jax.tree.leaves((tuple(args), dict(kwargs)))


def programs_of_call(plan: Plan, call: BoundCall) -> Pair:
    """The function at the true sizes and at the buckets: one program where it has no branches."""
    padded = {s: n for s, n in plan.sizes.items() if n != plan.buckets[s]}
    exact = {s: n for s, n in plan.sizes.items() if s not in padded}
    try:
        shown = trace(call.fn, call.to_trace(exact), sizes=call.sizes)
    except InconclusiveShapeError:
        shown = None
    if shown is None or not shown.admits(plan.buckets):
        true, whole = (
            [jax.ShapeDtypeStruct(leaf.at(at).shape, leaf.dtype) for leaf in call.to_trace({})]
            for at in (plan.sizes, plan.buckets)
        )
        return program(call.fn, true), program(call.fn, whole)
    both = ({**at, **shown.substitution.sizes(at)} for at in (plan.sizes, plan.buckets))
    true, whole = (instantiate(shown.jaxpr, at) for at in both)
    return true, whole


def program(fn: Callable[..., Any], leaves: Sequence[Any]) -> Any:
    """The equations of a function of flat arrays, with calls inlined."""
    closed = _compat.without_hi_primitives(jax.jit(fn).trace(*leaves).jaxpr)
    return instantiate(closed, {})


def first_difference(programs: Pair, leaves: Sequence[Pair]) -> Culprit | None:
    """The first equation that lets padding into valid elements; None: none does.

    A value at the true sizes may not be a corner of the value at the buckets, as after a reshape
    that merges a padded axis. Valid elements and padding cannot be distinguished there, so only
    equations are compared whose result has one shape at all sizes, or whose operands are corners.

    Args:
        programs: The program at the true sizes, and the one at the buckets.
        leaves: For each argument, its arrays for the two programs.
    """
    both = _Both(programs, leaves)
    read = (_compat.live_equations(each.jaxpr, each.jaxpr.outvars) for each in programs)
    for true, whole in itertools.zip_longest(*read):
        if true is None or whole is None or true.primitive is not whole.primitive:
            return _branch(true or whole)
        culprit = both.met(true, whole)
        if culprit is not None:
            return culprit
    return None


class _Both:
    """The values of two programs with the same equations, by the variables of the first."""

    def __init__(self, programs: Pair, leaves: Sequence[Pair]) -> None:
        self._known: dict[Any, _Met] = {}
        true = programs[0].jaxpr
        for a, values in zip(true.invars, leaves, strict=True):
            self._write(a, _Met(*values, is_aligned=True))
        consts = zip(*(each.consts for each in programs), strict=True)
        for a, values in zip(true.constvars, consts, strict=True):
            self._write(a, _Met(*values, is_aligned=True))

    def met(self, true: Any, whole: Any) -> Culprit | None:
        """Run an equation of both programs, and return it if it lets padding in."""
        operands = [self._read(a, b) for a, b in zip(true.invars, whole.invars, strict=True)]
        given = [operand.true for operand in operands]
        want = run_unpadded(true, {}, arrays=given)
        got = run_unpadded(whole, {}, arrays=[operand.whole for operand in operands])
        texts = [self._difference(a, b, given=given) for a, b in zip(got, want, strict=True)]
        if any(texts) and _closeness.is_rounding(
            lambda *nudged: run_unpadded(true, {}, arrays=nudged),
            given,
            got=[corner(a, np.shape(b)) for a, b in zip(got, want, strict=True)],
            want=want,
        ):
            texts = [None] * len(texts)
        is_one_shape = all(np.shape(a) == np.shape(b) for a, b in zip(got, want, strict=True))
        are_corners = all(operand.is_aligned for operand in operands)
        moves = true.primitive.name == "reshape"
        if any(texts) and (is_one_shape or (are_corners and not moves)):
            return _culprit(true, next(filter(None, texts)))
        for a, x, y, text in zip(true.outvars, want, got, texts, strict=True):
            self._write(a, _Met(x, y, is_aligned=text is None))
        return None

    def _difference(self, got: Any, want: Any, *, given: Sequence[Any]) -> str | None:
        fits = all(a >= b for a, b in zip(np.shape(got), np.shape(want), strict=True))
        if not fits:
            return f"{np.shape(got)} at the buckets is smaller than {np.shape(want)}"
        reach = _closeness.magnitude(given)
        return _closeness.difference(corner(got, np.shape(want)), want, reach=reach)

    def _read(self, a: Any, b: Any) -> _Met:
        if not _compat.is_literal(a):
            return self._known[a]
        true, whole = (np.asarray(x.val, x.aval.dtype) for x in (a, b))
        return _Met(true, whole, is_aligned=True)

    def _write(self, variable: Any, met: _Met) -> None:
        self._known[variable] = met


def _branch(eqn: Any) -> Culprit:
    why = "at the buckets the program goes on with other equations, for the code reads a size"
    return _culprit(eqn, why)


def _culprit(eqn: Any, difference: str) -> Culprit:
    def types(variables: Any) -> str:
        return ", ".join(_compat.describe_aval(var.aval) for var in variables)

    shapes = f"{types(eqn.invars)} -> {types(eqn.outvars)}"
    return Culprit(eqn.primitive.name, _compat.eqn_line(eqn), shapes, difference)


def refuse(what: str, culprit: Culprit | None, *, plan: Plan, poison: str | None) -> Never:
    """Raise the error for a function whose own masks do not hold.

    Args:
        what: What differs.
        culprit: The first equation that lets padding in; None: none does by itself.
        plan: The plan of the call.
        poison: The values that filled its padding; None: the padding that `padding=` names.

    Raises:
        ValidationError: Always.
    """
    held = zip(plan.fillings, plan.base.is_ragged, strict=True)
    padding = ", ".join(str(filling) for filling, is_ragged in held if is_ragged)
    got = "no single equation lets padding in"
    if culprit is not None:
        got = f"{culprit.primitive}: {culprit.shapes}; {culprit.difference}"
    raise ValidationError(
        f"the masks of the function itself do not hold: padding changes {what}.",
        primitive=None if culprit is None else culprit.primitive,
        sizes=dict(plan.sizes),
        poison=poison,
        where=None if culprit is None else culprit.where,
        got=got,
        why=f"masking=False puts no mask in, and padding holds {padding}",
        fix="mask it in the function, choose another padding=, or masking=True, which finds all",
    )
