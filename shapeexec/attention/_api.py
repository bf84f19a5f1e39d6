"""The public function.

Its arguments mean the same as in `jax.nn.dot_product_attention`. `_arguments` checks them, and
`_run` decides which back end computes the result.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import functools
from collections.abc import Sequence
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from shapeexec.attention._arguments import (
    check_arrays,
    check_density,
    checked_bias,
    checked_lengths,
    checked_pages,
    in_pages,
    scaled,
    whole_mask,
    with_batch,
)
from shapeexec.attention._call import Call, Operands, key_size
from shapeexec.attention._call_lists import static_density
from shapeexec.attention._dropout import check_dropout, with_dropout
from shapeexec.attention._primitive import attention
from shapeexec.attention.backends._choose import check_implementation
from shapeexec.attention.backends._registry import Name
from shapeexec.attention.masks import Mask

Implementation = Name | None


@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: Any = None,
    mask: ArrayLike | Mask | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: Implementation = None,
    return_residual: Literal[False] = ...,
    deterministic: bool | None = None,
    dropout_rate: float = 0.0,
    dropout_key: ArrayLike | None = None,
    pages: ArrayLike | None = None,
    expected_density: float | None = None,
) -> Array: ...


@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: Any = None,
    mask: ArrayLike | Mask | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: Implementation = None,
    return_residual: Literal[True],
    deterministic: bool | None = None,
    dropout_rate: float = 0.0,
    dropout_key: ArrayLike | None = None,
    pages: ArrayLike | None = None,
    expected_density: float | None = None,
) -> tuple[Array, Array]: ...


def dot_product_attention(  # noqa: PLR0917 - the order is JAX's
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: Any = None,
    mask: ArrayLike | Mask | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: Implementation = None,
    return_residual: bool = False,
    deterministic: bool | None = None,
    dropout_rate: float = 0.0,
    dropout_key: ArrayLike | None = None,
    pages: ArrayLike | None = None,
    expected_density: float | None = None,
) -> Array | tuple[Array, Array]:
    """Compute softmax(scale * query @ key^T + bias) @ value, over the keys that a query may see.

    A replacement for `jax.nn.dot_product_attention` with the same arguments, layout and dtypes. Its
    cost follows the mask, tile by tile, and its memory is linear in T and S, but for up to 2.25 GiB
    that a gradient takes on a Hopper GPU; see docs/attention.md. It differs where a query has no
    key to attend to: here the output is 0, its gradients are 0 and the residual is -inf; there the
    output is the mean of all values. Padding behind the valid lengths never affects a result,
    whatever it holds.

    Axes: B examples, T queries, S keys, N query heads, K key heads, H the head size of queries and
    keys, V the head size of values.

    Args:
        query: [B, T, N, H] or [T, N, H], of a floating dtype.
        key: [B, S, K, H] or [S, K, H], of the same dtype. K divides N: each key head serves N / K
            query heads. With `pages`: [P, page size, K, H].
        value: [B, S, K, V] or [S, K, V], of the same dtype; V need not be H. With `pages`:
            [P, page size, K, V].
        bias: Added to the scores: an array whose last axes are [B or 1, N or 1, T or 1, S or 1];
            or a score modifier, such as `ALiBi`.
        mask: A mask such as `Causal() & SlidingWindow(256)`, or bool with the axes of a bias:
            True where a query may attend to a key.
        scale: The factor of the scores; None: 1 / sqrt(H). A traced one multiplies the query, in
            the query's dtype.
        is_causal: Whether queries attend to keys up to their own position only.
        query_seq_lengths: The valid length of each example's queries, i32[B]. Behind it the output
            is 0.
        key_value_seq_lengths: The valid length of each example's keys and values, i32[B].
        local_window_size: The number of keys before and after its own position that a query
            attends to: one number for both sides, or a pair.
        implementation: The name of a back end, for the forward and the backward pass; None: the
            best one for device and shapes. Forward-mode derivatives (`jax.jvp`) run on `xla`.
        return_residual: Whether to return the log-sum-exp of the scores too.
        deterministic: Whether equal calls give equal bits; None: True. If False, the gradient may
            add partial sums in any order where that is faster: by one kernel where many tiles have
            work, or by cuDNN; see docs/attention.md. In Flax True means no dropout,
            so together with a rate it is refused.
        dropout_rate: The probability that a weight becomes 0, in [0, 1); the others are divided by
            1 - dropout_rate. It costs a second pass over the scores.
        dropout_key: A key of `jax.random`. The dropped weights depend only on it: they are the
            same for every back end, and under padding.
        pages: The numbers of each example's pages, i32[B, S / page size]: key and value are then
            the pages of all examples, which may share some. Position p of example b is row
            p % page size of page pages[b, p // page size]. Behind the valid lengths numbers may be
            anything. Forward, `xla` reads pages where they lie, and so does `mosaic_gpu` for few
            queries, and pages of whole 64s; elsewhere, and for gradients, the B * S keys and values
            are gathered first, at the cost of a copy of both.
        expected_density: The share of 128-tiles with work that you expect, in (0, 1], where the
            mask is known only when the program runs. With `deterministic=False` it decides which
            kernels compute the gradient, so it affects speed and the last bits, nothing else. It is
            ignored where the share is known, and rounded down to a power of 2. None: those that
            equal bits need.

    Returns:
        [B, T, N, V] or [T, N, V] in the dtype of the query. With `return_residual` also the
        log-sum-exp, [B, T, N] or [T, N] in the same dtype, which has no gradient.

    Raises:
        ConfigError: An argument is malformed or contradicts another one.
        BackendError: The named back end cannot run this call, or a second derivative is taken: only
            first derivatives, forward and reverse, are supported.

    Example:
        >>> x = jax.numpy.ones((1, 4, 2, 8))
        >>> dot_product_attention(x, x, x, is_causal=True).shape
        (1, 4, 2, 8)

    Source: `jax.nn.dot_product_attention`.
    """
    check_implementation(implementation)
    check_dropout(dropout_rate, dropout_key, deterministic=deterministic)
    check_density(expected_density)
    is_fixed = deterministic is None or bool(deterministic)
    as_four_axes = with_batch if pages is None else in_pages
    q, k, v = with_batch(query, "query"), as_four_axes(key, "key"), as_four_axes(value, "value")
    check_arrays(q, k, v, has_pages=pages is not None)
    table = checked_pages(pages, batch=q.shape[0])
    keys = key_size(k.shape, None if table is None else table.shape)
    axes = {"B": q.shape[0], "N": q.shape[2], "T": q.shape[1], "S": keys}
    allowed = whole_mask(
        mask, bias, axes=axes, is_causal=is_causal, local_window_size=local_window_size
    )
    bias = checked_bias(bias, axes, dtype=q.dtype)
    q, fixed_scale = scaled(q, scale)
    lengths = [
        checked_lengths(query_seq_lengths, "query_seq_lengths", batch=axes["B"]),
        checked_lengths(key_value_seq_lengths, "key_value_seq_lengths", batch=axes["B"]),
    ]
    attend = functools.partial(
        *(_attend, q, k, lengths, fixed_scale, implementation),
        deterministic=is_fixed,
        expected_density=expected_density,
        pages=table,
    )
    if dropout_rate:
        dropout: Any = {"rate": dropout_rate, "key": dropout_key, "batch": axes["B"]}
        out, logsumexp = with_dropout(attend, allowed, bias=bias, value=v, **dropout)
    else:
        out, logsumexp = attend(allowed, v, bias)
    shape = jnp.shape(query)[:-1]
    out = out.reshape(*shape, v.shape[3])
    if not return_residual:
        return out
    residual = logsumexp.transpose(0, 2, 1).astype(k.dtype).reshape(shape)
    return out, lax.stop_gradient(residual)


def _attend(  # noqa: PLR0917 - `with_dropout` passes mask, value and bias by position
    q: Array,
    k: Array,
    lengths: Sequence[Array | None],
    scale: float | None,
    implementation: Implementation,
    mask: Mask,
    v: Array,
    bias: Any,
    *,
    deterministic: bool,
    expected_density: float | None,
    pages: Array | None,
) -> tuple[Array, Array]:
    """The output [B, T, N, V] and the log-sum-exp [B, N, T] of checked operands."""
    mask_leaves, mask_tree = jax.tree.flatten(mask)
    bias_leaves, bias_tree = jax.tree.flatten(bias)
    arrays = (tuple(map(jnp.asarray, leaves)) for leaves in (mask_leaves, bias_leaves))
    call = Call(
        scale=scale,
        mask=mask_tree,
        bias=bias_tree,
        has_query_lengths=lengths[0] is not None,
        has_key_lengths=lengths[1] is not None,
        implementation=implementation,
        deterministic=deterministic,
        density=None if deterministic else static_density(mask, expected=expected_density),
        has_pages=pages is not None,
    )
    return attention(Operands(q, k, v, lengths[0], lengths[1], *arrays, pages=pages), call)
