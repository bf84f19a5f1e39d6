"""The public function: it checks its arguments and turns all that restrict attention into one mask.

The arguments mean what they mean to `jax.nn.dot_product_attention`. Which back end computes the
result is decided where the primitive is lowered (`_run`).
"""

import functools
import numbers
from collections.abc import Sequence
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from jax.typing import ArrayLike

from shapeexec import _compat
from shapeexec._errors import ConfigError
from shapeexec.attention._call import Call, Operands
from shapeexec.attention._call_lists import known_density
from shapeexec.attention._dropout import check_dropout, with_dropout
from shapeexec.attention._primitive import attention
from shapeexec.attention.backends._choose import check_implementation
from shapeexec.attention.backends._registry import Name
from shapeexec.attention.masks import Causal, Dense, Full, Mask, ScoreModifier, SlidingWindow
from shapeexec.attention.masks import _advice as mask_advice
from shapeexec.attention.masks._value import wide

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
) -> tuple[Array, Array]: ...


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
    return_residual: bool = False,
    deterministic: bool | None = None,
    dropout_rate: float = 0.0,
    dropout_key: ArrayLike | None = None,
) -> Array | tuple[Array, Array]:
    """Softmax(scale * query @ key^T + bias) @ value, over the keys that each query may attend to.

    A replacement for `jax.nn.dot_product_attention` with the same arguments, layout and dtypes. Its
    cost follows the mask, tile by tile, and its memory is linear in T and S. It differs where a
    query has no key to attend to: here the output is 0, its gradients are 0 and the residual is
    -inf; there the output is the mean of all values. Padding behind the valid lengths never
    affects a result, whatever it holds.

    Axes: B examples, T queries, S keys, N query heads, K key heads, H the head size of queries and
    keys, V that of values.

    Args:
        query: [B, T, N, H] or [T, N, H], of a floating dtype.
        key: [B, S, K, H] or [S, K, H], of the same dtype. K divides N: each key head serves N / K
            query heads.
        value: [B, S, K, V] or [S, K, V], of the same dtype; V need not be H.
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
        local_window_size: How many keys before and after its own position a query attends to: one
            number for both sides, or a pair.
        implementation: The name of a back end; None: the best one for device and shapes.
        return_residual: Whether to return the log-sum-exp of the scores too.
        deterministic: Whether equal calls give equal bits; None: True. If False, the gradient may
            add partial sums in any order where that is faster: by cuDNN for full and causal masks,
            by one kernel instead of two where many tiles have work; see docs/attention.md. In Flax
            True means no dropout, so together with a rate it is refused.
        dropout_rate: The probability that a weight becomes 0, in [0, 1); the others are divided by
            1 - dropout_rate. It costs a second pass over the scores.
        dropout_key: A key of `jax.random`. The dropped weights depend on it alone: they are the
            same for every back end, and under padding.

    Returns:
        [B, T, N, V] or [T, N, V] in the dtype of the query. With `return_residual` also the
        log-sum-exp, [B, T, N] or [T, N] in the same dtype, which has no gradient.

    Raises:
        ConfigError: An argument is malformed or contradicts another one.
        BackendError: The named back end cannot run this call, or a second derivative is asked for:
            there are first ones, forward and reverse, only.

    Example:
        >>> x = jax.numpy.ones((1, 4, 2, 8))
        >>> dot_product_attention(x, x, x, is_causal=True).shape
        (1, 4, 2, 8)

    Source: `jax.nn.dot_product_attention`.
    """
    check_implementation(implementation)
    check_dropout(dropout_rate, dropout_key, deterministic=deterministic)
    is_fixed = deterministic is None or bool(deterministic)
    q, k, v = (
        _with_batch(x, name) for x, name in ((query, "query"), (key, "key"), (value, "value"))
    )
    _check_arrays(q, k, v)
    axes = {"B": q.shape[0], "N": q.shape[2], "T": q.shape[1], "S": k.shape[1]}
    allowed = _mask(mask, bias, axes=axes, is_causal=is_causal, local_window_size=local_window_size)
    bias = _bias(bias, axes, dtype=q.dtype)
    q, fixed_scale = _scaled(q, scale)
    lengths = [
        _lengths(given, name, batch=axes["B"])
        for given, name in (
            (query_seq_lengths, "query_seq_lengths"),
            (key_value_seq_lengths, "key_value_seq_lengths"),
        )
    ]
    attend = functools.partial(
        _attend, q, k, lengths, fixed_scale, implementation, deterministic=is_fixed
    )
    if dropout_rate:
        dropout = {"rate": dropout_rate, "key": dropout_key}
        out, logsumexp = with_dropout(attend, allowed, bias=bias, value=v, **dropout)
    else:
        out, logsumexp = attend(allowed, v, bias)
    shape = jnp.shape(query)[:-1]
    out = out.reshape(*shape, v.shape[3])
    if not return_residual:
        return out
    residual = logsumexp.transpose(0, 2, 1).astype(k.dtype).reshape(shape)
    return out, lax.stop_gradient(residual)


