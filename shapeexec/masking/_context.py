"""What a rule is told of the equation that it stands for."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import Array

from shapeexec import _compat
from shapeexec._errors import UnsupportedPrimitiveError
from shapeexec.masking._extents import Extents
from shapeexec.masking._fill import Length, fill
from shapeexec.masking._knowledge import Known, Unless, constant, nothing_known


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
class Wish:
    """A fill that all readers of a value have asked for.

    Attributes:
        value: What the padding is to be.
        axes: Along which axes.
        note: How the first reader told of it.
    """

    value: Any
    axes: frozenset[int]
    note: MaskNote

    def told_at_source(self, aval: Any, axes: Sequence[int]) -> MaskNote:
        """What to report where the value, an array like `aval`, is made and filled."""
        action = f"{self.note.action} where it is made"
        return dataclasses.replace(self.note, what=_along(aval, axes), action=action)


class Fills:
    """The fills that one pass over a graph asks for, so that the next can fill at the source.

    A value that is filled where it is made is filled once, in the loop that makes it; filled where
    it is read, it costs a pass over memory for each reader that nobody came before.
    """

    def __init__(self) -> None:
        self._asked: dict[int, Wish | None] = {}
        self._unread: set[int] = set()
        self._bodies: dict[tuple[int, int], Fills] = {}

    def ask(self, number: int, wish: Wish) -> None:
        """Note what a value is to be filled with; readers that disagree get nothing."""
        before = self._asked.get(number, wish)
        agreed = before is not None and bool(before.value == wish.value)
        self._asked[number] = (
            dataclasses.replace(before, axes=before.axes | wish.axes)
            if before is not None and agreed
            else None
        )

    def at_source(self, number: int) -> Wish | None:
        """What all readers want of a value."""
        return self._asked.get(number)

    def at_source_now(self, number: int) -> None:
        """Note that this pass has filled a value where it is made."""
        self._unread.add(number)

    def is_first_reader(self, number: int) -> bool:
        """Whether a value was filled where it is made, and nobody has asked this of it before."""
        is_first = number in self._unread
        self._unread.discard(number)
        return is_first

    def body(self, key: tuple[int, int]) -> "Fills":
        """Those of the body of a loop or branch, by the equation's number and the body's."""
        return self._bodies.get(key) or Fills()

    def keep_body(self, key: tuple[int, int], fills: "Fills") -> None:
        """Keep what the body of a loop or branch asks for."""
        self._bodies[key] = fills


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
        unless: Unless = "nan" if or_nan else None
        open_axes = tuple(
            a for a in axes if not held.known.axes[a].is_constant(value, unless=unless)
        )
        aval = self.eqn.invars[operand].aval
        if not open_axes:
            self._note_spared(held, aval, axes, f"padding is {value}")
            return held.array
        note = self.note(aval, open_axes, f"filled with {value}", masked=True)
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
        avals = [var.aval for var in getattr(closed_jaxpr, "jaxpr", closed_jaxpr).invars]
        values = [
            Value(array, nothing_known(len(aval.shape), aval.dtype))
            for array, aval in zip(operands, avals, strict=True)
        ]
        return [value.array for value in self.interpret_values(closed_jaxpr, values)]

    def interpret_values(self, closed_jaxpr: Any, operands: Sequence[Value]) -> list[Value]:
        """Run a nested jaxpr over arrays at capacity, with what is known of them.

        Operands of this equation itself, as they stand in `values`, may be filled for the nested
        jaxpr where they are made.
        """
        jaxpr = closed_jaxpr if hasattr(closed_jaxpr, "consts") else _closed(closed_jaxpr)
        return self.run(jaxpr, self.extents.fork(), operands)

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

    def wish(self, result: int) -> Wish | None:
        """How a result is to be filled where it is made: by the rule, or else behind it."""
        return self.planned.at_source(self.numbers[result])

    def note_filled(self, result: int, axes: Sequence[int]) -> None:
        """Report that a result is filled where it is made, as its `wish` says."""
        wish = self.wish(result)
        assert wish is not None
        self.fills.at_source_now(self.numbers[result])
        self.notes.append(wish.told_at_source(self.eqn.outvars[result].aval, axes))

    def note(self, aval: Any, axes: Sequence[int], action: str, *, masked: bool) -> MaskNote:
        """Report a mask, or one that was spared, along `axes` of an array like `aval`."""
        return self.note_mask(_along(aval, axes), action, masked=masked)

    def note_mask(self, what: str, action: str, *, masked: bool) -> MaskNote:
        """Report a mask, or one that was spared, of any kind."""
        note = MaskNote(self.primitive, self.where, what, action, masked)
        self.notes.append(note)
        return note

    def _note_spared(self, held: Value, aval: Any, axes: Sequence[int], why: str) -> None:
        """Report a mask that is not needed, but not to whom the value was filled for."""
        if axes and not self.fills.is_first_reader(held.number):
            self.note(aval, axes, f"none: {why}", masked=False)


def _along(aval: Any, axes: Sequence[int]) -> str:
    return f"{_compat.describe_aval(aval)} along {', '.join(str(aval.shape[a]) for a in axes)}"


def _closed(jaxpr: Any) -> Any:
    return _compat.ClosedJaxpr(jaxpr, ())
