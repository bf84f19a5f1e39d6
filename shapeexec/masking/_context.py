"""What a rule is told of the equation that it stands for."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jax import Array

from shapeexec import _compat
from shapeexec._errors import UnsupportedPrimitiveError, made_exact, named
from shapeexec.masking._extents import Extents
from shapeexec.masking._fill import Length, fill
from shapeexec.masking._knowledge import Unless, constant, nothing_known_of
from shapeexec.masking._scope import Scope
from shapeexec.masking._values import Fills, MaskNote, Value, Wish, along, values_of


@dataclasses.dataclass(frozen=True)
class RuleContext:
    """One equation at the capacities of one graph.

    Attributes:
        eqn: The JAX equation.
        extents: Capacities and valid lengths of dims.
        values: The operands and what is known of them; `fill` updates it.
        fills: Where fills are reported for the next pass, by number of value.
        notes: Where masks are reported.
        run: Interprets a nested jaxpr.
        planned: The fills that an earlier pass over the same jaxpr asked for.
        numbers: The numbers that the results will have.
        is_used: Per result whether anybody reads it.
        scope: The equations around this one in the same jaxpr.
        outer: The equations around this one, the innermost last.
    """

    eqn: Any
    extents: Extents
    values: list[Value]
    fills: Fills
    notes: list[MaskNote]
    run: Callable[[Any, Extents, Sequence[Value]], list[Value]]
    planned: Fills = dataclasses.field(default_factory=Fills)
    numbers: Sequence[int] = ()
    is_used: Sequence[bool] = ()
    scope: Scope = dataclasses.field(default_factory=lambda: Scope({}, (), ()))
    outer: tuple[Any, ...] = ()

    @property
    def where(self) -> str | None:
        """The user's line, `code  (file.py:12)`; None if unknown."""
        lines = map(_compat.eqn_line, (self.eqn, *reversed(self.outer)))
        return next((line for line in lines if line is not None), None)

    @property
    def primitive(self) -> str:
        """The primitive's name."""
        return self.eqn.primitive.name

    @property
    def params(self) -> dict[str, Any]:
        """The equation's parameters, with symbolic dims as they were traced."""
        return self.eqn.params

    @property
    def in_shapes(self) -> tuple[tuple[Any, ...], ...]:
        """Per operand its dims, int or symbolic."""
        return tuple(tuple(var.aval.shape) for var in self.eqn.invars)

    @property
    def out_shapes(self) -> tuple[tuple[Any, ...], ...]:
        """Per result its dims, int or symbolic."""
        return tuple(tuple(var.aval.shape) for var in self.eqn.outvars)

    @property
    def in_capacities(self) -> tuple[tuple[int, ...], ...]:
        """Per operand the shape of its array."""
        return tuple(self.extents.capacities(shape) for shape in self.in_shapes)

    @property
    def out_capacities(self) -> tuple[tuple[int, ...], ...]:
        """Per result the shape that its array will be cut or widened to."""
        return tuple(self.extents.capacities(shape) for shape in self.out_shapes)

    @property
    def in_lengths(self) -> tuple[tuple[Length, ...], ...]:
        """Per operand and axis its valid length: int if static, else i32[]."""
        return tuple(self.extents.lengths(shape) for shape in self.in_shapes)

    @property
    def out_lengths(self) -> tuple[tuple[Length, ...], ...]:
        """Per result and axis its valid length: int if static, else i32[]."""
        return tuple(self.extents.lengths(shape) for shape in self.out_shapes)

    def length(self, dim: Any) -> Length:
        """The value of a dim at the true sizes: int if static, else i32[]."""
        return self.extents.length(dim)

    def capacity(self, dim: Any) -> int:
        """The most that a dim can be in this graph."""
        return self.extents.capacity(dim)

    def bind(self, *operands: Any, **params: Any) -> Any:
        """Apply the equation's primitive itself."""
        return self.eqn.primitive.bind(*operands, **params)

    def padded(self, operand: int, axes: Sequence[int] | None = None) -> tuple[int, ...]:
        """Those of an operand's axes (all, if None) that may have padding."""
        shape, array = self.in_shapes[operand], self.values[operand].array
        among = range(len(shape)) if axes is None else axes
        return tuple(a for a in among if not isinstance(shape[a], int) and array.shape[a])

    def fill(
        self,
        operand: int,
        value: Any,
        axes: Sequence[int] | None = None,
        *,
        or_nan: bool = False,
    ) -> Array:
        """Overwrite an operand's padding, unless it is known to be `value` already.

        The filled array then stands for the operand in whatever reads it later, so that a second
        reader needs no second mask.

        Args:
            operand: The operand's number.
            value: A scalar of the operand's dtype.
            axes: The axes to overwrite along; None: all.
            or_nan: Whether padding may be NaN where all valid elements of its row are, because
                the result is NaN then anyway.
        """
        held, axes = self.values[operand], self.padded(operand, axes)
        unless: Unless = "nan" if or_nan else None
        open_axes = tuple(
            a for a in axes if not held.known.axes[a].is_constant(value, unless=unless)
        )
        aval = self.eqn.invars[operand].aval
        if not open_axes:
            self._note_spared(held, aval, axes, f"padding is {value}")
            return held.array
        known = dict.fromkeys(str(held.known.axes[axis]) for axis in open_axes)
        why = f"padding is {' and '.join(known)}"
        note = self.note(aval, open_axes, f"filled with {value}", masked=True, why=why)
        number = self.scope.origin(self.eqn.invars[operand], held.number, value)
        self.fills.ask(number, Wish(value, frozenset(open_axes), note))
        array = fill(held.array, self.extents.lengths(self.in_shapes[operand]), value, open_axes)
        known = held.known.filled(open_axes, constant(value))
        self.values[operand] = Value(array, known, held.number)
        return array

    def fill_unless_finite(
        self, operand: int, value: Any, axes: Sequence[int] | None = None
    ) -> Array:
        """Overwrite padding unless it is known to hold neither NaN nor infinity."""
        held = self.values[operand]
        axes = self.padded(operand, axes)
        if all(held.known.axes[axis].finite for axis in axes):
            self._note_spared(held, self.eqn.invars[operand].aval, axes, "padding is finite")
            return held.array
        return self.fill(operand, value, axes)

    def interpret(self, closed_jaxpr: Any, *operands: Any) -> list[Any]:
        """Run a nested jaxpr, such as a loop's body, over arrays at capacity."""
        avals = _compat.closed(closed_jaxpr).in_avals
        held = values_of(operands, map(nothing_known_of, avals))
        return [value.array for value in self.interpret_values(closed_jaxpr, held)]

    def interpret_values(self, closed_jaxpr: Any, operands: Sequence[Value]) -> list[Value]:
        """Run a nested jaxpr over arrays at capacity, with what is known of them.

        Operands of this equation itself, as they stand in `values`, may be filled for the nested
        jaxpr where they are made.
        """
        return self.run(_compat.closed(closed_jaxpr), self.extents.fork(), operands)

    def unsupported(
        self,
        reason: str,
        dims: Sequence[Any] | None = None,
        *,
        fix: str | None = None,
        or_exact: bool = True,
    ) -> UnsupportedPrimitiveError:
        """The error that says why this equation cannot be made exact.

        Args:
            reason: Why.
            dims: The dims that are the matter; None: all of the operands and results.
            fix: A way out that keeps the symbols padded; None: there is none.
            or_exact: Whether the symbols can be made exact as well. JAX may have no such equation
                at any size.
        """
        if dims is None:
            dims = [dim for shape in self.in_shapes + self.out_shapes for dim in shape]
        symbols = self.extents.symbols(dims)
        told = named(symbols) or "the sizes"
        ways = [] if fix is None else [fix]
        if or_exact or not ways:
            ways.append(made_exact(symbols))
        variables = self.eqn.invars or self.eqn.outvars
        return UnsupportedPrimitiveError(
            f"no pad-safe rule for `{self.primitive}` over padded {told}.",
            primitive=self.primitive,
            symbols=symbols,
            where=self.where,
            got=", ".join(_compat.describe_aval(var.aval) for var in variables),
            why=reason,
            fix="; or ".join(ways),
        )

    def wish(self, result: int) -> Wish | None:
        """How a result is to be filled where it is made: by the rule, or else behind it."""
        return self.planned.at_source(self.numbers[result])

    def note_filled(self, result: int, axes: Sequence[int]) -> None:
        """Report that a result is filled where it is made, as its `wish` says."""
        wish = self.wish(result)
        assert wish is not None
        self.fills.at_source_now(self.numbers[result])
        self.notes.append(wish.told_at_source(self.eqn.outvars[result].aval, axes))

    def note(
        self, aval: Any, axes: Sequence[int], action: str, *, masked: bool, why: str = ""
    ) -> MaskNote:
        """Report a mask, or one that was spared, along `axes` of an array like `aval`."""
        return self.note_mask(along(aval, axes), action, masked=masked, why=why)

    def note_mask(self, what: str, action: str, *, masked: bool, why: str = "") -> MaskNote:
        """Report a mask, or one that was spared, of any kind."""
        at = (*self.outer, self.eqn)
        note = MaskNote(self.primitive, self.where, what, action, masked, why, at)
        self.notes.append(note)
        return note

    def _note_spared(self, held: Value, aval: Any, axes: Sequence[int], why: str) -> None:
        """Report a mask that is not needed, but not to whom the value was filled for."""
        if axes and not self.fills.is_first_reader(held.number):
            self.note(aval, axes, f"none: {why}", masked=False)
