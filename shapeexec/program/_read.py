"""Makes a `Program` of a trace, and of its graph in one call if there is one.

The masking gives the reasons for masks; `_text`, `_html` and `_json` format the program.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jax import export

from shapeexec import _compat
from shapeexec.masking._extents import Extents, is_ragged
from shapeexec.masking._registry import NESTED, RULES
from shapeexec.masking._values import MaskNote
from shapeexec.program._content import Body, Equation, Extent, Fact, Number, Variable
from shapeexec.program._program import Program
from shapeexec.shape import _dim
from shapeexec.shape._dim import Dim
from shapeexec.shape._host import HostOperand, HostValues
from shapeexec.shape._shape import Shape
from shapeexec.shape._trace import Trace

_LONGEST_PARAM = 120


@dataclasses.dataclass(frozen=True)
class Moment:
    """The graph of a trace in one call.

    Attributes:
        sizes: The true size of each symbol.
        buckets: The bucket of each symbol.
        ranges: The least and the greatest size that the graph serves, by symbol of the trace.
        operands: The host numbers that the graph takes.
        exact: The reason by symbol, for symbols that run exactly although they have a strategy.
        notes: The masks of the graph, and those that were not needed.
    """

    sizes: Mapping[str, int]
    buckets: Mapping[str, int]
    ranges: Mapping[str, tuple[int, int]]
    operands: Sequence[HostOperand]
    exact: Mapping[str, str]
    notes: Sequence[MaskNote]


def read(trace: Trace, name: str, *, arguments: Sequence[str], moment: Moment | None) -> Program:
    """Make the program of a trace.

    Args:
        trace: The trace.
        name: The function's name.
        arguments: The names of the flat arguments.
        moment: Its graph in a call; None: there is no call.
    """
    reader = _Reader(trace, moment, arguments=arguments)
    jaxpr = trace.jaxpr.jaxpr
    inputs = [reader.named(var, name) for var, name in zip(jaxpr.invars, arguments, strict=True)]
    reader.close_over(jaxpr)
    equations = reader.equations(jaxpr, ())
    results = map(reader.variable, jaxpr.outvars)
    program = Program(
        name=name,
        symbols=tuple(sorted(_symbols(trace))),
        inputs=tuple(inputs),
        constants=tuple(reader.constants),
        equations=equations,
        results=tuple(results),
        guards=tuple(Fact(str(g), _compat.describe_line(g.place)) for g in trace.guards),
        numbers=tuple(_numbers(trace, moment)),
        extents=reader.extents(),
    )
    if moment is None:
        return program
    return dataclasses.replace(
        program,
        sizes=dict(moment.sizes),
        buckets=dict(moment.buckets),
        exact=dict(moment.exact),
        masks=tuple(map(_without_equations, moment.notes)),
    )


class _Reader:
    """Gives names to the values of one trace, and reads its equations.

    Args:
        trace: The trace.
        moment: Its graph in a call.
        arguments: The names of the arguments, which nothing else may have.

    Attributes:
        constants: The arrays that the functions read so far close over.
    """

    def __init__(self, trace: Trace, moment: Moment | None, *, arguments: Sequence[str]) -> None:
        self._substitution = trace.substitution
        own = trace.substitution.outer.keys()
        inner = trace.substitution.inner.items()
        self._split = {dim.text: symbol for symbol, dim in inner if dim.symbols & own}
        self._moment = moment
        self._names: dict[Any, tuple[str, bool]] = {}
        self._numbers = itertools.count()
        taken = frozenset(arguments)
        names = (f"const{i}" for i in itertools.count())
        self._constant_names = (name for name in names if name not in taken)
        self.constants: list[Variable] = []
        self._dims: dict[str, _At] = {}
        self._notes: dict[tuple[int, ...], list[MaskNote]] = collections.defaultdict(list)
        if moment is not None:
            self._capacities = Extents(moment.ranges, {}, substitution=trace.substitution)
            self._sizes = trace.substitution.sizes(moment.sizes)
            for note in moment.notes:
                self._notes[tuple(map(id, note.at))].append(note)

    def named(self, var: Any, name: str, *, is_literal: bool = False) -> Variable:
        """Name a variable."""
        self._names[var] = name, is_literal
        return self.variable(var)

    def close_over(self, jaxpr: Any) -> None:
        """Name the constants of an open jaxpr, which may occur in several equations."""
        for var in jaxpr.constvars:
            if var not in self._names:
                self.constants.append(self.named(var, next(self._constant_names)))

    def variable(self, atom: Any) -> Variable:
        """A variable or a literal."""
        aval = atom.aval
        name, is_literal = self._name(atom)
        if not (hasattr(aval, "shape") and hasattr(aval, "dtype")):
            return Variable(name, _compat.describe_aval(aval), None, is_literal=is_literal)
        dims = [self._at(dim) for dim in aval.shape]
        shape = Shape(aval.dtype, *(at.dim for at in dims))
        if self._moment is None:
            return Variable(name, str(shape), shape, is_literal=is_literal)
        lengths = tuple(at.length for at in dims)
        capacities = tuple(at.capacity for at in dims)
        return Variable(name, str(shape), shape, lengths, capacities, is_literal)

    def equations(self, jaxpr: Any, outer: tuple[Any, ...]) -> tuple[Equation, ...]:
        """The equations of an open jaxpr that is nested in these equations."""
        return tuple(self._equation(eqn, outer) for eqn in jaxpr.eqns)

    def extents(self) -> tuple[Extent, ...]:
        """The symbolic dims read so far, if there is a call: symbols first."""
        moment = self._moment
        if moment is None:
            return ()
        found = {s: Extent(s, size, moment.buckets[s]) for s, size in sorted(moment.sizes.items())}
        dims = {str(at.dim): at for at in self._dims.values() if _dim.symbols_of(at.dim)}
        for text in sorted(dims):
            found.setdefault(text, Extent(text, dims[text].length, dims[text].capacity))
        return tuple(found.values())

    def _equation(self, eqn: Any, outer: tuple[Any, ...]) -> Equation:
        path = (*outer, eqn)
        operands = tuple(map(self.variable, eqn.invars))
        results = tuple(map(self.variable, eqn.outvars))
        bodies = tuple(self._bodies(eqn, path))
        inner = {label.partition("[")[0] for label, _ in _labelled(eqn)}
        params = ((key, self._param(value)) for key, value in sorted(eqn.params.items()))
        return Equation(
            primitive=eqn.primitive.name,
            name=_called(eqn),
            operands=operands,
            results=results,
            params=tuple((key, text) for key, text in params if text and key not in inner),
            where=next(filter(None, map(_compat.eqn_line, reversed(path))), None),
            rule=_rule(eqn),
            masks=tuple(map(_without_equations, self._taken(path))),
            bodies=bodies,
        )

    def _bodies(self, eqn: Any, path: tuple[Any, ...]) -> Iterator[Body]:
        called = None
        if eqn.primitive.name in NESTED:
            called = _compat.opened(NESTED[eqn.primitive.name](eqn.params))
        for label, inner in _labelled(eqn):
            jaxpr = _compat.opened(inner)
            is_call = jaxpr is called and len(jaxpr.invars) == len(eqn.invars)
            if is_call:
                inputs = [
                    self._alias(var, atom)
                    for var, atom in zip(jaxpr.invars, eqn.invars, strict=True)
                ]
            else:
                # One jaxpr may occur in several equations, with other values in each.
                inputs = [self._anew(var) for var in jaxpr.invars]
            for var in (var for e in jaxpr.eqns for var in e.outvars):
                self._names.pop(var, None)
            self.close_over(jaxpr)
            equations = self.equations(jaxpr, path)
            results = tuple(map(self.variable, jaxpr.outvars))
            yield Body(label, tuple(inputs), equations, results, is_call)

    def _name(self, atom: Any) -> tuple[str, bool]:
        """The name of a variable or a literal, and whether it is a number."""
        if _compat.is_literal(atom):
            return _literal_text(atom), True
        if atom not in self._names:
            self._names[atom] = f"%{next(self._numbers)}", False
        return self._names[atom]

    def _alias(self, var: Any, atom: Any) -> Variable:
        name, is_literal = self._name(atom)
        return self.named(var, name, is_literal=is_literal)

    def _anew(self, var: Any) -> Variable:
        return self.named(var, f"%{next(self._numbers)}")

    def _taken(self, path: tuple[Any, ...]) -> list[MaskNote]:
        """Take the notes of an equation that no equation nested in it has taken.

        A rule may have interpreted another jaxpr than the one that is read here.
        """
        key = tuple(map(id, path))
        keys = [k for k in self._notes if k[: len(key)] == key]
        return [note for k in keys for note in self._notes.pop(k)]

    def _at(self, dim: Any) -> "_At":
        text = _dim.dim_text(dim)
        if text not in self._dims:
            outward = int(dim) if isinstance(dim, int) else self._outward(text)
            if self._moment is None:
                self._dims[text] = _At(outward, 0, 0)
            else:
                length = _dim.evaluate(text if not isinstance(dim, int) else dim, self._sizes)
                self._dims[text] = _At(outward, int(length), self._capacities.capacity(dim))
        return self._dims[text]

    def _outward(self, text: str) -> Dim:
        """A dim in the symbols of the call; the two parts of a split symbol are that symbol."""
        known = self._split.get(text)
        return self._substitution.outward(text) if known is None else Dim(known)

    def _param(self, value: Any) -> str:
        """The text of a parameter; empty if it would not inform a reader."""
        if value is None or callable(value):
            return ""
        if isinstance(value, HostOperand):
            return str(value.expression)
        if type(value) in (tuple, list):
            parts = ", ".join("None" if part is None else self._param(part) for part in value)
            text = f"({parts},)" if len(value) == 1 else f"({parts})"
        elif export.is_symbolic_dim(value):
            text = str(self._at(value).dim)
        else:
            text = "" if " at 0x" in str(value) else str(value)
        return text if len(text) <= _LONGEST_PARAM else f"{text[: _LONGEST_PARAM - 3]}..."


@dataclasses.dataclass(frozen=True)
class _At:
    """A dim in the call's symbols, with its length and its capacity in the call."""

    dim: int | Dim
    length: int
    capacity: int


