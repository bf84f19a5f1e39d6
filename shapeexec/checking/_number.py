"""Numbers the values of a program, with the bodies of its loops and branches.

Equations are compared by the names of their primitives. Further equalities are in the tables of
normal forms (`_equalities`) and of constant folding (`_fold`).
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from shapeexec import _compat
from shapeexec.checking._counting import counted, counters
from shapeexec.checking._equalities import EQUALITIES
from shapeexec.checking._normal import Maker
from shapeexec.checking._params import params_key
from shapeexec.checking._values import Kind, Run, Table, kind_of

Origins = dict[int, tuple[Any, ...]]


@dataclasses.dataclass(frozen=True)
class Program:
    """One of the two programs, numbered.

    Attributes:
        results: The values of its results.
        effects: Its side effects, in order.
        origins: The first equation of this program that has the value as a result, and the calls
            around it, the innermost first.
    """

    results: tuple[int, ...]
    effects: tuple[int, ...]
    origins: Origins


def number_program(
    table: Table, closed: Any, *, equalities: Mapping[str, Any] = EQUALITIES
) -> Program:
    """Number the values of a closed jaxpr without symbols; its calls are opened."""
    scope = Scope(table, equalities, {})
    inputs = [table.given("input", i, kind=kind_of(aval)) for i, aval in enumerate(closed.in_avals)]
    results = scope.run(closed, inputs)
    return Program(tuple(results), tuple(scope.effects), scope.origins)


@dataclasses.dataclass
class Scope:
    """The values of one program, or of a body in it.

    Attributes:
        table: Numbers the values.
        equalities: See `_equalities`.
        origins: See `Program`.
        effects: The effects so far, in order.
        calls: The equations that call what is numbered, the innermost first.
    """

    table: Table
    equalities: Mapping[str, Any]
    origins: Origins
    effects: list[int] = dataclasses.field(default_factory=list[int])
    calls: tuple[Any, ...] = ()

    def run(self, closed: Any, operands: Sequence[int]) -> list[int]:
        """The values of a closed jaxpr's results."""
        jaxpr = closed.jaxpr
        env: _compat.Environment[int] = _compat.Environment({}, self._literal)
        env.write(jaxpr.invars, operands)
        env.write(jaxpr.constvars, map(self.table.constant, closed.consts))
        env.walk(_live(jaxpr), lambda eqn: self._results(eqn, [*map(env.read, eqn.invars)]))
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
        if name in _BODIES and not eqn.effects:
            return _BODIES[name](self, eqn, values)
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
        return Scope(self.table, self.equalities, self.origins, calls=self.calls)

    def argument(self, position: Hashable, aval: Any) -> int:
        """A parameter of a body that changes from step to step."""
        return self.table.given("argument", position, kind=kind_of(aval))

    def row(self, position: int, kind: Kind) -> int:
        """A parameter of a body that is a row of an array, numbered without axes of size 1."""
        value = self.table.given("argument", ("row", position), kind=_without_ones(kind))
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


def _without_ones(kind: Kind, first: int = 0) -> Kind:
    """A kind without axes of size 1, except among the `first` axes."""
    if _compat.is_extended(kind.dtype):
        return kind
    return Kind((*kind.shape[:first], *(n for n in kind.shape[first:] if n != 1)), kind.dtype)


def _live(jaxpr: Any) -> list[Any]:
    """The equations that results or effects depend on."""
    needed = {var for var in jaxpr.outvars if not _compat.is_literal(var)}
    live: list[Any] = []
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or any(var in needed for var in eqn.outvars):
            live.append(eqn)
            needed.update(var for var in eqn.invars if not _compat.is_literal(var))
    return live[::-1]


# Loops and branches


