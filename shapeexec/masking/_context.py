"""What a rule is told of the equation that it stands for."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jax import Array

from shapeexec import _compat
from shapeexec._errors import UnsupportedPrimitiveError
from shapeexec.masking._extents import Extents
from shapeexec.masking._fill import Length, fill
from shapeexec.masking._knowledge import Known, constant, nothing_known


@dataclasses.dataclass(frozen=True)
class Value:
    """An array at capacity, and what is known of it.

    Attributes:
        array: The array.
        known: What is known of it.
        number: Tells values of one graph apart; filling a value does not change its number.
    """

    array: Any
    known: Known
    number: int = -1


class Fills:
    """The fills that one pass over a graph asks for, so that the next can fill at the source.

    A value that is filled where it is made is filled once, in the loop that makes it; filled where
    it is read, it costs a pass over memory for each reader that nobody came before.
    """

    def __init__(self) -> None:
        self._asked: dict[int, tuple[Any, frozenset[int]] | None] = {}
        self._unreported: set[int] = set()

    def ask(self, number: int, value: Any, axes: Sequence[int]) -> None:
        """Note that a value is filled with `value` along `axes`."""
        known = self._asked.get(number, (value, frozenset()))
        is_same = known is not None and bool(known[0] == value)
        self._asked[number] = (value, known[1] | frozenset(axes)) if known and is_same else None

    def at_source(self, number: int) -> tuple[Any, tuple[int, ...]] | None:
        """The value and axes to fill with, if all readers agree on the value."""
        found = self._asked.get(number)
        return None if found is None else (found[0], tuple(sorted(found[1])))

    def at_source_now(self, number: int) -> None:
        """Note that this pass has filled a value where it is made."""
        self._unreported.add(number)

    def is_first_reader(self, number: int) -> bool:
        """Whether a value was filled where it is made, and nobody has asked this of it before."""
        is_first = number in self._unreported
        self._unreported.discard(number)
        return is_first


@dataclasses.dataclass(frozen=True)
class MaskNote:
    """One mask, or one that was not needed.

    Attributes:
        primitive: The primitive that needed it.
        where: The user's line, `code  (file.py:12)`; None if unknown.
        what: The array and its padded axes, `f32[b,s] along s`.
        action: What was done, `filled with 0` or `none: padding is 0`.
        masked: Whether anything was added to the graph.
    """

    primitive: str
    where: str | None
    what: str
    action: str
    masked: bool


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
        outer: The equations around this one, the innermost last.
    """

    eqn: Any
    extents: Extents
    values: list[Value]
    fills: "Fills"
    notes: list[MaskNote]
    run: Callable[[Any, Extents, Sequence[Value]], list[Value]]
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
        shape = self.in_shapes[operand]
        among = range(len(shape)) if axes is None else axes
        return tuple(axis for axis in among if not isinstance(shape[axis], int))

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
        open_axes = tuple(
            a for a in axes if not held.known.axes[a].is_constant(value, or_nan=or_nan)
        )
        aval = self.eqn.invars[operand].aval
        if not open_axes:
            if axes and self.fills.is_first_reader(held.number):
                self.note(aval, axes, f"filled with {value} where it is made", masked=True)
            elif axes:
                self.note(aval, axes, f"none: padding is {value}", masked=False)
            return held.array
        self.note(aval, open_axes, f"filled with {value}", masked=True)
        self.fills.ask(held.number, value, open_axes)
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
            if axes:
                aval = self.eqn.invars[operand].aval
                self.note(aval, axes, "none: padding is finite", masked=False)
            return held.array
        return self.fill(operand, value, axes)

    def interpret(self, closed_jaxpr: Any, *operands: Any) -> list[Any]:
        """Run a nested jaxpr, such as a loop's body, over arrays at capacity."""
        jaxpr = closed_jaxpr if hasattr(closed_jaxpr, "consts") else _closed(closed_jaxpr)
        avals = [var.aval for var in jaxpr.jaxpr.invars]
        values = [
            Value(array, nothing_known(len(aval.shape), aval.dtype))
            for array, aval in zip(operands, avals, strict=True)
        ]
        return [value.array for value in self.run(jaxpr, self.extents.fork(), values)]

    def unsupported(
        self, reason: str, dims: Sequence[Any] | None = None, *, fix: str | None = None
    ) -> UnsupportedPrimitiveError:
        """The error that says why this equation cannot be made exact.

        Args:
            reason: Why.
            dims: The dims that are the matter; None: all of the operands and results.
            fix: The way out; None: to make the symbols exact.
        """
        if dims is None:
            dims = [dim for shape in self.in_shapes + self.out_shapes for dim in shape]
        symbols = self.extents.symbols(dims)
        told = " and ".join(f"`{symbol}`" for symbol in sorted(symbols)) or "the sizes"
        exact = f'leave {told} out of buckets= (exact sizes), or pass on_unsupported="exact"'
        variables = self.eqn.invars or self.eqn.outvars
        return UnsupportedPrimitiveError(
            f"no pad-safe rule for `{self.primitive}` over padded {told}.",
            primitive=self.primitive,
            symbols=symbols,
            where=self.where,
            got=", ".join(_compat.describe_aval(var.aval) for var in variables),
            why=reason,
            fix=fix or exact,
        )

    def note(self, aval: Any, axes: Sequence[int], action: str, *, masked: bool) -> None:
        """Report a mask, or one that was spared, along `axes` of an array like `aval`."""
        along = ", ".join(str(aval.shape[axis]) for axis in axes)
        what = f"{_compat.describe_aval(aval)} along {along}"
        self.notes.append(MaskNote(self.primitive, self.where, what, action, masked))


def _closed(jaxpr: Any) -> Any:
    return _compat.ClosedJaxpr(jaxpr, ())
