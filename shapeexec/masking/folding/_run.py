"""Running a plan of sums: the equations that are needed, and sums in the place of the others.

Which sums are planned, and for which primitives, is up to `_plan` and the modules beside it.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking._registry import nested_jaxpr
from shapeexec.masking.folding._plan import Fold, Folder, Loop, Needs


def sum_over_examples(
    fn: Callable[..., Sequence[Array]], is_example: Array, *operands: Any
) -> list[Array]:
    """The sums of the results of `fn` over their first axis, without arrays that a sum can spare.

    Args:
        fn: A function vmapped over examples, which are the first axis of each result.
        is_example: bool[examples]: which of them are summed. Results of the others may be NaN.
        *operands: The operands of `fn`.

    Returns:
        The sums, in the dtypes of the results. Floats are accumulated in at least 32 bits.
    """
    closed = inlined(_compat.make_jaxpr(fn)(*operands))
    folder = Folder(closed.jaxpr, len(is_example), inline=inlined)
    planned = folder.plan(closed.jaxpr.outvars)
    values = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(closed.jaxpr.invars, jax.tree.leaves(operands), strict=True))
    scope = Scope(values)
    scope.run(folder.needs([], planned), is_example)
    return [
        lax.convert_element_type(scope.sum(fold, is_example), fold.variable.aval.dtype)
        for fold in planned
    ]


class Scope:
    """The values of a jaxpr's variables, and the sums that are computed from them, each once.

    Args:
        values: The values of the arguments and the constants, by variable.
    """

    def __init__(self, values: dict[Any, Any]) -> None:
        self._env = _compat.Environment(values)
        # A mask is kept beside what depends on it, so that no other one gets its id.
        self._made: dict[Any, tuple[Any, Array]] = {}

    def inside(self, values: dict[Any, Any]) -> "Scope":
        """A scope for the body of a branch."""
        return Scope(values)

    def read(self, atom: Any) -> Any:
        """The value of a variable or a literal."""
        return self._env.read(atom)

    def sum(self, fold: Fold, mask: Array) -> Array:
        """The sum over the examples that a mask selects."""
        return self._once((fold, id(mask)), mask, make=lambda: fold.emit(self, mask))

    def masked(self, atom: Any, axis: int, *, mask: Array) -> Array:
        """The value with 0 for each example, along `axis`, that a mask leaves out."""

        def make() -> Array:
            x = self.read(atom)
            along = _compat.broadcast_in_dim(mask, x.shape, (axis,))
            return lax.select(along, x, lax.full_like(x, 0))

        return self._once((atom, axis, id(mask)), mask, make=make)

    def narrowed(self, mask: Array, chosen: Any, *, value: bool) -> Array:
        """The examples of a mask for which a variable, bool[examples], has this value."""

        def make() -> Array:
            own = lax.reshape(self.read(chosen), mask.shape)
            return mask & (own if value else ~own)

        return self._once((chosen, value, id(mask)), mask, make=make)

    def count(self, mask: Array) -> Array:
        """i32[]: how many examples a mask selects."""
        return self._once(("count", id(mask)), mask, make=lambda: jnp.sum(mask, dtype=np.int32))

    def loop_sum(self, loop: Loop, number: int, *, mask: Array) -> Array:
        """The sum of a loop's result; one loop computes the sums of all its results."""
        key = (loop, number, id(mask))
        if key not in self._made:  # for a mask of its own, which few loops are asked for
            self._run_loop(_Parts.of(loop, (), summed=(number,)), mask)
        return self._made[key][0]

    def run(self, needs: Needs, mask: Array) -> None:
        """Compute all variables that are needed."""

        def step(eqn: Any) -> list[Any]:
            if id(eqn) not in needs.loops:
                return _compat.bind_equation(eqn, [self.read(atom) for atom in eqn.invars])
            loop, summed = needs.loops[id(eqn)]
            wanted = [i for i, var in enumerate(eqn.outvars) if var in needs.variables]
            made = self._run_loop(_Parts.of(loop, wanted, summed=summed), mask)
            return [made.get(number) for number in range(len(eqn.outvars))]

        self._env.walk(needs.eqns, step)

    def _run_loop(self, parts: "_Parts", mask: Array) -> dict[int, Any]:
        """The results that a loop computes as they are, by number; `loop_sum` finds its sums."""
        loop, body = parts.loop, parts.loop.body.jaxpr
        shared = {body.invars[i]: self.read(loop.eqn.invars[i]) for i in parts.consts}

        def step(carry: Any, xs: Any) -> Any:
            states, totals = carry
            values = shared | {loop.carried(i): x for i, x in zip(parts.kept, states, strict=True)}
            values |= {body.invars[i]: x for i, x in zip(parts.xs, xs, strict=True)}
            scope = Scope(values)
            scope.run(parts.needs, mask)
            new = [_as_declared(body.outvars[i], scope.read(body.outvars[i])) for i in parts.kept]
            sums = [
                total + scope.sum(loop.sums[i], mask)
                for i, total in zip(parts.added, totals, strict=True)
            ]
            ys = [scope.read(body.outvars[i]) for i in parts.stacked]
            return (new, sums), (ys, [scope.sum(loop.sums[i], mask) for i in parts.stacked_sums])

        inits = [self.read(loop.eqn.invars[loop.consts + i]) for i in parts.kept]
        states = [_as_declared(loop.carried(i), x) for i, x in zip(parts.kept, inits, strict=True)]
        totals = [self.sum(loop.starts[i], mask) for i in parts.added]
        xs = [self.read(loop.eqn.invars[i]) for i in parts.xs]
        options = {name: loop.eqn.params[name] for name in ("length", "reverse", "unroll")}
        (states, totals), (ys, y_sums) = lax.scan(step, (states, totals), xs, **options)
        sums = zip((*parts.added, *parts.stacked_sums), (*totals, *y_sums), strict=True)
        self._made.update(((loop, i, id(mask)), (value, mask)) for i, value in sums)
        return dict(zip((*parts.kept, *parts.stacked), (*states, *ys), strict=True))

    def _once(self, key: Any, mask: Array, *, make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = (make(), mask)
        return self._made[key][0]


@dataclasses.dataclass(frozen=True)
class _Parts:
    """What one run of a loop computes, and what it reads.

    Attributes:
        loop: The loop.
        needs: The part of its body that is run.
        kept: The carries, by number, that are computed as they are.
        added: The carries, by number, that are summed over examples.
        stacked: The stacked results, by number, that are computed as they are.
        stacked_sums: The stacked results, by number, that are summed over examples.
        consts: The operands, by number, that each step reads as they are.
        xs: The operands, by number, of which each step reads a slice.
    """

    loop: Loop
    needs: Needs
    kept: Sequence[int]
    added: Sequence[int]
    stacked: Sequence[int]
    stacked_sums: Sequence[int]
    consts: Sequence[int]
    xs: Sequence[int]

    @staticmethod
    def of(loop: Loop, wanted: Iterable[int], *, summed: Iterable[int]) -> "_Parts":
        """The parts of a run that computes some results as they are, and sums of some."""
        results, needs = loop.needs(wanted, summed)
        read = [i for i, var in enumerate(loop.body.jaxpr.invars) if var in needs.variables]
        return _Parts(
            loop,
            needs,
            kept=[i for i in sorted(results) if i < loop.carries],
            added=[i for i in sorted(summed) if i < loop.carries],
            stacked=[i for i in sorted(results) if i >= loop.carries],
            stacked_sums=[i for i in sorted(summed) if i >= loop.carries],
            consts=[i for i in read if i < loop.consts],
            xs=[i for i in read if i >= loop.consts + loop.carries],
        )


def _as_declared(variable: Any, x: Any) -> Any:
    """A carry in its declared dtype, which a sum in 32 bits may have widened."""
    aval = variable.aval
    return x if _compat.is_extended(aval.dtype) else lax.convert_element_type(x, aval.dtype)


def inlined(closed: Any) -> Any:
    """A closed jaxpr with its calls of other jaxprs inlined, but for loops and branches."""
    structs = [
        jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype, weak_type=var.aval.weak_type)
        for var in closed.jaxpr.invars
    ]

    def run(*operands: Any) -> list[Any]:
        return _inline(closed, operands)

    return _compat.make_jaxpr(run)(*structs)


def _inline(closed: Any, operands: Sequence[Any]) -> list[Any]:
    return _compat.evaluate(closed, operands, step=_inline_equation)


def _inline_equation(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    nested, params = nested_jaxpr(eqn), eqn.params
    if nested is not None:
        return _inline(nested, operands)
    if eqn.primitive.name == "remat2":
        if params["differentiated"] and params["prevent_cse"]:
            operands = _compat.optimization_barrier(operands)
        return _inline(_compat.closed(params["jaxpr"]), operands)
    return _compat.bind_equation(eqn, operands)