def _attend(  # noqa: PLR0917 - what `with_dropout` binds, and what it passes
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
        density=None if deterministic else known_density(mask),
    )
    return attention(Operands(q, k, v, lengths[0], lengths[1], *arrays), call)


def _as_array(x: Any, name: str, *, fix: str) -> Array:
    try:
        return jnp.asarray(x)
    except (TypeError, ValueError) as error:  # of any object, and of rows of unequal length
        what = x.__name__ if isinstance(x, type) else type(x).__name__
        what = f"the class {what}" if isinstance(x, type) else f"of type {what}"
        raise ConfigError(f"{name} is {what}, not an array.", fix=fix) from error


def _with_batch(x: ArrayLike, name: str) -> Array:
    array = _as_array(x, name, fix="pass [batch, length, heads, size] of a floating dtype")
    if array.ndim not in (3, 4):
        raise ConfigError(
            f"{name} is {_described(array)}, with {array.ndim} axes.",
            fix="pass [batch, length, heads, size], or the same without the batch",
        )
    return array if array.ndim == 4 else array[None]


def _check_arrays(q: Array, k: Array, v: Array) -> None:
    got = f"query {_described(q)}, key {_described(k)}, value {_described(v)}"
    if not jnp.issubdtype(q.dtype, np.floating):
        raise ConfigError(
            f"query is {q.dtype}, not a floating dtype.",
            got=got,
            fix="query=query.astype(jnp.float32)",
        )
    for name, x in (("key", k), ("value", v)):
        if x.dtype != q.dtype:
            raise ConfigError(
                f"{name} is {x.dtype}, but query is {q.dtype}.",
                got=got,
                fix=f"{name}={name}.astype(query.dtype), or another one dtype for all three",
            )
        if x.shape[0] != q.shape[0]:
            raise ConfigError(
                f"{name} has {x.shape[0]} examples, but query has {q.shape[0]}.",
                got=got,
                fix=f"give query, key and value one batch, such as of {q.shape[0]} examples",
            )
    if k.shape[1:3] != v.shape[1:3]:
        raise ConfigError(
            "key and value differ in length or heads.",
            got=got,
            fix="pass key as [B, S, K, H] and value as [B, S, K, V]",
        )
    _check_heads(q, k, got=got)


def _check_heads(q: Array, k: Array, *, got: str) -> None:
    if k.shape[3] != q.shape[3]:
        raise ConfigError(
            f"key has heads of size {k.shape[3]}, but query of {q.shape[3]}.",
            got=got,
            fix="give query and key one head size, their last axis; the value's may differ",
        )
    heads, key_heads = q.shape[2], k.shape[2]
    if heads != key_heads and _are_known(heads, key_heads) and (not key_heads or heads % key_heads):
        fewest = max(heads - heads % key_heads, key_heads) if key_heads else 0
        which = f"give query {fewest} heads" if fewest else f"give key and value {heads} heads"
        raise ConfigError(
            f"query has {heads} heads, not a multiple of the {key_heads} of key and value.",
            got=got,
            fix=f"{which}, so that each key head serves the same number",
        )


def _mask(
    mask: Any, bias: Any, *, axes: dict[str, Any], is_causal: bool, local_window_size: Any
) -> Mask:
    if mask is None:
        whole: Mask = Full()
    elif isinstance(mask, Mask):
        whole = mask
    else:
        array = _as_array(mask, "mask", fix=mask_advice.of_no_array(mask, "mask"))
        if array.dtype != np.bool_:
            # Under a trace `array` may be a tracer of a NumPy array, whose values are known.
            given = mask if isinstance(mask, np.ndarray) else array
            raise ConfigError(
                f"mask is {_described(array)}, not bool.",
                why="True says that a query may attend to a key",
                fix=mask_advice.of_numbers(given, bias=_added(bias)),
            )
        whole = Dense(_pairs(array, "mask", axes=axes))
    whole.check_axes(axes)
    if is_causal:
        whole = whole & Causal()
    if local_window_size is None:
        return whole
    if isinstance(local_window_size, numbers.Integral):
        local_window_size = (local_window_size, local_window_size)
    if not isinstance(local_window_size, Sequence) or len(local_window_size) != 2:
        raise ConfigError(
            f"local_window_size={local_window_size!r} is not a window.",
            fix="local_window_size=128, or (128, 0): keys before, keys after",
        )
    return whole & SlidingWindow(*local_window_size)


