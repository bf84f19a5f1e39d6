"""Control flow and calls: loops over ragged axes, branches, and primitives that wrap a jaxpr.

Facts about padding flow into bodies and out of them. A fact about a loop's carry is kept if it
holds before the first step and after each step, see `_invariant`. The interpreter runs the bodies.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking._context import Result, RuleContext
from shapeexec.masking._extents import holds_dim
from shapeexec.masking._fill import Length, is_padded, valid_mask
from shapeexec.masking._knowledge import Known, constant, nothing_known, nothing_known_of
from shapeexec.masking._registry import register, register_nested
from shapeexec.masking._values import Value, values_of


def _register_nested(name: str) -> None:
    # A function of this module: saving asks each rule for the library that it is from.
    register_nested(name, lambda params: _compat.body_of(name, params))


for _name in _compat.BODY_OF:
    if _name != "remat2":  # `remat` keeps its barrier
        _register_nested(_name)


@register("platform_index", "create_token", "after_all")
def without_axes(ctx: RuleContext, *operands: Any, **params: Any) -> Any:
    """Keep: nothing here has an axis."""
    return ctx.bind(*operands, **params)


@register("remat2")
def remat(ctx: RuleContext, *operands: Array, jaxpr: Any, **params: Any) -> Any:
    """Run: the wrapped function, behind an optimization barrier wherever JAX inserts one."""
    if params["differentiated"] and params["prevent_cse"]:
        # As in JAX's own lowering: XLA must not merge the recomputation with the forward pass.
        operands = _compat.optimization_barrier(operands)
    values = [own.value.of(x) for own, x in zip(ctx.operands, operands, strict=True)]
    return ctx.interpret(jaxpr, *values)


@register("custom_linear_solve")
def custom_linear_solve(
    ctx: RuleContext, *operands: Array, const_lengths: Any, jaxprs: Any, **_: Any
) -> Any:
    """Run: the solver alone; the other functions serve differentiation."""
    counts = list(const_lengths)
    first = sum(counts[: list(const_lengths._fields).index("solve")])
    consts = operands[first : first + const_lengths.solve]
    return _arrays(ctx.interpret(jaxprs.solve, *consts, *operands[sum(counts) :]))


def _as_declared(variables: Any, values: Sequence[Value]) -> list[Value]:
    """Values in the dtypes of a body's variables: a carry must keep its own."""
    return [
        value
        if _compat.is_extended(var.aval.dtype)
        else value.of(lax.convert_element_type(value.array, var.aval.dtype))
        for value, var in zip(values, variables, strict=True)
    ]


def _arrays(values: Sequence[Value]) -> tuple[Any, ...]:
    return tuple(value.array for value in values)


class _Traced:
    """A function of arrays, for JAX's control flow, that returns the arrays of `Value`s.

    JAX passes no facts on, so the facts of the last trace are kept here.

    Args:
        function: A function that returns `Value`s.
    """

    def __init__(self, function: Callable[..., Sequence[Value]]) -> None:
        self._function = function
        self.is_traced = False
        self.known: list[Known] = []

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """The arrays of the results."""
        values = self._function(*args)
        self.is_traced, self.known = True, [value.known for value in values]
        return _arrays(values)


_ROUNDS = 3
"""How often an invariant is weakened before it is given up; one fact takes two rounds at most."""


def _invariant(
    init: Sequence[Value], step: Callable[[Sequence[Value]], Sequence[Value]]
) -> list[Known]:
    """The facts that hold of a loop's carry before the first step and after each one.

    The facts about the initial carry are weakened to those that `step` keeps, until it keeps all.
    """

    def stepped(known: Sequence[Known], *arrays: Any) -> Sequence[Value]:
        return step(values_of(arrays, known))

    assumed = [dataclasses.replace(value.known, role=None) for value in init]
    for _ in range(_ROUNDS):
        traced = _Traced(functools.partial(stepped, assumed))
        _compat.eval_shape(traced, *_arrays(init))
        weaker = [a.joined(b) for a, b in zip(assumed, traced.known, strict=True)]
        if weaker == assumed:
            return assumed
        assumed = weaker
    return _nothing_known(init)


def _nothing_known(values: Sequence[Value]) -> list[Known]:
    return [nothing_known(len(value.known.axes), value.array.dtype) for value in values]


@register("scan")
def scan(
    ctx: RuleContext,
    *operands: Array,
    jaxpr: Any,
    length: int,
    reverse: bool,
    unroll: int,
    **_: Any,
) -> Any:
    """Run: over all positions; the carry is frozen at those behind the valid length.

    A carry that is not read after the loop may change there.
    """
    loop = _Scan.of(ctx, jaxpr)
    count = len(loop.init)
    frozen = _frozen(ctx, loop, reverse=reverse)
    fills = [_slice_fill(result) for result in ctx.results[count:]]
    positions = lax.iota(np.int32, length)
    invariant = loop.invariant() if length else _nothing_known(loop.init)

    def step(carry: Any, position: Array, *x: Array) -> list[Value]:
        out = loop.step(position, values_of(carry, invariant), x)
        new = [
            value.of(jnp.where(position < loop.length, value.array, old)) if freeze else value
            for value, old, freeze in zip(out, carry, frozen, strict=False)
        ]
        return [*new, *(fill(x, position) for fill, x in zip(fills, out[count:], strict=True))]

    traced = _Traced(step)

    def flat(carry: Any, position_and_xs: Any) -> Any:
        arrays = traced(carry, *position_and_xs)
        return arrays[:count], arrays[count:]

    xs = (positions, *_arrays(loop.xs))
    carry, ys = lax.scan(flat, _arrays(loop.init), xs, length, reverse, unroll)
    return values_of((*carry, *ys), [*invariant, *traced.known[count:]])


