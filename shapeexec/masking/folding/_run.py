"""Running what is planned: each equation that is needed, and sums in the place of the others."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking._registry import NESTED
from shapeexec.masking.folding._plan import Fold, Folder, Loop, Needs


def sum_over_examples(
    fn: Callable[..., Sequence[Array]], is_example: Array, *operands: Any
) -> list[Array]:
    """The sums of what `fn` gives over its first axis, without making what need not be made.

    Args:
        fn: Vmapped over examples; each of its results has them along the first axis.
        is_example: bool[examples]: which of them are summed. What the others give, NaN too, is left
            out.
        *operands: Of `fn`.

    Returns:
        The sums, in the dtypes of the results. Floats are accumulated in at least 32 bits.
    """
    closed = inlined(jax.make_jaxpr(fn)(*operands))
    folder = Folder(closed.jaxpr, len(is_example), inlined)
    planned = folder.plan(closed.jaxpr.outvars)
    values = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(closed.jaxpr.invars, jax.tree.leaves(operands), strict=True))
    scope = Scope(values)
    scope.run(folder, folder.needs([], planned), is_example)
    return [
        lax.convert_element_type(scope.sum(fold, is_example), fold.variable.aval.dtype)
        for fold in planned
    ]


class Scope:
    """The values of a jaxpr's variables while it is run, and what is made of them, once each.

    Args:
        values: Those of its arguments and constants.
    """

    def __init__(self, values: dict[Any, Any]) -> None:
        self._values = values
        # A mask is kept with what was made for it, so that no other one gets its id.
        self._made: dict[Any, tuple[Any, Array]] = {}

    def inside(self, values: dict[Any, Any]) -> "Scope":
        """A scope of its own, for a branch."""
        return Scope(values)

    def read(self, atom: Any) -> Any:
        """The value of a variable or a literal."""
        return atom.val if _compat.is_literal(atom) else self._values[atom]

    def sum(self, fold: Fold, mask: Array) -> Array:
        """The sum of those examples that a mask selects."""
        return self._once((fold, id(mask)), mask, lambda: fold.emit(self, mask))

    def masked(self, atom: Any, axis: int, mask: Array) -> Array:
        """The value with zero for each example, along `axis`, that a mask leaves out."""

        def make() -> Array:
            x = self.read(atom)
            along = lax.broadcast_in_dim(mask, x.shape, (axis,))
            return lax.select(along, x, lax.full_like(x, 0))

        return self._once((atom, axis, id(mask)), mask, make)

    def narrowed(self, mask: Array, chosen: Any, *, value: bool) -> Array:
        """The examples of a mask for which a variable, one bool per example, has a value."""

        def make() -> Array:
            own = jnp.reshape(self.read(chosen), mask.shape)
            return mask & (own if value else ~own)

        return self._once((chosen, value, id(mask)), mask, make)

    def count(self, mask: Array) -> Array:
        """i32[]: how many examples a mask selects."""
        return self._once(("count", id(mask)), mask, lambda: jnp.sum(mask, dtype=np.int32))

    def loop_sum(self, loop: Loop, number: int, mask: Array) -> Array:
        """The sum of a loop's result; those of all its results are made together."""
        key = (loop, number, id(mask))
        if key not in self._made:  # for a mask of its own, which few loops are asked for
            self._run_loop(loop, mask, (), (number,))
        return self._made[key][0]

    def run(self, folder: Folder, needs: Needs, mask: Array) -> None:
        """Give their values to all variables that are needed."""
        for number in sorted(needs.eqns):
            eqn = folder.jaxpr.eqns[number]
            if number in needs.loops:
                loop, summed = needs.loops[number]
                wanted = [i for i, var in enumerate(eqn.outvars) if var in needs.variables]
                self._run_loop(loop, mask, wanted, summed)
            else:
                results = _compat.bind_equation(eqn, [self.read(atom) for atom in eqn.invars])
                self._values.update(zip(eqn.outvars, results, strict=True))

    def _run_loop(
        self, loop: Loop, mask: Array, wanted: Iterable[int], summed: Iterable[int]
    ) -> None:
        eqn, body, consts = loop.eqn, loop.body.jaxpr, loop.consts
        first_x = consts + loop.carries
        results, needs = loop.needs(wanted, summed)
        kept = [i for i in sorted(results) if i < loop.carries]
        given = [i for i in sorted(results) if i >= loop.carries]
        added = [i for i in sorted(summed) if i < loop.carries]
        summed_up = [i for i in sorted(summed) if i >= loop.carries]
        read_xs = [i for i in range(first_x, len(eqn.invars)) if body.invars[i] in needs.variables]
        outer = {
            body.invars[i]: self.read(eqn.invars[i])
            for i in range(consts)
            if body.invars[i] in needs.variables
        }

        def step(carry: Any, xs: Any) -> Any:
            states, totals = carry
            values = outer | {loop.carried(i): x for i, x in zip(kept, states, strict=True)}
            values |= {body.invars[i]: x for i, x in zip(read_xs, xs, strict=True)}
            scope = Scope(values)
            scope.run(loop.body, needs, mask)
            states = [_as_declared(body.outvars[i], scope.read(body.outvars[i])) for i in kept]
            totals = [
                total + scope.sum(loop.sums[i], mask)
                for i, total in zip(added, totals, strict=True)
            ]
            ys = [scope.read(body.outvars[i]) for i in given]
            return (states, totals), (ys, [scope.sum(loop.sums[i], mask) for i in summed_up])

        states = [_as_declared(loop.carried(i), self.read(eqn.invars[consts + i])) for i in kept]
        totals = [self.sum(loop.starts[i], mask) for i in added]
        xs = [self.read(eqn.invars[i]) for i in read_xs]
        how = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
        (states, totals), (ys, y_sums) = lax.scan(step, (states, totals), xs, **how)
        made = zip((*kept, *given), (*states, *ys), strict=True)
        self._values.update((eqn.outvars[i], value) for i, value in made)
        for i, value in zip((*added, *summed_up), (*totals, *y_sums), strict=True):
            self._made[loop, i, id(mask)] = (value, mask)

    def _once(self, key: Any, mask: Array, make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = (make(), mask)
        return self._made[key][0]


def _as_declared(variable: Any, x: Any) -> Any:
    """A carry in its declared dtype, so that it does not drift."""
    aval = variable.aval
    return x if _compat.is_extended(aval.dtype) else lax.convert_element_type(x, aval.dtype)


def inlined(closed: Any) -> Any:
    """A closed jaxpr without calls of other jaxprs, but for those of loops and branches."""
    structs = [
        jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype, weak_type=var.aval.weak_type)
        for var in closed.jaxpr.invars
    ]
    return jax.make_jaxpr(lambda *operands: _inline(closed, operands))(*structs)


def _inline(closed: Any, operands: Sequence[Any]) -> list[Any]:
    jaxpr = closed.jaxpr
    values = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(jaxpr.invars, operands, strict=True))
    scope = Scope(values)
    for eqn in jaxpr.eqns:
        read = [scope.read(atom) for atom in eqn.invars]
        name = eqn.primitive.name
        if name in NESTED:
            results = _inline(_compat.closed(NESTED[name](eqn.params)), read)
        elif name == "remat2":
            if eqn.params["differentiated"] and eqn.params["prevent_cse"]:
                read = lax.optimization_barrier(read)
            results = _inline(_compat.closed(eqn.params["jaxpr"]), read)
        else:
            results = _compat.bind_equation(eqn, read)
        values.update(zip(eqn.outvars, results, strict=True))
    return [scope.read(atom) for atom in jaxpr.outvars]
