"""Control flow and calls: loops over ragged axes, branches, and primitives that wrap a jaxpr."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking._context import RuleContext
from shapeexec.masking._fill import is_padded
from shapeexec.masking._registry import register, register_nested

for _name in ("jit", "pjit"):
    register_nested(_name, lambda params: params["jaxpr"])
for _name in ("composite", "fused_call", "xla_metadata_call"):
    register_nested(_name, lambda params: params["jaxpr"])
for _name in ("closed_call", "core_call", "call", "custom_jvp_call", "custom_vjp_call"):
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
    return ctx.interpret(jaxpr, *operands)


@register("custom_linear_solve")
def custom_linear_solve(
    ctx: RuleContext, *operands: Array, const_lengths: Any, jaxprs: Any, **_: Any
) -> Any:
    """Run: the solver alone; the other functions serve differentiation."""
    counts = list(const_lengths)
    first = sum(counts[: list(const_lengths._fields).index("solve")])
    consts = operands[first : first + const_lengths.solve]
    return ctx.interpret(jaxprs.solve, *consts, *operands[sum(counts) :])


@register("call_hi_primitive")
def call_hi_primitive(ctx: RuleContext, *operands: Array, **_: Any) -> Any:
    """Run: the plain JAX function that stands behind the primitive, traced at the same dims."""
    structs = [
        jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype, weak_type=var.aval.weak_type)
        for var in ctx.eqn.invars
    ]
    traced = jax.jit(_compat.expand_hi_primitive(ctx.params)).trace(*structs)
    return ctx.interpret(traced.jaxpr, *operands)


def _as_declared(variables: Any, arrays: Any) -> list[Any]:
    """Arrays in the dtypes of a body's variables: a carry must not drift."""
    return [
        array
        if _compat.is_extended(var.aval.dtype)
        else lax.convert_element_type(array, var.aval.dtype)
        for array, var in zip(arrays, variables, strict=True)
    ]


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
    """Run: over all positions; the carry is frozen at those behind the valid length."""
    consts_count, carry_count = _compat.scan_counts(ctx.params, len(operands))
    consts = operands[:consts_count]
    init = operands[consts_count : consts_count + carry_count]
    xs = operands[consts_count + carry_count :]
    valid = ctx.length(ctx.params["length"])
    outvars = jaxpr.jaxpr.outvars

    def body(*operands: Any) -> Any:
        return tuple(_as_declared(outvars, ctx.interpret(jaxpr, *consts, *operands)))

    def step(carry: Any, position_and_xs: Any) -> Any:
        position, *x = position_and_xs
        if not is_padded(valid):
            out = body(*carry, *x)
        elif _must_not_run_on_padding(jaxpr):
            out = lax.cond(position < valid, body, skipped, *carry, *x)
        else:
            out = body(*carry, *x)
            new = [jnp.where(position < valid, n, o) for n, o in zip(out, carry, strict=False)]
            out = (*new, *out[carry_count:])
        return out[:carry_count], out[carry_count:]

    def skipped(*operands: Any) -> Any:
        ys = outvars[carry_count:]
        return (*operands[:carry_count], *(_any_of(ctx, var.aval) for var in ys))

    init = _as_declared(jaxpr.jaxpr.invars[consts_count:][:carry_count], init)
    positions = jnp.arange(length, dtype=np.int32)
    carry, ys = lax.scan(
        step, tuple(init), (positions, *xs), length=length, reverse=reverse, unroll=unroll
    )
    return [*carry, *ys]


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
    """Run: condition and body; a bound such as `s` is the true size, so no trip is wasted."""
    cond_consts = operands[:cond_nconsts]
    body_consts = operands[cond_nconsts : cond_nconsts + body_nconsts]
    init = operands[cond_nconsts + body_nconsts :]

    def cond(carry: Any) -> Any:
        (go_on,) = ctx.interpret(cond_jaxpr, *cond_consts, *carry)
        return go_on

    def body(carry: Any) -> Any:
        out = ctx.interpret(body_jaxpr, *body_consts, *carry)
        return tuple(_as_declared(body_jaxpr.jaxpr.outvars, out))

    return lax.while_loop(cond, body, tuple(map(jnp.asarray, init)))


@register("cond")
def cond(ctx: RuleContext, index: Array, *operands: Array, branches: Any, **_: Any) -> Any:
    """Run: each branch, at the same capacities."""

    def branch(jaxpr: Any) -> Any:
        outvars = jaxpr.jaxpr.outvars
        return lambda *args: tuple(_as_declared(outvars, ctx.interpret(jaxpr, *args)))

    functions = [branch(jaxpr) for jaxpr in branches]
    platforms = ctx.params.get("branches_platforms")
    if platforms is None:
        return lax.switch(index, functions, *operands)
    # `lax.platform_dependent`: only the branch of the device at hand is compiled.
    per_platform = {
        name: function
        for names, function in zip(platforms, functions, strict=True)
        for name in names or ()
    }
    default = functions[-1] if platforms[-1] is None else None
    return lax.platform_dependent(*operands, default=default, **per_platform)
