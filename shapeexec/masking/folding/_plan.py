"""Plans which equations take over a sum over examples, from a jaxpr's results backward.

A rule per primitive says how; the plan is run in `_run`.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat


@dataclasses.dataclass(frozen=True, eq=False)
class Fold:
    """How to compute the sum of a variable over its example axis.

    Attributes:
        variable: The variable.
        emit: `emit(scope, mask)`: the sum over the examples that the mask, bool[examples],
            selects, without the axis, in the `sum_dtype` of the variable's dtype.
        reads: The variables that `emit` reads unsummed.
        parts: The sums that it reads.
        pays: Whether it spares an array, compared with a sum of the variable itself.
        is_source: Whether it replaces the equation that computes the variable, so that it spares
            nothing if that equation runs anyway.
        loop: The loop that computes the sum, and the number of its result.
    """

    variable: Any
    emit: Callable[[Any, Array], Array]
    reads: tuple[Any, ...] = ()
    parts: tuple["Fold", ...] = ()
    pays: bool = False
    is_source: bool = False
    loop: "tuple[Loop, int] | None" = None


Rule = Callable[["Folder", Any, int, int], Fold | None]
"""`rule(folder, eqn, number, axis)`: the sum of an equation's result; None: no better one."""

FOLDS: dict[str, Rule] = {}


def folds(*primitives: str) -> Callable[[Rule], Rule]:
    """Make the decorated function the rule for sums of these primitives' results."""

    def decorate(rule: Rule) -> Rule:
        for primitive in primitives:
            assert primitive not in FOLDS, primitive
            FOLDS[primitive] = rule
        return rule

    return decorate


@dataclasses.dataclass(frozen=True)
class Needs:
    """The part of a jaxpr that must be run.

    Attributes:
        variables: All variables that are read unsummed.
        eqns: The equations that compute them, in their order.
        loops: By id of its equation each loop that sums inside, and which of its results.
    """

    variables: frozenset[Any]
    eqns: tuple[Any, ...]
    loops: dict[int, tuple["Loop", frozenset[int]]]


class Loop:
    """A `scan` that sums results over examples in each step, where it can.

    Args:
        eqn: The equation.
        body: Plans sums in its body.

    Attributes:
        consts: How many constants it takes, which come first.
        carries: How many carries it takes, which come next.
        sums: By number of the result the sum of each step: of the addend to a carry, or of the
            slice that is stacked.
        starts: By number of a summed carry the sum of its initial value.
    """

    def __init__(self, eqn: Any, body: "Folder") -> None:
        self.eqn, self.body = eqn, body
        self.sums: dict[int, Fold] = {}
        self.starts: dict[int, Fold] = {}
        self.consts, self.carries = _compat.scan_counts(eqn.params, len(eqn.invars))

    def carried(self, number: int) -> Any:
        """The variable of the body that holds a carry at the start of a step."""
        return self.body.jaxpr.invars[self.consts + number]

    def needs(self, wanted: Iterable[int], summed: Iterable[int]) -> tuple[frozenset[int], Needs]:
        """Which results must be computed unsummed, with all carries that the body then reads.

        Args:
            wanted: The results, by number, that are read unsummed.
            summed: Those that are read as sums.

        Returns:
            The results, and the part of the body that must be run.
        """
        results, folded = set(wanted), [self.sums[number] for number in summed]
        while True:
            needs = self.body.needs([self.body.jaxpr.outvars[i] for i in results], folded)
            read = {i for i in range(self.carries) if self.carried(i) in needs.variables}
            if read <= results:
                return frozenset(results), needs
            results |= read

    def reads(self, wanted: Iterable[int], summed: Iterable[int]) -> set[Any]:
        """The variables outside that it reads unsummed."""
        results, needs = self.needs(wanted, summed)
        first_x = self.consts + self.carries
        read = [
            atom
            for i, atom in enumerate(self.eqn.invars)
            if (self.body.jaxpr.invars[i] in needs.variables and not self.consts <= i < first_x)
            or i - self.consts in results & frozenset(range(self.carries))
        ]
        return {atom for atom in read if not _compat.is_literal(atom)}


