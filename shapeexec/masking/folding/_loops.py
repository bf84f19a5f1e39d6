"""Sums of what a loop gives: summed in each step, so that no step's result is kept per example."""

from typing import Any

from jax import Array

from shapeexec.masking._facts import signs_of
from shapeexec.masking.folding._linear import signed_sum, summand
from shapeexec.masking.folding._plan import Fold, Folder, Loop, folds, without


@folds("scan")
def looped(folder: Folder, eqn: Any, number: int, axis: int) -> Fold | None:
    """A carry to which each step adds is summed all along; what steps give is summed step by step.

    A step adds to a carry if it gives the carry itself plus something, or chooses by example
    between such, as a loop of ragged length does that stands still behind the example's end.
    """
    loop = folder.loop(eqn)
    if number < loop.carries:
        step = _added(loop, number, axis)
    elif axis == 0:
        return None
    else:
        step = loop.body.fold(loop.body.jaxpr.outvars[number], axis - 1)
        step = step if step.pays else None
    if step is None:
        return None
    loop.sums[number] = step
    parts: tuple[Fold, ...] = ()
    if number < loop.carries:
        loop.starts[number] = folder.fold(eqn.invars[loop.consts + number], axis)
        parts = (loop.starts[number],)
    return Fold(
        eqn.outvars[number],
        lambda scope, mask: scope.loop_sum(loop, number, mask=mask),
        parts=parts,
        pays=True,
        loop=(loop, number),
    )


_Term = tuple[int, Any, tuple[tuple[Any, bool], ...]]
"""A sign, what is added, and by which examples: variables of one bool each, and their values."""


def _added(loop: Loop, number: int, axis: int) -> Fold | None:
    """The sum of what each step adds to a carry; None if it does something else with it."""
    body, variable = loop.body, loop.body.jaxpr.outvars[number]
    shape = variable.aval.shape
    found = _terms(loop, variable, loop.carried(number), axis)
    if not found:
        return None
    folded = [(sign, summand(body, atom, shape, axis), chosen) for sign, atom, chosen in found]

    def emit(scope: Any, mask: Array) -> Array:
        sums = []
        for sign, fold, chosen in folded:
            own = mask
            for which, value in chosen:
                own = scope.narrowed(own, which, value=value)
            sums.append((sign, scope.sum(fold, own)))
        return signed_sum(sums)

    return Fold(
        variable,
        emit,
        reads=tuple(which for _, _, chosen in found for which, _ in chosen),
        parts=tuple(fold for _, fold, _ in folded),
    )


def _terms(loop: Loop, atom: Any, carry: Any, axis: int) -> list[_Term] | None:
    """What has been added to a carry to give `atom`; None if that is not all that was done."""
    if atom is carry:
        return []
    eqn = loop.body.eqn_of(atom)
    if eqn is None:
        return None
    signs = signs_of(eqn)
    if signs is not None:
        for place, own in enumerate(signs):
            found = _terms(loop, eqn.invars[place], carry, axis) if own == 1 else None
            if found is not None:
                rest = zip(without(signs, place), without(eqn.invars, place), strict=True)
                return [*found, *((sign, other, ()) for sign, other in rest)]
        return None
    if eqn.primitive.name == "select_n":
        which, *cases = eqn.invars
        chosen = loop.body.per_example(which, axis) if which.aval.shape else None
        found_by_case = [_terms(loop, case, carry, axis) for case in cases]
        if chosen is None or chosen.aval.dtype != bool or None in found_by_case:
            return None
        return [
            (sign, term, (*by, (chosen, bool(value))))
            for value, found in enumerate(found_by_case)
            for sign, term, by in found or ()
        ]
    return None
