"""Sums of a branch's result, where all examples take the same branch.

How they join the plan is in `_plan`.
"""

import functools
from collections.abc import Sequence
from typing import Any

from jax import Array

from shapeexec import _compat
from shapeexec.masking.folding._plan import Fold, Folder, folds


@folds("cond")
def branched(folder: Folder, eqn: Any, number: int, axis: int) -> Fold | None:
    """Each branch computes the sum of its result; an operand that it returns is summed outside."""
    index, *operands = eqn.invars
    if index.aval.shape or len(eqn.outvars) != 1 or eqn.effects:
        return None
    bodies = [folder.inner(branch) for branch in eqn.params["branches"]]
    if any(_compat.is_literal(body.jaxpr.outvars[number]) for body in bodies):
        return None
    passed, folds_inside = _folds(folder, bodies, operands=operands, number=number, axis=axis)
    needs = {i: bodies[i].needs([], [fold]) for i, fold in folds_inside.items()}
    inputs = [
        (body.jaxpr.invars, needs[i].variables) for i, body in enumerate(bodies) if i in needs
    ]
    read = [k for k in range(len(operands)) if any(names[k] in wanted for names, wanted in inputs)]

    def emit(scope: Any, mask: Array) -> Array:
        sums = {i: scope.sum(fold, mask) for i, fold in passed.items()}

        def run(i: int, *values: Array) -> Array:
            if i in sums:
                return sums[i]
            names = [bodies[i].jaxpr.invars[k] for k in read]
            inner = scope.inside(dict(zip(names, values, strict=True)))
            inner.run(needs[i], mask)
            return inner.sum(folds_inside[i], mask)

        values = [scope.read(operands[k]) for k in read]
        branches = [functools.partial(run, i) for i in range(len(bodies))]
        return _compat.switch(scope.read(index), branches, *values)

    return Fold(
        eqn.outvars[number],
        emit,
        reads=(index, *(operands[k] for k in read)),
        parts=tuple(passed.values()),
        pays=any(fold.pays for fold in (*passed.values(), *folds_inside.values())),
        is_source=True,
    )


def _folds(
    folder: Folder, bodies: Sequence[Folder], *, operands: Sequence[Any], number: int, axis: int
) -> tuple[dict[int, Fold], dict[int, Fold]]:
    """The sums of the branches' results: those that return an operand, and the others."""
    passed: dict[int, Fold] = {}
    inside: dict[int, Fold] = {}
    for i, body in enumerate(bodies):
        result = body.jaxpr.outvars[number]
        if result in body.jaxpr.invars:
            passed[i] = folder.fold(operands[body.jaxpr.invars.index(result)], axis)
        else:
            inside[i] = body.fold(result, axis)
    return passed, inside
