"""Fourier transforms: along a ragged axis, at its true length, by the chirp z-transform.

With jk = (j^2 + k^2 - (k - j)^2) / 2 a transform of any length becomes a convolution with a chirp,
which needs a transform of a length that need only be great enough: a constant. What XLA does at
lengths with large prime factors is done here at each length. Static axes are transformed by XLA.

Source: L. I. Bluestein, "A linear filtering approach to the computation of discrete Fourier
transform", IEEE Transactions on Audio and Electroacoustics 18 (1970), 451-455.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking._context import RuleContext
from shapeexec.masking._fill import Length, conform
from shapeexec.masking._registry import register

_FORWARD = (lax.FftType.FFT, lax.FftType.RFFT)


@register("fft", exact_when="what it transforms along a ragged axis is finite")
def fft(
    ctx: RuleContext, operand: Array, *, fft_type: Any, fft_lengths: tuple[int, ...], **params: Any
) -> Array:
    """Fill: 0 along each transformed axis, and a chirp of the true length where it is ragged."""
    kind = lax.FftType(fft_type)
    axes = list(range(operand.ndim - len(fft_lengths), operand.ndim))
    lengths = dict(zip(axes, ctx.extents.lengths(ctx.params["fft_lengths"]), strict=True))
    ragged = {*ctx.operands[0].padded(axes), *(a for a in axes if not isinstance(lengths[a], int))}
    if not ragged:
        return ctx.bind(operand, fft_type=fft_type, fft_lengths=fft_lengths, **params)
    is_inverse = kind not in _FORWARD
    x = operand
    if kind == lax.FftType.RFFT:
        x = x.astype(jnp.result_type(x.dtype, np.complex64))
    sizes, shape = dict(zip(axes, fft_lengths, strict=True)), ctx.operands[0].capacities
    # The halved axis is completed last: until then the others hold spectra.
    for axis in axes if is_inverse else reversed(axes):
        if kind == lax.FftType.IRFFT and axis == axes[-1]:
            x = _hermitian(x, lengths[axis], size=sizes[axis], axis=axis)
        shape = _with(shape, axis, size=sizes[axis])
        x = _transform(conform(x, shape), lengths[axis], axis=axis, is_inverse=is_inverse)
    return x.real if kind == lax.FftType.IRFFT else x


def _hermitian(half: Array, length: Length, *, size: int, axis: int) -> Array:
    """The spectrum of `length` elements from its first half: a spectrum of reals is mirrored."""
    position = lax.iota(np.int32, size)
    is_given = position <= length // 2
    source = jnp.where(is_given, position, length - position)
    whole = jnp.take(half, source, axis=axis, mode="clip")
    mask = _compat.broadcast_in_dim(is_given, _with((1,) * half.ndim, axis, size=size), (axis,))
    # The imaginary part of an element that is its own mirror image stays imaginary, and is dropped.
    return jnp.where(mask, whole, whole.conj())


def _transform(x: Array, length: Length, *, axis: int, is_inverse: bool) -> Array:
    """The transform of the first `length` elements along `axis`."""
    x = jnp.moveaxis(x, axis, -1)
    size = x.shape[-1]
    if isinstance(length, int):
        out = (jnp.fft.ifft if is_inverse else jnp.fft.fft)(x)
        return jnp.moveaxis(out, -1, axis)
    position = lax.iota(np.int32, size)
    chirp = _chirp(position, length, dtype=x.dtype)
    if is_inverse:
        chirp = chirp.conj()
    x = jnp.where(position < length, x * chirp, 0)
    wide = 1 << max(0, 2 * size - 2).bit_length()
    # The chirp of |k - j|, for k - j from 1 - size to size - 1, around the circle.
    kernel = jnp.concatenate(
        [chirp, lax.full((wide - 2 * size + 1,), 0, x.dtype), jnp.flip(chirp[1:])]
    ).conj()
    product = jnp.fft.fft(x, wide) * jnp.fft.fft(kernel)
    out = jnp.fft.ifft(product)[..., :size] * chirp
    out = out / _compat.asarray(length, x.real.dtype) if is_inverse else out
    return jnp.moveaxis(out, -1, axis)


def _chirp(position: Array, length: Array, *, dtype: Any) -> Array:
    """exp(-i pi j^2 / n) for each position j.

    The angle is reduced in integers, to within an eighth of a turn: neither j^2 nor a large angle
    loses digits.
    """
    turn = 2 * length.astype(np.uint32)  # j^2 counts modulo 2n
    number = position.astype(np.uint32)
    square = lax.full_like(number, 0)
    for bit in reversed(range(max(1, int(position.size)).bit_length())):
        square = (2 * square) % turn
        square = jnp.where((number >> bit) & 1 == 1, (square + number) % turn, square)
    # 4 * square / turn quarters of a turn: the nearest, and eighths beyond it.
    quarter = ((4 * square + turn // 2) // turn).astype(np.int32)
    rest = 4 * square.astype(np.int32) - quarter * turn.astype(np.int32)
    real = _compat.finfo(dtype).dtype
    angle = rest.astype(real) * (np.pi / 2) / turn.astype(real)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    corners: Sequence[tuple[Array, Array]] = (
        (cosine, -sine),
        (-sine, -cosine),
        (-cosine, sine),
        (sine, cosine),
    )
    parts = [jnp.choose(quarter % 4, part, mode="clip") for part in zip(*corners, strict=True)]
    return lax.complex(*parts).astype(dtype)


def _with(shape: Sequence[int], axis: int, *, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])
