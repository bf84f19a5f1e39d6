"""Numbers that code computes from sizes, in Python and NumPy, and what becomes of them in JAX."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.cases._case import Case


def in_a_loop(x: jax.Array) -> jax.Array:
    """A number that each step of a Python loop makes of the last one."""
    decay = x.shape[0] / 3
    for _ in range(200):
        decay = decay * 0.9 + x.shape[0] ** 0.5 / 10
    return x * decay


def by_outcome(x: jax.Array) -> jax.Array:
    """Questions of numbers that no dim is."""
    n = x.shape[0]
    small = n / 2 < 2.5 or math.floor(n * 0.3) == 2
    return x.sum() if small else x.max()


def unless_it_divides_by_zero(x: jax.Array) -> jax.Array:
    """An exception of Python's arithmetic decides."""
    try:
        return x * (1 / (x.shape[0] - 5))
    except ZeroDivisionError:
        return x + 1


def carried(x: jax.Array) -> jax.Array:
    """A number as the carry of a loop, beside one that is captured."""
    n = x.shape[0]
    return lax.scan(lambda c, v: (c + v * (n / 3), c * (n**0.5)), n / 2, x)[1]


PLUS_ONE = np.frompyfunc(lambda a: np.float64(a + 1), 1, 1)
TRIPLE = np.frompyfunc(lambda a: np.float64(a * 3), 1, 1)


def _case(name, fn, in_shapes=("s",), **options) -> Case:
    return Case(name, fn, in_shapes, **{"naive": "differs", **options})


CASES = (
    _case("pairs", lambda x: x.sum() / (x.shape[0] * (x.shape[0] + 1) / 2)),
    _case("a power of a size", lambda x: x * (1 / 2 ** x.shape[0]) + 3 ** x.shape[0] % 7),
    _case("a decayed weight", lambda x: x.sum() / (1 - 0.9 ** x.shape[0])),
    _case("a negative power", lambda x: x * x.shape[0] ** -0.5 + x.shape[0] ** -1),
    _case("rounding", lambda x: x * round(x.shape[0] / 3, 1) + round(x.shape[0] / 2)),
    _case("a floor, a ceiling", lambda x: x * math.floor(x.shape[0] / 2) + -(-x.shape[0] // 2)),
    _case("quotient and rest", lambda x: x * divmod(x.shape[0], 3)[1] + divmod(x.shape[0], 1.5)[0]),
    _case("bits", lambda x: x * (1 << x.shape[0]) + (x.shape[0] | 8) + (x.shape[0] ^ 3)),
    _case("methods of an int", lambda x: x * x.shape[0].bit_length() + x.shape[0].real),
    _case(
        "methods of a float", lambda x: x * (x.shape[0] / 2).is_integer() + (x.shape[0] / 3).real
    ),
    _case("two sizes", lambda x: x * (x.shape[0] / x.shape[1]) ** 1.5, ("b, s",)),
    _case("a complex number", lambda x: (x * (x.shape[0] * 1j)).imag),
    _case("bf16 by way of f32", lambda x: x * (x.shape[0] * 0.1), dtypes=jnp.bfloat16),
    _case(
        "a product of a shape",
        lambda x: x * np.prod(x.shape) + np.sum(x.shape) - np.max(x.shape),
        ("b, s",),
        dtypes=np.uint8,
    ),
    _case(
        "a product of a shape, with options",
        lambda x: (
            x * np.prod(x.shape) + np.sum(x.shape),
            x * np.prod(x.shape, dtype=np.float32) + np.sum(x.shape, dtype=np.int16),
            x * np.prod(x.shape, initial=3) + np.sum(x.shape, keepdims=True),
            x * np.sum(x.shape, None, np.float32) + np.max(x.shape, initial=100),
        ),
        ("b, s",),
        dtypes=np.uint8,
    ),
    _case(
        "a product with an option is a shape",
        lambda x: x.reshape(np.prod(x.shape, dtype=int)) * np.prod(x.shape, dtype=int),
        ("b, s",),
    ),
    _case(
        "a product along an axis, of sizes and arrays",
        lambda x: np.prod((x.shape[0], np.array([0.1, 0.2])[1]), axis=0) * x,
    ),
    _case(
        "NumPy's scalars",
        lambda x: (x * (np.int64(2) * x.shape[0]), x * np.float32(0.1) * np.sqrt(x.shape[0])),
        dtypes=np.uint8,
    ),
    _case("NumPy's mean of a shape", lambda x: x * np.mean(x.shape) + np.log(np.prod(x.shape))),
    _case(
        "parts of an array of NumPy",
        lambda x: sum((np.array([0.1, 2.0]) * x.shape[0])[:1]) * x + np.stack([x.shape[0] / 3])[0],
    ),
    _case(
        "ufuncs of one name",
        lambda x: x * PLUS_ONE(x.shape[0] / 2) + 100 * TRIPLE(x.shape[0] / 2),
    ),
    _case(
        "functions of NumPy",
        lambda x: x * np.concatenate([np.arange(2) * x.shape[0], np.ones(1)]).cumsum()[-1],
    ),
    _case("an array of NumPy", lambda x: x.sum() * (np.array([0.1, 0.2]) * x.shape[0])),
    _case("a product is a shape", lambda x: x.reshape(np.prod(x.shape)) * x.shape[0], ("b, s",)),
    _case("conversions", lambda x: x * jnp.float32(x.shape[0] / 3) + jnp.asarray(x.shape[0] * 0.1)),
    _case("filled with it", lambda x: jnp.full_like(x, x.shape[0] / 3) + jnp.full(3, 0.1)[0]),
    _case("a list with it", lambda x: jnp.array([x.shape[0] / 3, x.shape[0], 2.0]) * x.sum()),
    _case(
        "an argument of functions", lambda x: jnp.maximum(jnp.where(x > 0, x, x.shape[0] / 9), 0.1)
    ),
    _case(
        "an argument of a jitted one", lambda x: jax.jit(lambda y, h: y * h)(x, x.shape[0] * 0.1)
    ),
    _case("captured by a jitted one", lambda x: jax.jit(lambda y: y * (x.shape[0] * 0.1))(x)),
    _case("in a vmap", lambda x: jax.vmap(lambda v: v.sum() * (x.shape[0] / 3))(x), ("b, s",)),
    _case("in both branches", lambda x: lax.cond(x[0] > 0, lambda: x.shape[0] / 3, lambda: 0.5)),
    _case("in a gradient", jax.grad(lambda x: (x**2).sum() / (x.shape[0] * 0.5))),
    _case("an index", lambda x: x[round(x.shape[0] / 2) - 1] + x[x.shape[0] // 2]),
    _case("a loop in Python", in_a_loop),
    _case("a loop in JAX", carried),
    _case("questions", by_outcome),
    _case("an exception", unless_it_divides_by_zero),
    _case("results", lambda x: (x.shape[0] / 3, x.shape[0], round(x.shape[0] / 2))),
)