def _without_equations(note: MaskNote) -> MaskNote:
    """A note that keeps no jaxpr alive."""
    return dataclasses.replace(note, at=())


def _literal_text(atom: Any) -> str:
    value = np.asarray(atom.val) if not _compat.is_extended(atom.aval.dtype) else atom.val
    return str(value.astype(atom.aval.dtype)[()]) if hasattr(value, "astype") else str(value)


def _labelled(eqn: Any) -> Iterator[tuple[str, Any]]:
    """The jaxprs inside an equation, with the parameters that hold them."""
    for key, value in eqn.params.items():
        held = list(_compat.sub_jaxprs({key: value}))
        for i, inner in enumerate(held):
            yield (key if len(held) == 1 else f"{key}[{i}]"), inner


def _called(eqn: Any) -> str | None:
    """The name of the only function inside an equation, if it has one."""
    held = [inner for _, inner in _labelled(eqn)]
    if not held:
        return None
    name = eqn.params.get("name") or (_compat.jaxpr_name(held[0]) if len(held) == 1 else None)
    return name if isinstance(name, str) else None


def _rule(eqn: Any) -> str | None:
    if not is_ragged(eqn):
        return None
    name = eqn.primitive.name
    return RULES[name].kind if name in RULES else "Run" if name in NESTED else "Refuse"


def _symbols(trace: Trace) -> frozenset[str]:
    own = (s for aval in trace.jaxpr.in_avals for dim in aval.shape for s in _dim.symbols_of(dim))
    return trace.substitution.symbols(own) | trace.substitution.inner.keys()


def _numbers(trace: Trace, moment: Moment | None) -> Iterator[Number]:
    if moment is None:
        found = (
            param
            for eqn in _compat.equations(trace.jaxpr.jaxpr)
            for param in eqn.params.values()
            if isinstance(param, HostOperand)
        )
        for operand in dict.fromkeys(found):
            yield Number(str(operand.expression), str(operand.dtype))
        return
    values = HostValues(moment.sizes)
    for operand in moment.operands:
        yield Number(str(operand.expression), str(operand.dtype), str(operand.at(values)))
