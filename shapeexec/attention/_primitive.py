"""The three primitives of attention, with their derivatives, batching and lowering.

`attention` is the function, `attention_tangent` its derivative along a direction, and
`attention_gradient` the transpose of that. They are traced at any size, symbolic ones too; the back
end is chosen in `_run`, when they are lowered and sizes are numbers.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.interpreters import ad, batching, mlir

from shapeexec import _compat
from shapeexec._errors import BackendError
from shapeexec.attention import _run
from shapeexec.attention._call import KEY_AND_VALUE, Call, Operands
from shapeexec.attention._early import compiled_early
from shapeexec.attention._partition import run_partitioned
from shapeexec.attention.masks._value import wide

attention_p = _compat.Primitive("attention")
tangent_p = _compat.Primitive("attention_tangent")
gradient_p = _compat.Primitive("attention_gradient")


def attention(operands: Operands, call: Call) -> tuple[Array, Array]:
    """The output [B, T, N, V], and the log-sum-exp [B, N, T] of scaled and biased scores.

    The latter is f32, or f64 for operands of f64.
    """
    out, logsumexp = attention_p.bind(*_compat.varying_alike(*operands.flat()), call=call)
    return out, logsumexp


# Shapes


def _result_avals(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> list[Any]:  # noqa: PLR0917 - the operands of attention
    (batch, queries, heads, _), (over_b, over_t, over_n, _) = query.shape, _compat.spec_of(query)
    over_v = _compat.spec_of(value)[3]
    if _mesh_axes(over_v) & _mesh_axes((over_b, over_t, over_n)):
        over_v = None  # a mesh axis shards one axis only
    out = (over_b, over_t, over_n, over_v)
    return [
        _compat.aval_like(
            query, (batch, queries, heads, value.shape[3]), dtype=query.dtype, spec=out
        ),
        _compat.aval_like(
            query, (batch, heads, queries), dtype=wide(query.dtype), spec=(over_b, over_n, over_t)
        ),
    ]


def _gradient_avals(*avals: Any, along: tuple[int, ...], **_: Any) -> list[Any]:
    of = (avals[i] for i in along)
    return [
        _compat.aval_like(aval, aval.shape, dtype=aval.dtype, spec=_compat.spec_of(aval))
        for aval in of
    ]


def _mesh_axes(spec: Any) -> frozenset[Any]:
    """The mesh axes of a part of a `PartitionSpec`."""
    if isinstance(spec, tuple):
        return frozenset().union(*map(_mesh_axes, spec))
    return frozenset() if spec is None else frozenset({spec})


# Derivatives


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, call: Call
) -> tuple[list[Any], list[Any]]:
    results = attention_p.bind(*primals, call=call)
    along = tuple(i for i, tangent in enumerate(tangents) if type(tangent) is not ad.Zero)
    directions = [tangents[i] for i in along]
    return results, tangent_p.bind(*primals, *results, *directions, call=call, along=along)


def _transpose(
    cotangents: Sequence[Any], *operands: Any, call: Call, along: tuple[int, ...]
) -> list[Any]:
    known, directions = operands[: -len(along)], operands[-len(along) :]
    assert all(map(ad.is_undefined_primal, directions)), "linear in all directions at once"
    d_out, d_logsumexp = cotangents
    has_d_logsumexp = type(d_logsumexp) is not ad.Zero
    given = (ad.instantiate_zeros(d_out), *((d_logsumexp,) if has_d_logsumexp else ()))
    gradients = gradient_p.bind(
        *known, *given, call=call, along=along, has_d_logsumexp=has_d_logsumexp
    )
    return [None] * len(known) + list(gradients)


def _no_second_derivative(*_: Any, **__: Any) -> Any:
    raise BackendError(
        "attention has no second derivative.",
        where=_compat.describe_line(_compat.user_place()),
        why="its back ends compute the function, its derivative and its gradient only",
        fix="call jax.nn.dot_product_attention where a Hessian is needed",
    )


# Batches: the mapped axis becomes part of the batch, the first axis of every operand.


def _merge(x: Any, axis: int | None, *, count: Any, batch: Any, whole: bool) -> Any:
    """An operand whose mapped axis is merged into its batch.

    Args:
        x: [batch or 1, ...] with the mapped axis at any place.
        axis: The mapped axis; None: there is none.
        count: The size of the mapped axis.
        batch: The size of the batch.
        whole: Whether an operand shared by all examples must be repeated for each.
    """
    if axis is None and not whole and _is_one(x.shape[0]):
        return x
    x = x[None] if axis is None else jnp.moveaxis(x, axis, 0)
    # JAX cannot merge an axis that is sharded over a mesh into the one before it.
    x = _cut_over(x, 1, mesh_axes=None)
    x = jnp.broadcast_to(x, (count, batch, *x.shape[2:]))
    return x.reshape(count * batch, *x.shape[2:])


def _cut_over(x: Any, axis: int, *, mesh_axes: Any) -> Any:
    """An array with one axis sharded, in its type, over these axes of an explicit mesh."""
    spec = list(_compat.spec_of(jax.typeof(x)))
    if spec[axis] == mesh_axes:
        return x
    taken = _mesh_axes(mesh_axes)
    spec = [None if _mesh_axes(over) & taken else over for over in spec]
    spec[axis] = mesh_axes
    return jax.sharding.reshard(x, jax.P(*spec))


def _batch_is_over(x: Any, axis: int | None) -> Any:
    """The mesh axes over which the batch of an operand is sharded, by its type."""
    spec = _compat.spec_of(jax.typeof(x))
    return next(over for i, over in enumerate(spec) if i != axis)


def _unmapped(x: Any, axis: int | None) -> list[Any]:
    """The shape of an operand without its mapped axis."""
    return [dim for i, dim in enumerate(x.shape) if i != axis]


def _is_one(dim: Any) -> bool:
    return isinstance(dim, int) and dim == 1


def _batched(
    args: Sequence[Any], axes: Sequence[int | None], *, primitive: Any, call: Call, **params: Any
) -> list[Any]:
    """The primitive's results, each [mapped, batch, ...]."""
    count = next(x.shape[axis] for x, axis in zip(args, axes, strict=True) if axis is not None)
    batch, along = _unmapped(args[0], axes[0])[0], params.get("along", ())
    of_pages = _of_pages(call, along, primitive=primitive)
    # Mapped calls share their pages, unless each has some, or a gradient, of its own.
    shares = all(axes[i] is None and i not in along for i in of_pages)
    rows = [
        _unmapped(x, axis)[0] if i in of_pages else batch
        for i, (x, axis) in enumerate(zip(args, axes, strict=True))
    ]
    merged = []
    for i, (x, axis) in enumerate(zip(args, axes, strict=True)):
        is_shareable = call.arrays <= i < call.operands and i not in along
        is_shared = shares and i in of_pages
        whole = functools.partial(_merge, count=count, batch=rows[i], whole=not is_shareable)
        merged.append(x if is_shared else whole(x, axis))
    if not shares:
        merged[call.table] = _of_own_pages(
            merged[call.table], count=count, batch=batch, pages=rows[1]
        )
    call = dataclasses.replace(
        call, mask=_of_merged(call.mask, batch), bias=_of_merged(call.bias, batch)
    )
    results = primitive.bind(*merged, call=call, **params)
    like = along if primitive is gradient_p else (0,) * len(results)
    return [
        _cut_over(
            x.reshape(count, rows[i], *x.shape[1:]), 1, mesh_axes=_batch_is_over(args[i], axes[i])
        )
        for i, x in zip(like, results, strict=True)
    ]


