"""Control flow and calls: loops over ragged axes, branches, and primitives that wrap a jaxpr.

What is known of padding goes into bodies and comes out of them. What a loop carries is known only
as far as it holds before the first step and after each: see `_invariant`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking._context import RuleContext
from shapeexec.masking._extents import holds_dim
from shapeexec.masking._fill import is_padded, valid_mask
from shapeexec.masking._knowledge import Known, constant, nothing_known, nothing_known_of
from shapeexec.masking._registry import register, register_nested
from shapeexec.masking._values import Value, values_of

for _name in ("jit", "pjit"):
    register_nested(_name, lambda params: params["jaxpr"])
# jax 0.12 has some of these with a call_.
for _name in ("composite", "eval_jaxpr", "fused_call", "xla_metadata_call"):
    register_nested(_name, lambda params: params["jaxpr" if "jaxpr" in params else "call_jaxpr"])
for _name in (
    *("closed_call", "core_call", "call", "custom_jvp_call", "custom_vjp_call", "program_order"),
):
    register_nested(_name, lambda params: params["call_jaxpr"])
for _name in ("custom_vmap_call", "custom_partitioning"):
    register_nested(_name, lambda params: params["call"])
register_nested("linear_call", lambda params: params["callee"])
register_nested("remat_opt", lambda params: params["fwd_jaxpr"])


@register("platform_index", "create_token", "after_all")
def without_axes(ctx: RuleContext, *operands: Any, **params: Any) -> Any:
    """Keep: nothing here has an axis."""
    return ctx.bind(*operands, **params)


@register("remat2")
def remat(ctx: RuleContext, *operands: Array, jaxpr: Any, **params: Any) -> Any:
    """Run: the wrapped function, kept apart from the forward pass where JAX would keep it apart."""
    if params["differentiated"] and params["prevent_cse"]:
        # What JAX's own lowering does: XLA must not merge the recomputation with the first.
        operands = lax.optimization_barrier(operands)
    held = [value.of(array) for value, array in zip(ctx.values, operands, strict=True)]
    return ctx.interpret_values(jaxpr, held)


@register("custom_linear_solve")
def custom_linear_solve(
    ctx: RuleContext, *operands: Array, const_lengths: Any, jaxprs: Any, **_: Any
) -> Any:
    """Run: the solver alone; the other functions serve differentiation."""
    counts = list(const_lengths)
    first = sum(counts[: list(const_lengths._fields).index("solve")])
    consts = operands[first : first + const_lengths.solve]
    return ctx.interpret(jaxprs.solve, *consts, *operands[sum(counts) :])


def _as_declared(variables: Any, values: Sequence[Value]) -> list[Value]:
    """Values in the dtypes of a body's variables: a carry must not drift."""
    return [
        value
        if _compat.is_extended(var.aval.dtype)
        else value.of(lax.convert_element_type(value.array, var.aval.dtype))
        for value, var in zip(values, variables, strict=True)
    ]


def _arrays(values: Sequence[Value]) -> tuple[Any, ...]:
    return tuple(value.array for value in values)


_ROUNDS = 3
"""How often an invariant is weakened before nothing is claimed: per fact it takes two at most."""


def _invariant(
    init: Sequence[Value], step: Callable[[Sequence[Value]], Sequence[Value]]
) -> list[Known]:
    """What holds of a loop's carry before the first step and after each one.

    It is assumed of the carry what holds of the initial one, and weakened to what `step` keeps of
    it until all is kept. `step` is traced for what it tells, and computes nothing.
    """
    assumed = [dataclasses.replace(value.known, role=None) for value in init]
    for _ in range(_ROUNDS):
        kept = _known_after(step, init, assumed)
        weaker = [a.joined(b) for a, b in zip(assumed, kept, strict=True)]
        if weaker == assumed:
            return assumed
        assumed = weaker
    return _nothing_known(init)