@dataclasses.dataclass(frozen=True)
class _Scan:
    """A `scan` equation at capacity.

    Attributes:
        ctx: The equation.
        jaxpr: The body.
        consts: The operands that each step reads.
        init: The initial carry.
        xs: The operands of which each step reads a slice.
        length: How many steps are valid.
    """

    ctx: RuleContext
    jaxpr: Any
    consts: Sequence[Value]
    init: Sequence[Value]
    xs: Sequence[Value]
    length: Length

    @staticmethod
    def of(ctx: RuleContext, jaxpr: Any) -> "_Scan":
        """The parts of a `scan` equation whose body is `jaxpr`."""
        values = [operand.value for operand in ctx.operands]
        first, count = _compat.scan_counts(ctx.params, len(values))
        init = _as_declared(jaxpr.jaxpr.invars[first:][:count], values[first:][:count])
        length = ctx.extents.length(ctx.params["length"])
        return _Scan(ctx, jaxpr, values[:first], init, values[first + count :], length)

    @property
    def carried(self) -> Sequence[Any]:
        """The variables of the carry in the body."""
        return self.jaxpr.jaxpr.invars[len(self.consts) :][: len(self.init)]

    @property
    def skips(self) -> bool:
        """Whether the body must not run at the positions of padding."""
        return is_padded(self.length) and _must_not_run_on_padding(self.jaxpr)

    def invariant(self) -> list[Known]:
        """The facts that hold of the carry before and after each step."""
        if not _is_ragged(self.carried):
            return _nothing_known(self.init)
        some = [lax.index_in_dim(x.array, 0, keepdims=False) for x in self.xs]
        return _invariant(self.init, lambda carry: self.body(carry, some)[: len(self.init)])

    def step(self, position: Array, carry: Sequence[Value], x: Sequence[Any]) -> list[Value]:
        """The new carry, and slices of the results; any arrays where the body is skipped."""
        if not self.skips:
            return self.body(carry, x)
        variables = self.jaxpr.jaxpr.outvars[len(carry) :]
        known = [value.known for value in carry]

        @_Traced
        def run(carry: Any, x: Any) -> list[Value]:
            return self.body(values_of(carry, known), x)

        def skipped(carry: Any, x: Any) -> Any:
            del x
            return (*carry, *(_any_of(self.ctx, var.aval) for var in variables))

        arrays = _compat.cond(position < self.length, run, skipped, _arrays(carry), tuple(x))
        unknown = [nothing_known_of(var.aval) for var in variables]
        return values_of(arrays, [*run.known[: len(carry)], *unknown])

    def body(self, carry: Sequence[Value], x: Sequence[Any]) -> list[Value]:
        """The new carry, and slices of the results."""
        slices = [
            Value(part, _of_slice(whole.known)) for part, whole in zip(x, self.xs, strict=True)
        ]
        out = self.ctx.interpret(self.jaxpr, *self.consts, *carry, *slices)
        return _as_declared(self.jaxpr.jaxpr.outvars, out)


def _of_slice(known: Known) -> Known:
    """The facts about the slices of an array along its first axis."""
    return Known(known.whole, known.axes[1:])


def _is_ragged(variables: Any) -> bool:
    return any(holds_dim(tuple(var.aval.shape)) for var in variables)


_UNREAD = "none: nothing reads it after the loop"


def _frozen(ctx: RuleContext, loop: _Scan, *, reverse: bool) -> list[bool]:
    """Per carry whether it has to keep its value in the steps of the padding.

    The steps of the padding come last, so a carry that nothing reads after the loop may change in
    them. In a reversed loop they come first, so each carry is frozen.
    """
    if not is_padded(loop.length) or loop.skips:
        return [False] * len(loop.init)
    frozen = [reverse or result.is_used for result in ctx.results[: len(loop.init)]]
    dim = ctx.params["length"]
    for var, freeze in zip(loop.carried, frozen, strict=True):
        what = f"{_compat.describe_aval(var.aval)} carried over {dim}"
        action = "frozen behind the last step" if freeze else _UNREAD
        ctx.note(what, action, masked=freeze)
    return frozen