def _cond(scope: Scope, eqn: Any, values: list[int]) -> list[int]:  # noqa: PLR0917 - `_BODIES` calls it
    """A choice among the results of branches, which read outside values directly."""
    which, *operands = values
    branches = [_compat.closed(branch) for branch in eqn.params["branches"]]
    index = scope.table.constant_of(which)
    if index is not None:
        taken = min(max(int(index), 0), len(branches) - 1)
        return scope.run(branches[taken], operands)
    results = [
        scope.run(
            branch,
            [_within_branch(scope.table, value, which=which, branch=i) for value in operands],
        )
        for i, branch in enumerate(branches)
    ]
    made: list[int] = []
    for i, var in enumerate(eqn.outvars):
        cases = [result[i] for result in results]
        if len(set(cases)) == 1:
            made.append(cases[0])
            continue
        made += scope.table.make(
            "cond", (), operands=[which, *cases], kinds=[kind_of(var.aval)], run=_choose
        )
    return made


def _within_branch(table: Table, value: int, *, which: int, branch: int) -> int:
    """A value in one branch. A `cond` with the same index, as gradients have, is that branch."""
    node = table[value]
    chosen = node.op == "cond" and node.operands[0] == which
    return node.operands[1 + branch] if chosen and branch + 1 < len(node.operands) else value


def _choose(arrays: Sequence[Any]) -> list[Any]:
    which, *cases = arrays
    index = jnp.clip(jnp.asarray(which, np.int32), 0, len(cases) - 1)
    branches: list[Any] = [functools.partial(_given, case) for case in cases]
    return [jax.lax.switch(index, branches)]


def _given(case: Any) -> Any:
    return case


@dataclasses.dataclass(frozen=True)
class _Loop:
    """A numbered loop body.

    Attributes:
        carried: The initial value of each carry that changes, by its position.
        arguments: The value of each carry in the body.
        results: The next value of each carry, then the outputs of a step.
        tests: The results of the loop's condition.
    """

    carried: Mapping[int, int]
    arguments: Sequence[int]
    results: Sequence[int]
    tests: Sequence[int]


def _settled(
    scope: Scope, starts: Sequence[int], *, avals: Sequence[Any], run: Callable[..., Any]
) -> _Loop:
    """Number a body repeatedly, until all carries that it never changes are captured values."""
    fixed: set[int] = set()
    while True:
        inner, places = scope.inner(), itertools.count()
        arguments = [
            inner.captured(start) if i in fixed else inner.argument(("carry", next(places)), aval)
            for i, (start, aval) in enumerate(zip(starts, avals, strict=True))
        ]
        results, tests = run(inner, arguments)
        still = {i for i, arg in enumerate(arguments) if results[i] == arg} - fixed
        if not still:
            carried = {i: start for i, start in enumerate(starts) if i not in fixed}
            return _Loop(carried, arguments, results, tests)
        fixed |= still


def _scan(scope: Scope, eqn: Any, values: list[int]) -> list[int]:  # noqa: PLR0917 - `_BODIES` calls it
    params = eqn.params
    consts, carry = _compat.scan_counts(params, len(values))
    closed = _compat.closed(params["jaxpr"])
    starts, rows = values[consts : consts + carry], values[consts + carry :]
    avals = closed.in_avals

    def run(inner: Scope, arguments: list[int]) -> tuple[list[int], list[int]]:
        outside = [inner.captured(value) for value in values[:consts]]
        of_rows = [inner.row(i, kind_of(a)) for i, a in enumerate(avals[consts + carry :])]
        return inner.run(closed, [*outside, *arguments, *of_rows]), []

    loop = _settled(scope, starts, avals=avals[consts : consts + carry], run=run)
    steps = int(params["length"]), bool(params["reverse"])
    return _looped(scope, eqn, values=values, loop=loop, steps=steps, rows=rows)


def _while(scope: Scope, eqn: Any, values: list[int]) -> list[int]:  # noqa: PLR0917 - `_BODIES` calls it
    params = eqn.params
    tested, made = params["cond_nconsts"], params["body_nconsts"]
    test, body = _compat.closed(params["cond_jaxpr"]), _compat.closed(params["body_jaxpr"])
    starts = values[tested + made :]

    def run(inner: Scope, arguments: list[int]) -> tuple[list[int], list[int]]:
        of_test = [inner.captured(value) for value in values[:tested]]
        of_body = [inner.captured(value) for value in values[tested : tested + made]]
        results = inner.run(body, [*of_body, *arguments])
        return results, inner.run(test, [*of_test, *arguments])

    loop = _settled(scope, starts, avals=body.in_avals[made:], run=run)
    count = _steps(scope.table, loop)
    return _looped(
        scope, eqn, values=values, loop=loop, steps=None if count is None else (count, False)
    )