def _of_pages(call: Call, along: tuple[int, ...], *, primitive: Any) -> frozenset[int]:
    """Which arguments of a primitive are pages, whose first axis is no batch."""
    if not call.has_pages:
        return frozenset()
    given = along if primitive is tangent_p else ()
    directions = (call.operands + 2 + n for n, i in enumerate(given) if i in KEY_AND_VALUE)
    return frozenset((*KEY_AND_VALUE, *directions))


def _of_own_pages(numbers: Array, *, count: Any, batch: Any, pages: Any) -> Array:
    """Page numbers [count * batch, pages of one] among the pages of all of so many calls."""
    own = jnp.clip(numbers, 0, pages - 1)  # else what is no number would be one of another call
    first = jnp.arange(count, dtype=own.dtype) * pages
    own = own.reshape(count, batch, own.shape[1]) + first[:, None, None]
    return own.reshape(numbers.shape)


def _of_merged(structure: Any, examples: Any) -> Any:
    """The structure of a mask or bias for calls that are merged; see `Value.of_merged`."""
    value = jax.tree.unflatten(structure, [object()] * structure.num_leaves)
    return (
        jax.tree.structure(value.of_merged(examples)) if hasattr(value, "of_merged") else structure
    )


def _batch(
    args: Sequence[Any], axes: Sequence[int | None], *, primitive: Any, **params: Any
) -> tuple[list[Any], list[int]]:
    results = _batched(args, axes, primitive=primitive, **params)
    return results, [0] * len(results)