def _slice_fill(result: Result) -> Callable[[Value, Array], Value]:
    """`fill(slice, position)`: a slice of a stacked result, with the facts about the stack.

    If all readers request a fill, it is done in the loop and not in one more pass over memory.
    """
    request, lengths, shape = result.requested, result.lengths, result.capacities[1:]

    def unfilled(value: Value, position: Array) -> Value:
        del position
        return Value(value.array, Known(value.known.whole, (value.known.whole, *value.known.axes)))

    if request is None:
        return unfilled
    axes = sorted(request.axes)
    result.note_filled(axes)

    def filled(value: Value, position: Array) -> Value:
        within = [axis - 1 for axis in axes if axis]
        mask = valid_mask(shape, lengths[1:], axes=within)
        if 0 in axes:
            is_valid = position < lengths[0]
            mask = jnp.broadcast_to(is_valid, shape) if mask is None else mask & is_valid
        assert mask is not None
        array = lax.select(mask, value.array, lax.full_like(value.array, request.value))
        known = unfilled(value, position).known.filled(axes, constant(request.value))
        return Value(array, known)

    return filled


_UNSAFE_ON_PADDING = frozenset({"while", "pure_callback"})
"""Primitives that may never end, or hand padding to user code."""


def _must_not_run_on_padding(jaxpr: Any) -> bool:
    """Whether a body has side effects, or a loop that may never end on padding."""
    return bool(jaxpr.effects) or any(
        eqn.primitive.name in _UNSAFE_ON_PADDING for eqn in _compat.equations(jaxpr.jaxpr)
    )


def _any_of(ctx: RuleContext, aval: Any) -> Any:
    """An array of unspecified values, for a result that is not read."""
    return _compat.empty(ctx.extents.capacities(aval.shape), aval.dtype)


def _where_rows(
    is_on: Array, arrays: Sequence[Array], *, otherwise: Sequence[Array]
) -> tuple[Array, ...]:
    """`arrays` in the rows where `is_on`, bool[rows], is True; `otherwise` in all others."""
    return tuple(
        jnp.where(_compat.broadcast_in_dim(is_on, new.shape, range(is_on.ndim)), new, old)
        for new, old in zip(arrays, otherwise, strict=True)
    )


@register("while")
def while_(
    ctx: RuleContext,
    *operands: Array,
    cond_jaxpr: Any,
    body_jaxpr: Any,
    cond_nconsts: int,
    body_nconsts: int,
    **_: Any,
) -> Any:
    """Run: condition and body; a bound such as `s` is the true size, so no trip is wasted.

    A condition per row, which `vmap` makes, is False in padded rows: they might never end.
    """
    values, first = [own.value for own in ctx.operands], cond_nconsts + body_nconsts
    cond_consts, body_consts = values[:cond_nconsts], values[cond_nconsts:first]
    carried = body_jaxpr.jaxpr.outvars
    init = [value.of(_compat.asarray(value.array)) for value in values[first:]]

    def step(carry: Sequence[Value]) -> list[Value]:
        return _as_declared(carried, ctx.interpret(body_jaxpr, *body_consts, *carry))

    invariant = _invariant(init, step) if _is_ragged(carried) else _nothing_known(init)
    row_dims = cond_jaxpr.jaxpr.outvars[0].aval.shape
    row_capacities, rows = ctx.extents.capacities(row_dims), ctx.extents.lengths(row_dims)

    def goes_on(carry: Any) -> Array:
        (found,) = ctx.interpret(cond_jaxpr, *cond_consts, *values_of(carry, invariant))
        is_row = valid_mask(row_capacities, rows, axes=range(len(rows)))
        return found.array if is_row is None else found.array & is_row

    def body(carry: Any) -> Any:
        after = _arrays(step(values_of(carry, invariant)))
        return _where_rows(goes_on(carry), after, otherwise=carry) if rows else after

    def go_on(carry: Any) -> Array:
        return goes_on(carry).any() if rows else goes_on(carry)

    return values_of(lax.while_loop(go_on, body, _arrays(init)), invariant)


@register("cond")
def cond(ctx: RuleContext, index: Array, *operands: Array, branches: Any, **_: Any) -> Any:
    """Run: each branch, at the same capacities; a fact holds of a result if each branch has it."""
    values = [operand.value for operand in ctx.operands[1:]]

    def branch(jaxpr: Any) -> _Traced:
        def run(*arrays: Any) -> list[Value]:
            own = [value.of(array) for value, array in zip(values, arrays, strict=True)]
            return _as_declared(jaxpr.jaxpr.outvars, ctx.interpret(jaxpr, *own))

        return _Traced(run)

    functions = [*map(branch, branches)]
    platforms = ctx.params.get("branches_platforms")
    if platforms is None:
        arrays = _compat.switch(index, functions, *operands)
    else:  # `lax.platform_dependent`: only the branch of the device at hand is compiled.
        per_platform = {
            name: function
            for names, function in zip(platforms, functions, strict=True)
            for name in names or ()
        }
        default = functions[-1] if platforms[-1] is None else None
        arrays = _compat.platform_dependent(*operands, default=default, **per_platform)
    first, *rest = (function.known for function in functions if function.is_traced)
    for other in rest:
        first = [a.joined(b) for a, b in zip(first, other, strict=True)]
    return values_of(arrays, first)
