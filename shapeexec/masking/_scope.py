"""The equations around one: who makes a value, and who reads it."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shapeexec import _compat
from shapeexec.masking._values import Value


class Scope:
    """The equations around one, for a rule that has to know who reads its result.

    Args:
        values: Those of the variables so far.
        eqns: All equations that matter.
        results: The variables that leave the jaxpr.
    """

    def __init__(self, values: Mapping[Any, Value], eqns: Sequence[Any], results: Any) -> None:
        self._values, self._eqns, self._results = values, eqns, results

    def value(self, atom: Any) -> Value | None:
        """The value of a variable, if it has one already."""
        return None if _compat.is_literal(atom) else self._values.get(atom)

    def maker(self, var: Any) -> Any | None:
        """The equation that makes a variable; None: it is an input."""
        return self._makers.get(var)

    def only_reader(self, var: Any) -> Any | None:
        """The equation that reads a variable, if it is one alone and the variable stays inside."""
        readers = self._readers.get(var, [])
        return readers[0] if len(readers) == 1 and var not in self._results else None

    def origin(self, var: Any, number: int, value: Any) -> int:
        """The number of what is best filled so that `var`, of this number, is filled: see below.

        A zero goes through a product with a constant. In front of it, it leaves the product free to
        join what reads it.
        """
        while value == 0 and (maker := self.maker(var)) is not None:
            scaled = self._scaled(maker)
            if scaled is None or self.only_reader(scaled) is not maker:
                break
            var, number = scaled, self._values[scaled].number
        return number

    def _scaled(self, eqn: Any) -> Any | None:
        """What an equation multiplies by a finite constant, or divides by one that is not 0."""
        name = eqn.primitive.name
        if name not in ("mul", "div"):
            return None
        orders = (eqn.invars, eqn.invars[::-1]) if name == "mul" else (eqn.invars,)
        for operand, factor in orders:
            constant = self._constant(factor)
            is_kept = constant is not None and (name == "mul" or constant != 0)
            same_rank = len(operand.aval.shape) == len(eqn.outvars[0].aval.shape)
            if is_kept and same_rank and not _compat.is_literal(operand):
                return operand
        return None

    def _constant(self, atom: Any) -> Any | None:
        """A finite number that a scalar is known to be."""
        if _compat.is_literal(atom):
            return atom.val if np.ndim(atom.val) == 0 and np.isfinite(atom.val) else None
        held = self.value(atom)
        whole = None if held is None else held.known.whole
        return whole.value if whole is not None and whole.finite else None

    @functools.cached_property
    def _makers(self) -> dict[Any, Any]:
        return {var: eqn for eqn in self._eqns for var in eqn.outvars}

    @functools.cached_property
    def _readers(self) -> dict[Any, list[Any]]:
        readers: dict[Any, list[Any]] = {}
        for eqn in self._eqns:
            for atom in eqn.invars:
                if not _compat.is_literal(atom):
                    readers.setdefault(atom, []).append(eqn)
        return readers
