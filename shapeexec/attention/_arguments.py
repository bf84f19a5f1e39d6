"""Checks the arguments of attention, normalises them, and joins all restrictions into one mask.

Errors name the argument, and the fix. Nothing here depends on a back end.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import numbers
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike

from shapeexec import _compat
from shapeexec._errors import ConfigError
from shapeexec.attention.masks import Causal, Dense, Full, Mask, ScoreModifier, SlidingWindow
from shapeexec.attention.masks import _advice as mask_advice
from shapeexec.attention.masks._value import wide


def _as_array(x: Any, name: str, *, fix: str) -> Array:
    try:
        return jnp.asarray(x)
    except (TypeError, ValueError) as error:  # of any object, and of rows of unequal length
        what = x.__name__ if isinstance(x, type) else type(x).__name__
        what = f"the class {what}" if isinstance(x, type) else f"of type {what}"
        raise ConfigError(f"{name} is {what}, not an array.", option=name, fix=fix) from error


def with_batch(x: ArrayLike, name: str) -> Array:
    """The array with a batch axis: [B, length, heads, size]."""
    array = _as_array(x, name, fix="pass [batch, length, heads, size] of a floating dtype")
    if array.ndim not in (3, 4):
        raise ConfigError(
            f"{name} is {_described(array)}, with {array.ndim} axes.",
            option=name,
            fix="pass [batch, length, heads, size], or the same without the batch",
        )
    return array if array.ndim == 4 else array[None]


def in_pages(x: ArrayLike, name: str) -> Array:
    """The array, if it has the axes of pages: [pages, page size, heads, size]."""
    array = _as_array(x, name, fix="pass [pages, page size, heads, size] of a floating dtype")
    if array.ndim != 4:
        raise ConfigError(
            f"{name} is {_described(array)}, with {array.ndim} axes, and pages= is given.",
            option=name,
            fix="pass [pages, page size, heads, size], or leave pages= out",
        )
    return array


def checked_pages(pages: Any, *, batch: Any) -> Array | None:
    """The page numbers as i32[B, pages of an example]; None if `pages` is None."""
    if pages is None:
        return None
    fix = "pages=jnp.asarray(pages, jnp.int32), a row of page numbers for each example"
    array = _as_array(pages, "pages", fix=fix)
    if array.dtype != np.int32 or array.ndim != 2 or array.shape[0] != batch:
        what = f"pages is {_described(array)}, not i32[{batch}, pages of an example]."
        raise ConfigError(what, option="pages", fix=fix)
    return array


def check_arrays(q: Array, k: Array, v: Array, *, has_pages: bool) -> None:  # noqa: PLR0917 - the operands of attention
    """Check dtypes, batches, lengths and heads of query, key and value."""
    got = f"query {_described(q)}, key {_described(k)}, value {_described(v)}"
    if not jnp.issubdtype(q.dtype, np.floating):
        raise ConfigError(
            f"query is {q.dtype}, not a floating dtype.",
            option="query",
            got=got,
            fix="query=query.astype(jnp.float32)",
        )
    for name, x in (("key", k), ("value", v)):
        if x.dtype != q.dtype:
            raise ConfigError(
                f"{name} is {x.dtype}, but query is {q.dtype}.",
                option=name,
                got=got,
                fix=f"{name}={name}.astype(query.dtype), or one other dtype for all three",
            )
        if not has_pages and x.shape[0] != q.shape[0]:
            raise ConfigError(
                f"{name} has {x.shape[0]} examples, but query has {q.shape[0]}.",
                option=name,
                got=got,
                fix=f"give query, key and value one batch, such as of {q.shape[0]} examples",
            )
    if k.shape[:3] != v.shape[:3]:
        lead = "pages, page size" if has_pages else "B, S"
        raise ConfigError(
            f"key and value differ in {'their pages' if has_pages else 'length'} or heads.",
            option="value",
            got=got,
            fix=f"pass key as [{lead}, K, H] and value as [{lead}, K, V]",
        )
    _check_heads(q, k, got=got)


def _check_heads(q: Array, k: Array, *, got: str) -> None:
    if k.shape[3] != q.shape[3]:
        raise ConfigError(
            f"key has heads of size {k.shape[3]}, but query has heads of size {q.shape[3]}.",
            option="key",
            got=got,
            fix="give query and key one head size, their last axis; the value's may differ",
        )
    heads, key_heads = q.shape[2], k.shape[2]
    if heads != key_heads and _are_known(heads, key_heads) and (not key_heads or heads % key_heads):
        fewest = max(heads - heads % key_heads, key_heads) if key_heads else 0
        which = f"give query {fewest} heads" if fewest else f"give key and value {heads} heads"
        raise ConfigError(
            f"query has {heads} heads, not a multiple of the {key_heads} of key and value.",
            option="query",
            got=got,
            fix=f"{which}, so that each key head serves the same number",
        )


def whole_mask(
    mask: Any, bias: Any, *, axes: dict[str, Any], is_causal: bool, local_window_size: Any
) -> Mask:
    """The mask, `is_causal` and `local_window_size` as one mask."""
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
                option="mask",
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
            option="local_window_size",
            fix="local_window_size=128, or (128, 0): keys before, keys after",
        )
    return whole & SlidingWindow(*local_window_size)


def _added(bias: Any) -> str | None:
    """The argument that adds a mask of numbers to the scores; None if the bias is a modifier."""
    if bias is None:
        return "bias=mask"
    return None if isinstance(bias, ScoreModifier) else "bias=bias + mask"


def checked_bias(bias: Any, axes: dict[str, Any], *, dtype: Any) -> Any:
    """The bias as [B or 1, N or 1, T or 1, S or 1], or a score modifier; None if it is None."""
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
            option="bias",
            fix="mask=bias, where True says that a query may attend to a key"
            if array.dtype == np.bool_
            else "bias=bias.real, or other real numbers",
        )
    return _pairs(array, "bias", axes=axes)


def _no_wider(array: Array, dtype: Any) -> Array:
    """An array of a score modifier, rounded to the dtype of scores if it is wider."""
    return array.astype(wide(dtype)) if array.dtype == np.float64 else array


def _pairs(array: Array, name: str, *, axes: dict[str, Any]) -> Array:
    """An array for pairs of queries and keys, reshaped to four axes."""
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
        option=name,
        got=got,
        fix=_with_four_axes(array, name, axes=axes),
    )


def _with_four_axes(array: Array, name: str, *, axes: dict[str, Any]) -> str:
    """The fix for an array that does not broadcast: an index, where the shape implies one."""
    b, n, t, s = axes.values()
    indices: dict[tuple[Any, ...], str] = {
        (b, s): "[:, None, None, :]",
        (b, t, s): "[:, None]",
        (n, t, s): "[None]",
    }
    index = indices.get(array.shape) if _are_known(b, n, t, s, *array.shape) else None
    general = "give it 4 axes, [B, N, T, S], each 1 or of full length"
    return general if index is None else f"{name}={name}{index}; {general}"


def checked_lengths(lengths: Any, name: str, *, batch: Any) -> Array | None:
    """The lengths as i32[B]; None if `lengths` is None."""
    if lengths is None:
        return None
    fix = f"{name}=jnp.asarray({name}, jnp.int32), one length for each example"
    array = _as_array(lengths, name, fix=fix)
    if array.dtype != np.int32 or array.ndim != 1 or array.shape[0] != batch:
        raise ConfigError(f"{name} is {_described(array)}, not i32[{batch}].", option=name, fix=fix)
    return array


def check_density(density: Any) -> None:
    """Check that the expected share of tiles is None or a plain number in (0, 1]."""
    if density is None:
        return
    is_number = isinstance(density, numbers.Real) and density is not True
    if not is_number or not 0 < float(density) <= 1:
        raise ConfigError(
            f"expected_density={density!r:.80} is not a number in (0, 1].",
            option="expected_density",
            why="it is static, the share of 128-tiles that hold work",
            fix="expected_density=0.25, as BlockMask.from_mask(...).density tells for a typical"
            " mask, or None",
        )


def scaled(q: Array, scale: Any) -> tuple[Array, float | None]:
    """The query, and the scale of the scores; a traced scale is multiplied into the query."""
    if scale is None:
        return q, None
    if not isinstance(scale, Tracer):
        if np.ndim(scale):
            raise ConfigError(
                f"scale has shape {np.shape(scale)}, not ().", option="scale", fix="pass one number"
            )
        if not isinstance(scale, (numbers.Real, np.ndarray, np.generic, Array)):
            raise ConfigError(
                f"scale={scale!r} is not a real number.",
                option="scale",
                fix="pass one number, such as 0.125",
            )
        return q, float(scale)
    if scale.ndim:
        raise ConfigError(
            f"scale is {_described(scale)}, not a scalar.", option="scale", fix="pass one number"
        )
    return q * scale.astype(q.dtype), 1.0


def _are_known(*dims: Any) -> bool:
    return all(isinstance(dim, int) for dim in dims)


def _is_one(dim: Any) -> bool:
    return isinstance(dim, int) and dim == 1


def _described(array: Array) -> str:
    return _compat.describe_aval(jax.typeof(array))
