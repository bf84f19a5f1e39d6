"""Sums of a loop's results: taken in each step, so that no step's result is kept per example.

How the loop itself runs is in `_run`.
"""

from typing import Any

from jax import Array

from shapeexec.masking._facts import signs_of
from shapeexec.masking.folding._linear import signed_sum, summand
from shapeexec.masking.folding._plan import Fold, Folder, Loop, folds, without


@folds("scan")
def looped(folder: Folder, eqn: Any, number: int, axis: int) -> Fold | None:
    """A carry that only grows by addition is carried as a sum; stacked slices are summed per step.

    The new carry is the old one plus a term, or a choice by example between such, as in a loop of
    ragged length whose carry is frozen behind the example's end.
    """
    loop = folder.loop(eqn)
    if number < loop.carries:
        step = _added(loop, number, axis=axis)
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
"""A sign, a term, and the examples that add it: bool[examples] variables and their values."""


def _added(loop: Loop, number: int, *, axis: int) -> Fold | None:
    """The sum of the terms that each step adds to a carry; None: it computes something else."""
    body, variable = loop.body, loop.body.jaxpr.outvars[number]
    shape = variable.aval.shape
    found = _terms(loop, variable, carry=loop.carried(number), axis=axis)
    if not found:
        return None
    folded = [
        (sign, summand(body, atom, shape=shape, axis=axis), chosen) for sign, atom, chosen in found
    ]

    def emit(scope: Any, mask: Array) -> Array:
        sums: list[tuple[int, Array]] = []
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


def _terms(loop: Loop, atom: Any, *, carry: Any, axis: int) -> list[_Term] | None:
    """The terms whose sum with a carry is `atom`; None: `atom` is not such a sum."""
    if atom is carry:
        return []
    eqn = loop.body.eqn_of(atom)
    if eqn is None:
        return None
    signs = signs_of(eqn)
    if signs is not None:
        for place, own in enumerate(signs):
            found = _terms(loop, eqn.invars[place], carry=carry, axis=axis) if own == 1 else None
            if found is not None:
                rest = zip(without(signs, place), without(eqn.invars, place), strict=True)
                return [*found, *((sign, other, ()) for sign, other in rest)]
        return None
    if eqn.primitive.name == "select_n":
        which, *cases = eqn.invars
        chosen = loop.body.per_example(which, axis) if which.aval.shape else None
        found_by_case = [_terms(loop, case, carry=carry, axis=axis) for case in cases]
        if chosen is None or chosen.aval.dtype != bool or None in found_by_case:
            return None
        return [
            (sign, term, (*by, (chosen, bool(value))))
            for value, found in enumerate(found_by_case)
            for sign, term, by in found or ()
        ]
    return None
