"""Templates of what code does with sizes: arithmetic in Python and NumPy, and questions.

The holes are those of `templates`; {e} is a number that is computed from sizes.
"""

import jax.numpy as jnp
from jax import lax

# Numbers, made of the sizes {x}.shape[{a}] and {x}.shape[{c}].
NUMBERS = """
{x}.shape[{a}] / 2
{x}.shape[{a}] * ({x}.shape[{a}] - 1) / 2
1 / 2 ** {x}.shape[{a}]
3 ** {x}.shape[{a}] % 7
0.9 ** {x}.shape[{a}]
{x}.shape[{a}] ** -0.5
{x}.shape[{a}] ** {x}.shape[{c}] % 11
round({x}.shape[{a}] / 3, 1)
round({x}.shape[{a}] * 0.6)
divmod({x}.shape[{a}], 3)[1]
{x}.shape[{a}] // 2.5
({x}.shape[{a}] * 2654435761) % 97
{x}.shape[{a}] ** 5 % 1000
(1 << {x}.shape[{a}]) + ({x}.shape[{c}] | 5)
abs({x}.shape[{a}] - {x}.shape[{c}]) + 0.5
{x}.shape[{a}].bit_length()
math.ceil({x}.shape[{a}] / 2)
min({x}.shape[{a}] / 2, 2.5)
({x}.shape[{a}] if {x}.shape[{a}] / 2 > 2.2 else -1.5)
np.prod({x}.shape) / 7
np.max({x}.shape) + np.int64(2) * {x}.shape[{a}]
np.mean({x}.shape)
np.sqrt({x}.shape[{a}])
np.float32(0.1) * {x}.shape[{a}]
float(np.prod((2, 3))) * {x}.shape[{a}]
len(str({x}.shape[{a}] / 2))
"""

# What meets a number in JAX.
USES = """
{x} * ({e})
{x} + ({e})
({e}) - {x}
{x} / (1 + abs({e}))
jnp.maximum({x}, {e})
jnp.where({m}, {x}, {e})
{x} * jnp.float32({e})
{x} + jnp.asarray({e})
{x} + jnp.full({x}.shape, {e}, jnp.float32)
{x}.at[0].set({e})
jnp.full((3,), {e}) * {x}.sum()
jax.vmap(lambda r: r * ({e}))({x})
jax.jit(lambda v: v * ({e}))({x})
jax.lax.scan(lambda c, r: (c * 0.5 + ({e}), r + c), 0.0 * ({e}), {x})[1]
jax.lax.cond({x}.sum() > 0.37, lambda v: v * ({e}), lambda v: v, {x})
jax.grad(lambda v: ((v * ({e})) ** 2).sum())({x})
{x}[round({x}.shape[0] / 3)]
{x}.sum() / ({e}) if {x}.shape[0] / 3 > 1.1 else {x}.max()
"""

# Questions of the types of arrays, and code that catches an exception.
QUESTIONS = """
{x}.sum({a}) if jax.typeof({x}) == jax.typeof(jnp.zeros((3, 5))) else {x}.max({a})
{x} * (2 if jax.ShapeDtypeStruct({x}.shape, {x}.dtype) in (jax.typeof({x}), None) else 3)
{x} + len(str(jax.typeof({x}))) % 2
{x} * (2 if jax.eval_shape(jnp.sin, {x}) == jax.ShapeDtypeStruct((3, 5), jnp.float32) else 3)
{x} * (2 if {x}.shape == (3, 5) else 3)
{x} * (2 if type({x}.shape[{a}]) is int else 3)
attempt(lambda: {x} + jnp.ones(5), lambda: {x} * 2)
attempt(lambda: {x} @ {z}, lambda: {x} * 3)
attempt(lambda: jnp.stack([{x}, {z}]).sum(0), lambda: {x} - 1)
attempt(lambda: {x} * (1 / ({x}.shape[{a}] - 5)), lambda: {x} + 1)
"""

# Layers with strides, forward, and their gradients inside of the program.
STRIDED = """
strided({x}.reshape(1, -1, 1), 2, "SAME")[0]
strided({x}.reshape(1, -1, 1), 3, "VALID", 1)[0]
strided(strided({x}.reshape(1, -1, 1), 2, "SAME"), 2, "SAME")[0, :, 0]
strided(jnp.tanh(strided({x}.reshape(1, -1, 1), 2, [(1, 1)])), 3, [(1, 0)])[0]
jax.grad(lambda v: (strided(strided(v.reshape(1, -1, 1), 2, "SAME"), 2, "SAME") ** 2).sum())({x})
jax.grad(lambda v: (v[..., ::2] ** 2).sum() + (v[1::3] ** 3).sum())({x})
jax.lax.reduce_window({x}.ravel(), -jnp.inf, jax.lax.max, (3,), (2,), "SAME")
jax.lax.reduce_window({x}.ravel(), 0.0, jax.lax.add, (2,), (2,), [(1, 1)])
jax.grad(lambda v: pooled(v, 0.0, jax.lax.add, 3).std())({x})
jax.grad(lambda v: pooled(v, -9e9, jax.lax.max, 2).var())({x})
jax.grad(lambda v: jax.lax.pad(v, 0.0, [({n} - 2, {k}, 1)] * v.ndim).var())({x})
"""


def attempt(first, second):
    """What code does that tries something, and then something else."""
    try:
        return first()
    except Exception:
        return second()


def strided(x, stride, padding, width=3):
    """A convolution of [batch, space, 1] with a stride."""
    kernel = jnp.cos(jnp.arange(float(width))).reshape(width, 1, 1)
    return lax.conv_general_dilated(
        x, kernel, (stride,), padding, dimension_numbers=("NHC", "HIO", "NHC")
    )


def pooled(x, init, combine, width):
    """A pooling of all elements, in order, with stride 2."""
    return lax.reduce_window(x.ravel(), init, combine, (width,), (2,), "SAME")


def uses() -> tuple[str, ...]:
    """Each use with each number: `{e}` is filled in, the other holes are not."""
    numbers, ways = NUMBERS.strip().splitlines(), USES.strip().splitlines()
    return tuple(way.replace("{e}", number) for number in numbers for way in ways)