def _added(bias: Any) -> str | None:
    """The argument that adds a mask of numbers to the scores; None if the bias is a modifier."""
    if bias is None:
        return "bias=mask"
    return None if isinstance(bias, ScoreModifier) else "bias=bias + mask"


def _bias(bias: Any, axes: dict[str, Any], *, dtype: Any) -> Any:
    if bias is None:
        return None
    if isinstance(bias, ScoreModifier):
        bias.check_axes(axes)
        return jax.tree.map(lambda x: _no_wider(jnp.asarray(x), dtype), bias)
    array = _as_array(bias, "bias", fix=mask_advice.of_no_array(bias, "bias"))
    if jnp.issubdtype(array.dtype, np.integer):
        array = array.astype(wide(dtype))
    if not jnp.issubdtype(array.dtype, np.floating):
        raise ConfigError(
            f"bias is {_described(array)}, which cannot be added to scores.",
            fix="mask=bias, where True says that a query may attend to a key"
            if array.dtype == np.bool_
            else "bias=bias.real, or other real numbers",
        )
    return _pairs(array, "bias", axes=axes)


def _no_wider(array: Array, dtype: Any) -> Array:
    """An array of a score modifier, with no more digits than scores have."""
    return array.astype(wide(dtype)) if array.dtype == np.float64 else array


def _pairs(array: Array, name: str, *, axes: dict[str, Any]) -> Array:
    """An array for pairs of queries and keys with all of its four axes."""
    if array.ndim <= 4:
        whole = array[(None,) * (4 - array.ndim)]
        fits = (
            _is_one(have) or have == want
            for have, want in zip(whole.shape, axes.values(), strict=True)
        )
        if all(fits):
            return whole
    got = ", ".join(f"{axis}={length}" for axis, length in axes.items())
    raise ConfigError(
        f"{name} is {_described(array)}, which does not broadcast to [B, N, T, S].",
        got=got,
        fix=_with_four_axes(array, name, axes=axes),
    )


def _with_four_axes(array: Array, name: str, *, axes: dict[str, Any]) -> str:
    """The fix for an array that does not broadcast: an index, where the shape implies one."""
    b, n, t, s = axes.values()
    indices = {(b, s): "[:, None, None, :]", (b, t, s): "[:, None]", (n, t, s): "[None]"}
    index = indices.get(array.shape) if _are_known(b, n, t, s, *array.shape) else None
    general = "give it 4 axes, [B, N, T, S], each 1 or of full length"
    return general if index is None else f"{name}={name}{index}; {general}"


def _lengths(lengths: Any, name: str, *, batch: Any) -> Array | None:
    if lengths is None:
        return None
    fix = f"{name}=jnp.asarray({name}, jnp.int32), one length for each example"
    array = _as_array(lengths, name, fix=fix)
    if array.dtype != np.int32 or array.ndim != 1 or array.shape[0] != batch:
        raise ConfigError(f"{name} is {_described(array)}, not i32[{batch}].", fix=fix)
    return array


def _scaled(q: Array, scale: Any) -> tuple[Array, float | None]:
    if scale is None:
        return q, None
    if not isinstance(scale, Tracer):
        if np.ndim(scale):
            raise ConfigError(f"scale has shape {np.shape(scale)}, not ().", fix="pass one number")
        if not isinstance(scale, (numbers.Real, np.ndarray, np.generic, Array)):
            raise ConfigError(
                f"scale={scale!r} is not a real number.", fix="pass one number, such as 0.125"
            )
        return q, float(scale)
    if scale.ndim:
        raise ConfigError(f"scale is {_described(scale)}, not a scalar.", fix="pass one number")
    return q * scale.astype(q.dtype), 1.0


def _are_known(*dims: Any) -> bool:
    return all(isinstance(dim, int) for dim in dims)


def _is_one(dim: Any) -> bool:
    return isinstance(dim, int) and dim == 1


def _described(array: Array) -> str:
    return _compat.describe_aval(jax.typeof(array))