def _known_after(
    step: Callable[[Sequence[Value]], Sequence[Value]],
    init: Sequence[Value],
    assumed: Sequence[Known],
) -> list[Known]:
    """What is known of the carry after a step, if `assumed` is known before it."""
    told: list[Known] = []

    def run(*arrays: Any) -> Any:
        held = values_of(arrays, assumed)
        results = step(held)
        told.extend(value.known for value in results)
        return _arrays(results)

    jax.eval_shape(run, *_arrays(init))
    return told


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

    Behind the last valid step a carry goes where it wants if nobody reads it in the end.
    """
    consts_count, carry_count = _compat.scan_counts(ctx.params, len(operands))
    consts = ctx.values[:consts_count]
    carried = jaxpr.jaxpr.invars[consts_count:][:carry_count]
    init = _as_declared(carried, ctx.values[consts_count : consts_count + carry_count])
    xs = ctx.values[consts_count + carry_count :]
    valid = ctx.length(ctx.params["length"])
    outvars = jaxpr.jaxpr.outvars
    skips = is_padded(valid) and _must_not_run_on_padding(jaxpr)
    frozen = _frozen(ctx, carried, is_padded(valid) and not skips, reverse)
    fills = [_slice_fill(ctx, number) for number in range(carry_count, len(ctx.out_shapes))]

    def run(carry: Sequence[Value], x: Sequence[Any]) -> list[Value]:
        held = [Value(part, _of_slice(whole.known)) for part, whole in zip(x, xs, strict=True)]
        out = ctx.interpret_values(jaxpr, [*consts, *carry, *held])
        return _as_declared(outvars, out)

    def run_or_skip(is_valid: Array, carry: Sequence[Any], x: Sequence[Any]) -> list[Value]:
        told: list[Known] = []

        def body(carry: Any, x: Any) -> Any:
            held = values_of(carry, invariant)
            out = run(held, x)
            told[:] = [value.known for value in out]
            return _arrays(out)

        def skipped(carry: Any, x: Any) -> Any:
            del x
            return (*carry, *(_any_of(ctx, var.aval) for var in outvars[carry_count:]))

        arrays = lax.cond(is_valid, body, skipped, tuple(carry), tuple(x))
        told[carry_count:] = [nothing_known_of(var.aval) for var in outvars[carry_count:]]
        return values_of(arrays, told)

    def step(carry: Any, position_and_xs: Any) -> Any:
        position, *x = position_and_xs
        held = values_of(carry, invariant)
        out = run_or_skip(position < valid, carry, x) if skips else run(held, x)
        new = [
            jnp.where(position < valid, value.array, old) if freeze else value.array
            for value, old, freeze in zip(out, carry, frozen, strict=False)
        ]
        slices = [
            fill(value, position) for fill, value in zip(fills, out[carry_count:], strict=True)
        ]
        stacked[:] = [value.known for value in slices]
        return tuple(new), _arrays(slices)

    stacked: list[Known] = []
    positions = jnp.arange(length, dtype=np.int32)
    invariant = _nothing_known(init)
    if length and _is_ragged(carried):
        some = [lax.index_in_dim(x.array, 0, keepdims=False) for x in xs]
        invariant = _invariant(init, lambda carry: run(carry, some)[:carry_count])
    carry, ys = lax.scan(
        step,
        _arrays(init),
        (positions, *_arrays(xs)),
        length=length,
        reverse=reverse,
        unroll=unroll,
    )
    ends = values_of(carry, invariant)
    results = values_of(ys, stacked)
    return [*ends, *results]


def _of_slice(known: Known) -> Known:
    """What is known of the slices of an array along its first axis."""
    return Known(known.whole, known.axes[1:])


def _is_ragged(variables: Any) -> bool:
    return any(holds_dim(tuple(var.aval.shape)) for var in variables)


def _frozen(ctx: RuleContext, carried: Any, is_ragged: bool, reverse: bool) -> list[bool]:
    """Per carry whether it has to stand still in the steps of the padding.

    Those come last, so that a carry that nobody reads in the end may go on; or first, if reversed.
    """
    if not is_ragged:
        return [False] * len(carried)
    frozen = [bool(reverse or used) for used in ctx.is_used[: len(carried)]]
    dim = ctx.params["length"]
    for var, freeze in zip(carried, frozen, strict=True):
        what = f"{_compat.describe_aval(var.aval)} carried over {dim}"
        action = "frozen behind the last step" if freeze else "none: nobody reads it in the end"
        ctx.note_mask(what, action, masked=freeze)
    return frozen


def _slice_fill(ctx: RuleContext, number: int) -> Callable[[Value, Array], Value]:
    """What makes of a result's slice and its position the slice as it is stacked.

    A result that is filled where it is made is filled here, and not in a pass of its own.
    """
    wish, lengths = ctx.wish(number), ctx.out_lengths[number]

    def as_it_is(value: Value, position: Array) -> Value:
        del position
        return Value(value.array, Known(value.known.whole, (value.known.whole, *value.known.axes)))

    if wish is None:
        return as_it_is
    axes = sorted(wish.axes)
    ctx.note_filled(number, axes)

    def filled(value: Value, position: Array) -> Value:
        within = [axis - 1 for axis in axes if axis]
        mask = valid_mask(value.array.shape, lengths[1:], within)
        if 0 in axes:
            is_valid = position < lengths[0]
            mask = (
                jnp.broadcast_to(is_valid, value.array.shape) if mask is None else mask & is_valid
            )
        assert mask is not None
        array = lax.select(mask, value.array, lax.full_like(value.array, wish.value))
        known = as_it_is(value, position).known.filled(axes, constant(wish.value))
        return Value(array, known)

    return filled


def _must_not_run_on_padding(jaxpr: Any) -> bool:
    """Whether a body does what is seen outside of it, or has a loop that may never end."""
    return bool(jaxpr.effects) or any(
        eqn.primitive.name in ("while", "pure_callback") for eqn in _compat.equations(jaxpr.jaxpr)
    )


def _any_of(ctx: RuleContext, aval: Any) -> Any:
    """An array that nobody reads."""
    return lax.empty(ctx.extents.capacities(aval.shape), aval.dtype)


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
    cond_consts = ctx.values[:cond_nconsts]
    body_consts = ctx.values[cond_nconsts : cond_nconsts + body_nconsts]
    carried = body_jaxpr.jaxpr.outvars
    init = [
        value.of(jnp.asarray(value.array)) for value in ctx.values[cond_nconsts + body_nconsts :]
    ]

    def step(carry: Sequence[Value]) -> list[Value]:
        out = ctx.interpret_values(body_jaxpr, [*body_consts, *carry])
        return _as_declared(carried, out)

    invariant = _invariant(init, step) if _is_ragged(carried) else _nothing_known(init)

    def held(carry: Any) -> list[Value]:
        return values_of(carry, invariant)

    rows = ctx.extents.lengths(cond_jaxpr.jaxpr.outvars[0].aval.shape)

    def goes_on(carry: Any) -> Array:
        (found,) = ctx.interpret_values(cond_jaxpr, [*cond_consts, *held(carry)])
        is_row = valid_mask(found.array.shape, rows, range(len(rows)))
        return found.array if is_row is None else found.array & is_row

    def body(carry: Any) -> Any:
        after = _arrays(step(held(carry)))
        if not rows:
            return after
        is_on = goes_on(carry)
        return tuple(
            jnp.where(lax.broadcast_in_dim(is_on, new.shape, range(is_on.ndim)), new, old)
            for new, old in zip(after, carry, strict=True)
        )

    go_on = (lambda carry: goes_on(carry).any()) if rows else goes_on
    return held(lax.while_loop(go_on, body, _arrays(init)))


@register("cond")
def cond(ctx: RuleContext, index: Array, *operands: Array, branches: Any, **_: Any) -> Any:
    """Run: each branch, at the same capacities; of its results is known what all branches tell."""
    told: dict[int, list[Known]] = {}

    def branch(number: int, jaxpr: Any) -> Any:
        def run(*arrays: Any) -> Any:
            held = [value.of(array) for value, array in zip(ctx.values[1:], arrays, strict=True)]
            out = _as_declared(jaxpr.jaxpr.outvars, ctx.interpret_values(jaxpr, held))
            told[number] = [value.known for value in out]
            return _arrays(out)

        return run

    functions = [branch(i, jaxpr) for i, jaxpr in enumerate(branches)]
    platforms = ctx.params.get("branches_platforms")
    if platforms is None:
        arrays = lax.switch(index, functions, *operands)
    else:  # `lax.platform_dependent`: only the branch of the device at hand is compiled.
        per_platform = {
            name: function
            for names, function in zip(platforms, functions, strict=True)
            for name in names or ()
        }
        default = functions[-1] if platforms[-1] is None else None
        arrays = lax.platform_dependent(*operands, default=default, **per_platform)
    first, *rest = told.values()
    for other in rest:
        first = [a.joined(b) for a, b in zip(first, other, strict=True)]
    return values_of(arrays, first)