class Folder:
    """Plans the sums of a jaxpr's variables.

    Args:
        jaxpr: An open jaxpr without calls.
        examples: How many examples there are.
        inline: Inlines the calls in the body of a loop.
    """

    def __init__(self, jaxpr: Any, examples: int, *, inline: Callable[[Any], Any]) -> None:
        self.jaxpr, self.examples, self._inline = jaxpr, examples, inline
        self._made_by = {
            var: (number, index)
            for number, eqn in enumerate(jaxpr.eqns)
            for index, var in enumerate(eqn.outvars)
        }
        self._folds: dict[tuple[Any, int], Fold] = {}
        self._loops: dict[int, Loop] = {}
        self._kept: set[Any] = set()

    def plan(self, variables: Sequence[Any]) -> list[Fold]:
        """Plan the sums of variables over their first axis."""
        while True:
            self._restart()
            planned = [self.fold(variable, 0) for variable in variables]
            if not self._keep_needed_anyway(planned, self.needs([], planned)):
                return planned

    def fold(self, variable: Any, axis: int) -> Fold:
        """The best known way to sum a variable over its example axis."""
        if (variable, axis) not in self._folds:
            self._folds[variable, axis] = self._fold(variable, axis)
        return self._folds[variable, axis]

    def _fold(self, variable: Any, axis: int) -> Fold:
        if self.is_zero(variable):
            shape, dtype = without(variable.aval.shape, axis), sum_dtype(variable.aval.dtype)
            return Fold(variable, lambda _scope, _mask: lax.full(shape, 0, dtype))
        if variable in self._made_by and variable not in self._kept:
            number, index = self._made_by[variable]
            eqn = self.jaxpr.eqns[number]
            rule = FOLDS.get(eqn.primitive.name)
            found = None if rule is None else rule(self, eqn, index, axis)
            if found is not None and (found.pays or not found.parts):
                return found
        return _sum_as_is(variable, axis)

    # For rules

    def eqn_of(self, atom: Any) -> Any:
        """The equation that computes a variable; None for an argument, a constant or a literal."""
        if _compat.is_literal(atom) or atom not in self._made_by:
            return None
        return self.jaxpr.eqns[self._made_by[atom][0]]

    def loop(self, eqn: Any) -> Loop:
        """The `Loop` of a `scan` equation."""
        number = self._made_by[eqn.outvars[0]][0]
        if number not in self._loops:
            self._loops[number] = Loop(eqn, self.inner(eqn.params["jaxpr"]))
        return self._loops[number]

    def inner(self, closed: Any) -> "Folder":
        """A `Folder` of the body of a loop or a branch, a closed jaxpr."""
        return Folder(self._inline(closed).jaxpr, self.examples, inline=self._inline)

    def is_zero(self, atom: Any) -> bool:
        """Whether a variable is known to be zero everywhere."""
        while not _compat.is_literal(atom):
            eqn = self.eqn_of(atom)
            if eqn is None or eqn.primitive.name not in (
                "broadcast_in_dim",
                "convert_element_type",
            ):
                return False
            atom = eqn.invars[0]
        is_number = not _compat.is_extended(atom.aval.dtype)
        return is_number and np.ndim(atom.val) == 0 and not np.any(atom.val)

    def per_example(self, atom: Any, axis: int) -> Any:
        """The variable with one element per example that `atom` repeats along other axes; or None.

        Args:
            atom: A variable or literal.
            axis: Its example axis.
        """
        while not _compat.is_literal(atom) and atom.aval.size != self.examples:
            match self._repeated(atom, axis):
                case None | (_, None):
                    return None
                case atom, axis:
                    pass
        return None if _compat.is_literal(atom) else atom

    def is_shared(self, atom: Any, axis: int) -> bool:
        """Whether all examples, along `axis`, are known to have the same values."""
        while atom.aval.shape and atom.aval.shape[axis] > 1:
            match self._repeated(atom, axis):
                case None:
                    return False
                case _, None:
                    return True
                case atom, axis:
                    pass
        return True

    def _repeated(self, atom: Any, axis: int) -> tuple[Any, int | None] | None:
        """The operand of a broadcast, and its axis that becomes `axis`; None: no broadcast.

        The axis is None where the broadcast adds it.
        """
        eqn = self.eqn_of(atom)
        if eqn is None or eqn.primitive.name != "broadcast_in_dim":
            return None
        dims = eqn.params["broadcast_dimensions"]
        return eqn.invars[0], dims.index(axis) if axis in dims else None

    # The part to run

    def needs(self, variables: Iterable[Any], planned: Sequence[Fold]) -> Needs:
        """The part that must be run for these variables and these sums."""
        wanted = {var for var in variables if not _compat.is_literal(var)}
        loops: dict[int, tuple[Loop, frozenset[int]]] = {}
        for fold in reachable(planned):
            wanted |= {var for var in fold.reads if not _compat.is_literal(var)}
            if fold.loop is not None:
                loop, result = fold.loop
                _, results = loops.get(id(loop.eqn), (loop, frozenset()))
                loops[id(loop.eqn)] = (loop, results | {result})
        eqns: list[Any] = []
        for eqn in reversed(self.jaxpr.eqns):
            results = [i for i, var in enumerate(eqn.outvars) if var in wanted]
            if id(eqn) in loops:
                loop, summed = loops[id(eqn)]
                wanted |= loop.reads(results, summed)
            elif results or eqn.effects:
                wanted |= {var for var in eqn.invars if not _compat.is_literal(var)}
            else:
                continue
            eqns.append(eqn)
        return Needs(frozenset(wanted), tuple(eqns[::-1]), loops)

    def _keep_needed_anyway(self, planned: Sequence[Fold], needs: Needs) -> bool:
        """Let sums read variables that other readers need anyway; whether there are new ones."""
        new = {fold.variable for fold in reachable(planned) if fold.is_source} & needs.variables
        is_new_inside = False
        for loop, summed in needs.loops.values():
            wanted = [i for i, var in enumerate(loop.eqn.outvars) if var in needs.variables]
            results, inner = loop.needs(wanted, summed)
            new |= {loop.eqn.outvars[i] for i in results & summed if i < loop.carries}
            folded = [loop.sums[number] for number in summed]
            is_new_inside |= loop.body._keep_needed_anyway(folded, inner)
        self._kept |= new
        return bool(new) or is_new_inside

    def _restart(self) -> None:
        self._folds.clear()
        for loop in self._loops.values():
            loop.sums.clear()
            loop.starts.clear()
            loop.body._restart()


def reachable(planned: Sequence[Fold]) -> Iterator[Fold]:
    """These sums and all their parts, each once."""
    pending = [*planned]
    seen: set[Fold] = set()
    while pending:
        fold = pending.pop()
        if fold not in seen:
            seen.add(fold)
            pending += fold.parts
            yield fold


def _sum_as_is(variable: Any, axis: int) -> Fold:
    def emit(scope: Any, mask: Array) -> Array:
        x = scope.masked(variable, axis, mask=mask)
        return _compat.reduce_sum(lax.convert_element_type(x, sum_dtype(x.dtype)), (axis,))

    return Fold(variable, emit, reads=(variable,))


_WIDE = 32  # bits


def sum_dtype(dtype: Any) -> Any:
    """The dtype that a sum is accumulated in: at least 32 bits for floats."""
    is_float = jnp.issubdtype(dtype, np.floating)
    return np.dtype(np.float32) if is_float and _compat.finfo(dtype).bits < _WIDE else dtype


def without(items: Sequence[Any], axis: int) -> tuple[Any, ...]:
    """All items but one."""
    return (*items[:axis], *items[axis + 1 :])