def _batch_gradient(
    args: Sequence[Any], axes: Sequence[int | None], *, along: tuple[int, ...], **params: Any
) -> tuple[list[Any], list[int]]:
    gradients = []
    for i, x in zip(
        along, _batched(args, axes, primitive=gradient_p, along=along, **params), strict=True
    ):
        # An operand shared by all examples has one gradient, the sum of theirs.
        is_shared = _is_one(_unmapped(args[i], axes[i])[0])
        gradients.append(x.sum(1, keepdims=True, dtype=x.dtype) if is_shared else x)
    return gradients, [0] * len(gradients)


# Lowering


def _local(run: Callable[..., Any], platform: str) -> Callable[..., Any]:
    """Lower with avals that carry shapes and dtypes only, for XLA to divide among devices.

    Inside `shard_map` the carries of loops would have to vary over the mesh as operands do.
    """

    def lowered(ctx: Any, *operands: Any, **params: Any) -> Any:
        partitioned = _compat.context_of_partitioned(ctx)
        on_all = functools.partial(run_partitioned, run=run) if partitioned else run
        lower = mlir.lower_fun(functools.partial(on_all, platform=platform), multiple_results=True)
        plain = [_compat.ShapedArray(aval.shape, aval.dtype) for aval in ctx.avals_in]
        with compiled_early(platform):
            return lower((partitioned or ctx).replace(avals_in=plain), *operands, **params)

    return lowered


def _define(
    primitive: Any,
    *,
    avals: Callable[..., list[Any]],
    run: Callable[..., Any],
    batch: Any,
    jvp: Any,
) -> None:
    @functools.partial(jax.jit, static_argnames="params")
    def eagerly(*operands: Any, params: tuple[tuple[str, Any], ...]) -> Any:
        return primitive.bind(*operands, **dict(params))

    def impl(*operands: Any, **params: Any) -> Any:
        with jax.disable_jit(False):  # else it would bind the primitive, and come back here
            return eagerly(*operands, params=tuple(params.items()))

    primitive.multiple_results = True
    primitive.def_impl(impl)
    primitive.def_abstract_eval(avals)
    for platform in (None, "cpu", "cuda", "rocm", "tpu"):
        mlir.register_lowering(primitive, _local(run, platform or "unknown"), platform=platform)
    batching.primitive_batchers[primitive] = batch
    ad.primitive_jvps[primitive] = jvp


_define(
    attention_p,
    avals=_result_avals,
    run=_run.forward,
    batch=functools.partial(_batch, primitive=attention_p),
    jvp=_jvp,
)
_define(
    tangent_p,
    avals=_result_avals,
    run=_run.tangent,
    batch=functools.partial(_batch, primitive=tangent_p),
    jvp=_no_second_derivative,
)
_define(
    gradient_p,
    avals=_gradient_avals,
    run=_run.gradient,
    batch=_batch_gradient,
    jvp=_no_second_derivative,
)
ad.primitive_transposes[tangent_p] = _transpose