def _steps(table: Table, loop: _Loop) -> int | None:
    """The number of steps of a loop `while i < n: i = i + 1` with known numbers; else None."""
    node = table[loop.tests[0]]
    if node.op != "lt":
        return None
    counter, limit = node.operands
    end = table.constant_of(limit)
    for i, start in loop.carried.items():
        first = table.constant_of(start)
        if loop.arguments[i] != counter or first is None or end is None:
            continue
        if first.ndim or end.ndim:  # a loop for each example of a vmap
            return None
        step = table[loop.results[i]]
        one = table.constant(np.ones((), first.dtype))
        if step.op == "add" and step.operands in ((counter, one), (one, counter)):
            return max(0, int(end) - int(first))
    return None


def _looped(
    scope: Scope,
    eqn: Any,
    *,
    values: list[int],
    loop: _Loop,
    steps: tuple[int, bool] | None,
    rows: Sequence[int] = (),
) -> list[int]:
    """The results of a loop. `steps`: their number, and whether reversed; None: unknown.

    Rows have no axes of size 1, because JAX's indices may or may not have them.
    """
    table, carries = scope.table, len(loop.arguments)
    op = "while" if steps is None else "scan"
    order = {i: place for place, i in enumerate(loop.carried)}
    kinds = [table.kind(loop.arguments[i]) for i in order]
    body = tuple(loop.results[i] for i in order)
    outputs = tuple(
        scope.reshape(value, _without_ones(table.kind(value)).shape)
        for value in loop.results[carries:]
    )
    whole = [kind_of(var.aval) for var in eqn.outvars[carries:]]
    kinds += [_without_ones(kind, 1) for kind in whole]
    rows = [scope.reshape(row, _without_ones(table.kind(row), 1).shape) for row in rows]
    bodies = (body + outputs, tuple(loop.tests) if steps is None else ())
    made = table.make(
        op,
        (steps, len(order)),
        operands=[*loop.carried.values(), *rows],
        kinds=kinds,
        run=_results_of(eqn, [*order, *range(carries, len(eqn.outvars))], kinds=kinds),
        inputs=values,
        bodies=bodies,
    )
    starts = values[len(values) - len(rows) - carries : len(values) - len(rows)]
    results = [made[order[i]] if i in order else starts[i] for i in range(carries)]
    put_out = made[len(order) :]
    if steps is not None and put_out:
        put_out = _known_rows(table, loop, steps=steps, outputs=outputs, made=put_out)
    pairs = zip(put_out, whole, strict=True)
    return results + [scope.reshape(value, kind.shape) for value, kind in pairs]


def _known_rows(
    table: Table,
    loop: _Loop,
    *,
    steps: tuple[int, bool],
    outputs: Sequence[int],
    made: Sequence[int],
) -> list[int]:
    """The outputs of a loop; a constant where they depend on a counter only."""
    count, is_reversed = steps
    starts = {loop.arguments[i]: start for i, start in loop.carried.items()}
    results = {loop.arguments[i]: loop.results[i] for i in loop.carried}
    known: dict[int, np.ndarray | None] = {**counters(table, starts, made=results, steps=count)}
    rows = [
        counted(table, output, known=known, steps=count) if known else None for output in outputs
    ]
    return [
        value if row is None else table.constant(row[::-1] if is_reversed else row)
        for value, row in zip(made, rows, strict=True)
    ]


def _results_of(eqn: Any, places: Sequence[int], *, kinds: Sequence[Kind]) -> Run:
    def run(arrays: Sequence[Any]) -> list[Any]:
        results = _compat.bind_equation(eqn, arrays)
        pairs = [(results[place], kind.shape) for place, kind in zip(places, kinds, strict=True)]
        return [x if x.shape == shape else jax.lax.reshape(x, shape) for x, shape in pairs]

    return run


_BODIES: dict[str, Callable[[Scope, Any, list[int]], list[int]]] = {
    "cond": _cond,
    "scan": _scan,
    "while": _while,
}
