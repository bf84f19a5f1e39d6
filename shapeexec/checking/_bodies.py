"""Numbers the results of loops and branches, and the values of their bodies.

The equations of a body are numbered by its `Scope`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from shapeexec import _compat
from shapeexec.checking._counting import counted, counters
from shapeexec.checking._scope import Scope, without_ones
from shapeexec.checking._values import Kind, Run, Table, kind_of


def _cond(scope: Scope, eqn: Any, values: list[int]) -> list[int]:  # noqa: PLR0917 - `BODIES` calls it
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


def _scan(scope: Scope, eqn: Any, values: list[int]) -> list[int]:  # noqa: PLR0917 - `BODIES` calls it
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


def _while(scope: Scope, eqn: Any, values: list[int]) -> list[int]:  # noqa: PLR0917 - `BODIES` calls it
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
    """The results of a loop.

    The two programs may carry constants along in other places, and have other axes of size 1 in
    the arrays that they read row by row or stack. So a loop is numbered by its changing carries
    alone, and with rows and outputs that have no axes of size 1.

    Args:
        scope: The scope of the equation.
        eqn: The equation.
        values: Its operands.
        loop: Its numbered body.
        steps: The number of steps, and whether they are reversed; None: the number is unknown.
        rows: The operands of which each step reads a row.
    """
    table, carries = scope.table, len(loop.arguments)
    place_of = {carry: place for place, carry in enumerate(loop.carried)}
    stacked = [kind_of(var.aval) for var in eqn.outvars[carries:]]
    kinds = [table.kind(loop.arguments[carry]) for carry in place_of]
    kinds += [without_ones(kind, 1) for kind in stacked]
    outputs = tuple(
        scope.reshape(value, without_ones(table.kind(value)).shape)
        for value in loop.results[carries:]
    )
    next_carries = tuple(loop.results[carry] for carry in place_of)
    narrow_rows = [scope.reshape(row, without_ones(table.kind(row), 1).shape) for row in rows]
    made = table.make(
        "while" if steps is None else "scan",
        (steps, len(place_of)),
        operands=[*loop.carried.values(), *narrow_rows],
        kinds=kinds,
        run=_results_of(eqn, [*place_of, *range(carries, len(eqn.outvars))], kinds=kinds),
        inputs=values,
        bodies=(next_carries + outputs, tuple(loop.tests) if steps is None else ()),
    )
    starts = values[len(values) - len(rows) - carries : len(values) - len(rows)]
    last_carries = [made[place_of[i]] if i in place_of else starts[i] for i in range(carries)]
    put_out = made[len(place_of) :]
    if steps is not None and put_out:
        put_out = _known_rows(table, loop, steps=steps, outputs=outputs, made=put_out)
    pairs = zip(put_out, stacked, strict=True)
    return last_carries + [scope.reshape(value, kind.shape) for value, kind in pairs]


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


BODIES: dict[str, Callable[[Scope, Any, list[int]], list[int]]] = {
    "cond": _cond,
    "scan": _scan,
    "while": _while,
}
