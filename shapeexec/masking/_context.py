"""What a rule sees of its equation: operands and results at capacity, and how to fill padding.

Rules decide what to fill; the interpreter runs them. No primitive is named here.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

from jax import Array

from shapeexec import _compat
from shapeexec._errors import ConfigError, UnsupportedPrimitiveError, made_exact, named
from shapeexec.masking._extents import Extents
from shapeexec.masking._fill import Length
from shapeexec.masking._knowledge import Known, Padding, constant, nothing_known_of
from shapeexec.masking._scope import Scope
from shapeexec.masking._typed import TypedResults
from shapeexec.masking._values import FillRequest, MaskNote, Report, Value, along

Unless = Literal["nan", "finite"] | None
"""The padding that a reader accepts. None: only the fill value is accepted. `nan`: also NaN, in
rows whose valid elements are all NaN. `finite`: any finite number."""


@dataclasses.dataclass(frozen=True)
class Shaped:
    """The axes of one operand or result.

    Attributes:
        aval: Its abstract value, with symbolic dims.
        extents: Capacities and valid lengths of dims.
    """

    aval: Any
    extents: Extents = dataclasses.field(repr=False)

    @property
    def dims(self) -> tuple[Any, ...]:
        """Per axis its dim, an int or symbolic."""
        return tuple(self.aval.shape)

    @property
    def capacities(self) -> tuple[int, ...]:
        """Per axis its capacity."""
        return self.extents.capacities(self.dims)

    @property
    def lengths(self) -> tuple[Length, ...]:
        """Per axis its valid length: int if static, else i32[]."""
        return self.extents.lengths(self.dims)


@dataclasses.dataclass(frozen=True)
class Operand(Shaped):
    """One operand of an equation.

    Attributes:
        value: Its array, and the facts about its padding.
    """

    value: Value

    @property
    def array(self) -> Any:
        """The array, at capacity."""
        return self.value.array

    @property
    def known(self) -> Known:
        """The facts about its padding."""
        return self.value.known

    @property
    def number(self) -> int:
        """The number that identifies the value."""
        return self.value.number

    def padded(self, axes: Sequence[int] | None = None) -> tuple[int, ...]:
        """The axes among `axes` (None: among all) that may have padding."""
        among = range(len(self.dims)) if axes is None else axes
        shape = self.array.shape
        return tuple(a for a in among if not isinstance(self.dims[a], int) and shape[a])


@dataclasses.dataclass(frozen=True)
class Result(Shaped):
    """One result of an equation.

    Attributes:
        number: The number that its value will have.
        is_used: Whether it is read.
        requested: The fill that all readers request; None: they request none. The interpreter fills
            after the rule has run, unless the rule returns a `Value` that is known to be filled.
    """

    number: int
    is_used: bool
    requested: FillRequest | None
    _report: Report = dataclasses.field(repr=False)

    def note_filled(self, axes: Sequence[int]) -> None:
        """Report that it is filled as requested, along `axes`."""
        assert self.requested is not None
        note = self.requested.noted_at_source(self.aval, axes)
        self._report.note_at_source(self.number, note)


class RuleContext:
    """One equation at the capacities of one graph.

    Attributes:
        eqn: The JAX equation.
        extents: `length(dim)` and `capacity(dim)` of any dim.
        results: Per result its dims, capacities and lengths, and whether it is read.
        scope: The other equations of the same jaxpr.
    """

    def __init__(
        self,
        eqn: Any,
        extents: Extents,
        *,
        values: Sequence[Value],
        results: Sequence[Result],
        scope: Scope,
        report: Report,
        run: Callable[[Any, Extents, Sequence[Value]], list[Value]],
        typed: TypedResults | None = None,
    ) -> None:
        self.eqn, self.extents, self.scope = eqn, extents, scope
        self.results = tuple(results)
        self._operands = [
            Operand(atom.aval, extents, value)
            for atom, value in zip(eqn.invars, values, strict=True)
        ]
        self._report, self._run, self._typed = report, run, typed

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Per operand its array, dims, capacities and lengths, and the facts about its padding."""
        return tuple(self._operands)

    @property
    def primitive(self) -> str:
        """The primitive's name."""
        return self.eqn.primitive.name

    @property
    def params(self) -> dict[str, Any]:
        """The equation's parameters, with symbolic dims as they were traced."""
        return self.eqn.params

    def bind(self, *operands: Any, **params: Any) -> Any:
        """Apply the equation's primitive itself.

        Args:
            *operands: Arrays at capacity.
            **params: The parameters, with capacities for dims.

        Returns:
            The primitive's result: an array, or a list of arrays.
        """
        primitive = self.eqn.primitive
        if self._typed is None:
            return primitive.bind(*operands, **params)
        made = self._typed.bind(primitive, operands, params=params)
        return made if primitive.multiple_results else made[0]

    def fill(
        self,
        operand: int,
        value: Any,
        *,
        axes: Sequence[int] | None = None,
        unless: Unless = None,
    ) -> Array:
        """Overwrite an operand's padding, unless it is known to need no mask.

        The filled array replaces the operand for all later readers, so that they need no mask of
        their own.

        Args:
            operand: The operand's number.
            value: A scalar of the operand's dtype.
            axes: The axes to overwrite along; None: all.
            unless: Padding that may stay: `"nan"`, NaN where all valid elements of its row are
                NaN, for a result that is NaN then anyway; `"finite"`, any finite number.

        Returns:
            The operand, filled; at capacity, as before.

        Raises:
            ConfigError: The operand has no such axis.
        """
        held = self._operands[operand]
        self._check_axes(held, axes or ())
        axes = held.padded(axes)
        open_axes = tuple(a for a in axes if not _is_fine(held.known.axes[a], value, unless=unless))
        if not open_axes:
            if axes:
                why = "finite" if unless == "finite" else value
                note = self._noted(along(held.aval, axes), f"none: padding is {why}", masked=False)
                self._report.note_spared(held.number, note)
            return held.array
        if unless == "finite":  # fill along all of them, with one value
            return self.fill(operand, value, axes=axes)
        return self._overwrite(operand, value, axes=open_axes)

    def _check_axes(self, held: Operand, axes: Sequence[int]) -> None:
        rank = len(held.dims)
        if all(0 <= axis < rank for axis in axes):
            return
        meant = tuple(axis % rank for axis in axes if -rank <= axis < rank)
        raise ConfigError(
            f"the rule of `{self.primitive}` fills axes={tuple(axes)} of an array of rank {rank}.",
            option="axes",
            where=self.scope.line(self.eqn),
            got=_compat.describe_aval(held.aval),
            fix=f"axes={meant}: axes count from 0",
        )

    def _overwrite(self, operand: int, value: Any, *, axes: tuple[int, ...]) -> Array:
        """Fill an operand, report the mask, and request the fill where the operand is computed."""
        held = self._operands[operand]
        facts = dict.fromkeys(str(held.known.axes[axis]) for axis in axes)
        note = self.note(
            along(held.aval, axes),
            f"filled with {value}",
            masked=True,
            why=f"padding is {' and '.join(facts)}",
        )
        number = self.scope.origin(self.eqn.invars[operand], held.number, value=value)
        self._report.request(number, FillRequest(value, frozenset(axes), note))
        array = held.array
        if self._typed is None:
            array = self.extents.filled(array, held.dims, value=value, axes=axes, note=note)
        known = held.known.filled(axes, constant(value))
        filled = Value(array, known, held.number)
        self._operands[operand] = dataclasses.replace(held, value=filled)
        return array

    def interpret(self, closed_jaxpr: Any, *operands: Any) -> list[Value]:
        """Run a nested jaxpr, such as a loop's body, at capacity.

        Args:
            closed_jaxpr: The jaxpr.
            *operands: Arrays, or Values. An operand of this equation, as `operands[i].value`, may
                be filled where it is computed, if the nested jaxpr requests that.

        Returns:
            A `Value` per result: its `array`, and the facts about its padding as `known`.
        """
        closed = _compat.closed(closed_jaxpr)
        values = [
            x if isinstance(x, Value) else Value(x, nothing_known_of(aval))
            for x, aval in zip(operands, closed.in_avals, strict=True)
        ]
        return self._run(closed, self.extents.fork(), values)

    def note(self, what: str, action: str, *, masked: bool, why: str = "") -> MaskNote:
        """Report a mask that is added or spared; `fill` reports its own.

        Args:
            what: The array and its axes, `f32[b,s] along s`.
            action: See `MaskNote`.
            masked: See `MaskNote`.
            why: See `MaskNote`.
        """
        note = self._noted(what, action, masked=masked, why=why)
        self._report.note(note)
        return note

    def _noted(self, what: str, action: str, *, masked: bool, why: str = "") -> MaskNote:
        at = (*self.scope.outer, self.eqn)
        return MaskNote(
            self.primitive, self.scope.line(self.eqn), what, action, masked=masked, why=why, at=at
        )

    def unsupported_error(
        self,
        reason: str,
        dims: Sequence[Any] | None = None,
        *,
        fix: str | None = None,
        or_exact: bool = True,
    ) -> UnsupportedPrimitiveError:
        """Make the error to raise where the equation cannot be made exact under padding.

        Args:
            reason: The `Why` of its message.
            dims: The dims whose padding is the cause; None: all dims of operands and results.
            fix: A fix that keeps the symbols padded; None: none is known.
            or_exact: Whether exact symbols fix it, too. They do not where JAX itself fails at every
                size.

        Returns:
            The error; the rule raises it.
        """
        if dims is None:
            dims = [dim for each in (*self.operands, *self.results) for dim in each.dims]
        symbols = self.extents.symbols(dims)
        padded = named(symbols) or "the sizes"
        ways = [] if fix is None else [fix]
        if or_exact or not ways:
            ways.append(made_exact(symbols))
        variables = self.eqn.invars or self.eqn.outvars
        return UnsupportedPrimitiveError(
            f"no pad-safe rule for `{self.primitive}` over padded {padded}.",
            primitive=self.primitive,
            symbols=symbols,
            where=self.scope.line(self.eqn),
            got=", ".join(_compat.describe_aval(var.aval) for var in variables),
            why=reason,
            fix="; or ".join(ways),
        )


def _is_fine(padding: Padding, value: Any, *, unless: Unless) -> bool:
    """Whether padding needs no fill with `value`."""
    if unless == "finite":
        return padding.finite
    return padding.is_constant(value, unless=unless)
