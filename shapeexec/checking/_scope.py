"""Numbers the values of a jaxpr, equation by equation.

Equations are compared by the names of their primitives. Further equalities are in the tables of
normal forms (`_equalities`) and of constant folding (`_fold`); loops and branches are in `_bodies`.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from shapeexec import _compat
from shapeexec.checking._normal import Maker
from shapeexec.checking._params import params_key
from shapeexec.checking._values import Kind, Table, kind_of

Origins = dict[int, tuple[Any, ...]]


@dataclasses.dataclass
class Scope:
    """The values of one program, or of a body in it.

    Attributes:
        table: Numbers the values.
        equalities: See `_equalities`.
        bodies: How the results of loops and branches are numbered, by primitive.
        origins: See `Numbered`.
        effects: The effects so far, in order.
        calls: The equations that call what is numbered, the innermost first.
    """

    table: Table
    equalities: Mapping[str, Any]
    bodies: Mapping[str, Callable[["Scope", Any, list[int]], list[int]]]
    origins: Origins = dataclasses.field(default_factory=dict[int, tuple[Any, ...]])
    effects: list[int] = dataclasses.field(default_factory=list[int])
    calls: tuple[Any, ...] = ()

    def run(self, closed: Any, operands: Sequence[int]) -> list[int]:
        """The values of a closed jaxpr's results."""
        jaxpr = closed.jaxpr
        env: _compat.Environment[int] = _compat.Environment({}, self._literal)
        env.write(jaxpr.invars, operands)
        env.write(jaxpr.constvars, map(self.table.constant, closed.consts))
        live = _compat.live_equations(jaxpr, jaxpr.outvars)
        env.walk(live, lambda eqn: self._results(eqn, [*map(env.read, eqn.invars)]))
        return [*map(env.read, jaxpr.outvars)]

    def _literal(self, atom: Any) -> int:
        if _compat.is_extended(atom.aval.dtype):
            return self.table.constant(atom.val)
        return self.table.constant(np.asarray(atom.val, atom.aval.dtype))

    def _results(self, eqn: Any, values: list[int]) -> list[int]:
        body = _compat.body_of(eqn.primitive.name, eqn.params)
        if body is not None:
            # Its derivatives and rematerialization were applied when the function was traced.
            called = dataclasses.replace(self, calls=(eqn, *self.calls))
            return called.run(_compat.closed(body), values)
        made = self._equation(eqn, values)
        for value in made:
            if value not in self.origins:
                self.origins[value] = (eqn, *self.calls)
        return made

    def _equation(self, eqn: Any, values: list[int]) -> list[int]:
        name = eqn.primitive.name
        if name in self.bodies and not eqn.effects:
            return self.bodies[name](self, eqn, values)
        if own := _compat.own_settings(eqn):  # no equality is known of such an equation
            name = f"{name} with {own}"
        kinds = [kind_of(var.aval) for var in eqn.outvars]
        run = functools.partial(_compat.bind_equation, eqn)
        if not eqn.effects:
            again = self.table.again(name, eqn.params, operands=values, kinds=kinds)
            if again is not None:
                return again
            maker = Maker(self.table, self.equalities)
            key = functools.partial(params_key, number=self.closed_key)
            made = maker.make(name, eqn.params, operands=values, kinds=kinds, run=run, key=key)
            self.table.keep(name, eqn.params, operands=values, kinds=kinds, made=made)
            return made
        moment = len(self.effects), params_key(eqn.params, self.closed_key)
        made = self.table.make(name, ("effect", *moment), operands=values, kinds=kinds, run=run)
        done = made[0] if made else None
        if done is None:  # an effect without results gets a value of its own
            (done,) = self.table.make(
                name, ("effect", *moment), operands=values, kinds=[_NOTHING], run=run
            )
        self.effects.append(done)
        self.origins.setdefault(done, (eqn, *self.calls))
        return made

    def closed_key(self, closed: Any) -> Hashable:
        """The key of a jaxpr in a parameter, which depends on its inputs only."""
        body = self.inner()
        inputs = [body.argument(i, aval) for i, aval in enumerate(closed.in_avals)]
        results = tuple(body.run(closed, inputs))
        return results, tuple(body.effects), tuple(map(kind_of, closed.in_avals))

    def inner(self) -> "Scope":
        """The scope of a body, which has its own effects."""
        return Scope(self.table, self.equalities, self.bodies, self.origins, calls=self.calls)

    def argument(self, position: Hashable, aval: Any) -> int:
        """A parameter of a body that changes from step to step."""
        return self.table.given("argument", position, kind=kind_of(aval))

    def row(self, position: int, kind: Kind) -> int:
        """A parameter of a body that is a row of an array, numbered without axes of size 1."""
        value = self.table.given("argument", ("row", position), kind=without_ones(kind))
        return self.reshape(value, kind.shape)

    def reshape(self, value: int, shape: Sequence[int]) -> int:
        """A value in another shape."""
        return Maker(self.table, self.equalities).reshape(value, shape)

    def captured(self, value: int) -> int:
        """A value from outside a body, inside it. Constants are the same in both."""
        node = self.table[value]
        if node.op == "constant":
            return value
        return self.table.captured(value)


_NOTHING = kind_of(None)


def without_ones(kind: Kind, first: int = 0) -> Kind:
    """A kind without axes of size 1, except among the `first` axes."""
    if _compat.is_extended(kind.dtype):
        return kind
    return Kind((*kind.shape[:first], *(n for n in kind.shape[first:] if n != 1)), kind.dtype)
