"""The equations of a jaxpr: which one computes a value, and which ones read it. Nothing is run."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shapeexec import _compat
from shapeexec.masking._facts import scaled_operands
from shapeexec.masking._values import Value


class Scope:
    """The equations of a jaxpr, for a rule that depends on who computes or reads a value.

    Args:
        values: The values of the variables so far; grows as the jaxpr is run.
        eqns: The equations that are run.
        results: The variables that leave the jaxpr.
        outer: The equations that enclose the jaxpr, the outermost first.
    """

    def __init__(
        self,
        values: Mapping[Any, Value],
        eqns: Sequence[Any] = (),
        *,
        results: Sequence[Any] = (),
        outer: Sequence[Any] = (),
    ) -> None:
        self.outer = tuple(outer)
        self._values, self._eqns, self._results = values, eqns, results

    def line(self, eqn: Any) -> str | None:
        """The user's line of one of the equations, `code  (file.py:12)`; None if unknown.

        For a jitted function JAX keeps the line with the call, not with the body.
        """
        lines = map(_compat.eqn_line, (eqn, *reversed(self.outer)))
        return next((line for line in lines if line is not None), None)

    def value(self, atom: Any) -> Value | None:
        """The value of a variable, if it is computed."""
        return None if _compat.is_literal(atom) else self._values.get(atom)

    def maker(self, var: Any) -> Any | None:
        """The equation that computes a variable; None: it is an input."""
        return self._makers.get(var)

    def only_reader(self, var: Any) -> Any | None:
        """The one equation that reads a variable; None: there are several, or it is a result."""
        readers = self._readers.get(var, [])
        return readers[0] if len(readers) == 1 and var not in self._results else None

    def origin(self, var: Any, number: int, *, value: Any) -> int:
        """Number of the value to fill instead of `var`: 0 passes through a constant factor.

        A fill in front of the product leaves the product free to fuse with what reads it.

        Args:
            var: A variable that is to be filled with `value`.
            number: The variable's own number.
            value: A scalar.
        """
        while value == 0 and (maker := self.maker(var)) is not None:
            scaled = self._scaled(maker)
            if scaled is None or self.only_reader(scaled) is not maker:
                break
            var, number = scaled, self._values[scaled].number
        return number

    def _scaled(self, eqn: Any) -> Any | None:
        """The operand that is multiplied by a finite constant, or divided by one that is not 0."""
        is_product = eqn.primitive.name == "mul"
        for operand, factor in scaled_operands(eqn):
            constant = self._constant(factor)
            is_kept = constant is not None and (is_product or constant != 0)
            same_rank = len(operand.aval.shape) == len(eqn.outvars[0].aval.shape)
            if is_kept and same_rank and not _compat.is_literal(operand):
                return operand
        return None

    def _constant(self, atom: Any) -> Any | None:
        """The finite number that a scalar is known to be; None: it is not known."""
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
