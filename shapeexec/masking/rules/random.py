"""Random numbers: each element is drawn at its position in the logical shape.

Threefry is a hash of a key and a counter, and the counter is an element's row-major position, so
an element behind which there is padding is drawn as if there were none.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking._context import RuleContext
from shapeexec.masking._fill import Length, one
from shapeexec.masking._registry import register

_UINT = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_COUNTERS = 2**32
_THREEFRY = "threefry2x32"
_EXACT_WHEN = "the generator is threefry2x32, and draws less than 2^31 elements"

Hash = Callable[[Any, Any], tuple[Array, Array]]
"""`hash_pair(x1, x2)`: threefry under keys whose axes stand in front of the counters'."""


@register("random_bits", exact_when=_EXACT_WHEN)
def random_bits(ctx: RuleContext, keys: Array, *, bit_width: int, shape: Any) -> Array:
    """Move: the bits of each element are drawn for its position in the logical shape."""
    _check_threefry(ctx, keys)
    logical = ctx.params["shape"]
    if all(isinstance(dim, int) for dim in logical):
        return ctx.bind(keys, bit_width=bit_width, shape=shape)  # only keys are padded
    position, count = _positions(ctx, shape, lengths=ctx.extents.lengths(logical))
    hash_pair = _hash(keys, len(shape))
    if _compat.threefry_is_partitionable():
        first, second = hash_pair(np.uint32(0), position)
        if bit_width < 64:
            return (first ^ second).astype(_UINT[bit_width])
        return _join_words(first, second)
    if bit_width == 64:
        return _join_words(*hash_pair(position, position + count))
    # A word holds several narrow elements, the lowest bits first.
    per_word = np.uint32(32 // bit_width)
    words = (count + (per_word - 1)) // per_word
    word = _word(hash_pair, position // per_word, count=words)
    return (word >> (position % per_word * np.uint32(bit_width))).astype(_UINT[bit_width])


@register("random_split", exact_when=_EXACT_WHEN)
def random_split(ctx: RuleContext, keys: Array, *, shape: Any) -> Array:
    """Move: each new key is split off for its position in the logical shape."""
    _check_threefry(ctx, keys)
    logical = ctx.params["shape"]
    if all(isinstance(dim, int) for dim in logical):
        return ctx.bind(keys, shape=shape)  # only keys are padded
    position, count = _positions(ctx, shape, lengths=ctx.extents.lengths(logical))
    return _split_keys(keys, position, count=count)


@register("random_gamma", exact_when=_EXACT_WHEN)
def random_gamma(ctx: RuleContext, keys: Array, alpha: Array, *, log_space: bool) -> Array:
    """Move: each element's own key is split off at its position; padding of alpha becomes 1.

    The sampler rejects until it accepts, which for an unspecified alpha it might never do.
    """
    _check_threefry(ctx, keys)
    alpha = ctx.fill(1, one(alpha.dtype))
    shaped = ctx.operands[1]
    drawn, lengths = shaped.capacities[keys.ndim :], shaped.lengths[keys.ndim :]
    position, count = _positions(ctx, drawn, lengths=lengths)
    own_keys = _split_keys(keys, position, count=count).reshape(-1)
    sample = _compat.gamma_one()

    def draw(key: Array, of_alpha: Array) -> Array:
        return sample(key, of_alpha, log_space=log_space)

    samples = jax.vmap(draw)(own_keys, alpha.ravel())
    return samples.reshape(shaped.capacities)


@register("iota_2x32_shape", exact_when="there are less than 2^31 elements")
def iota_2x32_shape(ctx: RuleContext, *, shape: Any) -> Any:
    """Move: row-major positions in the logical shape, as a high and a low word."""
    position, _ = _positions(ctx, shape, lengths=ctx.results[0].lengths)
    return [lax.full_like(position, 0), position]


@register("rng_bit_generator", "rng_uniform")
def device_generator(ctx: RuleContext, *_: Array, **__: Any) -> Any:
    """Refuse: the device's own generator draws for a shape as a whole."""
    raise ctx.unsupported_error(
        "the device's generator draws other bits for another shape",
        ctx.results[-1].dims,
        fix='jax.random.bits(jax.random.key(seed, impl="threefry2x32"), shape)',
    )


def _check_threefry(ctx: RuleContext, keys: Array) -> None:
    impl = jax.random.key_impl(keys)
    if str(impl) != _THREEFRY:
        raise ctx.unsupported_error(
            f"the bits of the {impl} generator depend on the whole shape",
            fix='jax.random.key(seed, impl="threefry2x32")',
        )


def _positions(
    ctx: RuleContext, capacities: Sequence[int], *, lengths: Sequence[Length]
) -> tuple[Array, Array]:
    """u32[capacities]: each element's row-major position in the logical shape; and their number."""
    if math.prod(capacities) >= _COUNTERS // 2:
        raise ctx.unsupported_error("more than 2^31 random elements would need counters of 64 bits")
    position = lax.full(tuple(capacities), 0, np.uint32)
    count = lax.full((), 1, np.uint32)
    for axis, length in enumerate(lengths):
        extent = _compat.asarray(length, np.uint32)
        position = position * extent + _compat.broadcasted_iota(np.uint32, position.shape, axis)
        count = count * extent
    return position, count


def _hash(keys: Array, rank: int) -> Hash:
    """Threefry under each of `keys`, over counters of `rank` axes."""
    data = jax.random.key_data(keys)
    ones = (1,) * rank
    key1, key2 = (data[..., i].reshape(keys.shape + ones) for i in range(2))

    def hash_pair(x1: Any, x2: Any) -> tuple[Array, Array]:
        x1, x2 = jnp.broadcast_arrays(x1, x2)
        shape = keys.shape + x1.shape
        own = [jnp.broadcast_to(key, shape) for key in (key1, key2)]
        counters = [jnp.broadcast_to(x[(None,) * keys.ndim], shape) for x in (x1, x2)]
        # Where keys or counters alone are vmapped, JAX would leave the others an axis of 1, and the
        # primitive does not broadcast. XLA finds the zero.
        zero = (own[0] & 0) | (counters[0] & 0) | (counters[1] & 0)
        operands = [x | zero for x in (*own, *counters)]
        first, second = _compat.bind(_compat.threefry2x32_p, *operands)
        return first, second

    return hash_pair


def _split_keys(keys: Array, position: Array, *, count: Array) -> Array:
    """The keys at `position` of `count` that each of `keys` is split into."""
    hash_pair = _hash(keys, position.ndim)
    if _compat.threefry_is_partitionable():
        data = hash_pair(np.uint32(0), position)
    else:
        words = count * np.uint32(2)
        data = [
            _word(hash_pair, position * np.uint32(2) + np.uint32(i), count=words) for i in range(2)
        ]
    return _compat.wrap_key_data(jnp.stack(data, -1), impl=_THREEFRY)


def _word(hash_pair: Hash, index: Array, *, count: Array) -> Array:
    """Word `index` of the `count` that the original (not partitionable) generator draws.

    It hashes the counters in pairs, one from the first half and one from the second, which a 0
    completes if `count` is odd; words follow in the order of the counters.
    """
    half = (count + np.uint32(1)) // np.uint32(2)
    in_front = index < half
    partner = jnp.where(in_front, index + half, index - half)
    partner = jnp.where(partner < count, partner, np.uint32(0))
    first, second = hash_pair(
        jnp.where(in_front, index, partner), jnp.where(in_front, partner, index)
    )
    return jnp.where(in_front, first, second)


def _join_words(high: Array, low: Array) -> Array:
    return (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)
