"""Random numbers over ragged shapes: the very bits of the unpadded call."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from tests.cases._case import Case
from tests.tolerance import DRAWN, EQUAL, FEW


def dropout(x, seed):
    return jnp.where(random.bernoulli(random.key(seed), 0.5, x.shape), 2 * x, 0)


def narrow_bits(x):
    key = random.key(0)
    return random.bits(key, x.shape, jnp.uint8), random.bits(key, x.shape[1:], jnp.uint16)


def keys_per_row(x):
    keys = random.split(random.key(0), x.shape[0])
    return jax.vmap(lambda key: random.uniform(key, (x.shape[1],)))(keys)


def keys_in_scan(x):
    keys = random.split(random.PRNGKey(0), x.shape[1])
    return jax.lax.scan(lambda sum_, key: (sum_ + random.bits(key), None), np.uint32(0), keys)[0]


def gamma_per_row(x):
    keys = random.split(random.key(0), x.shape[0])
    return jax.vmap(random.gamma)(keys, jnp.abs(x) + 0.1)


CASES = (
    Case(
        "permutation",
        lambda x: (
            random.permutation(random.key(0), x),
            random.permutation(random.key(1), x.shape[0]),
        ),
        ("s, b",),
        loose=DRAWN,
    ),
    Case(
        "choice",
        lambda x: (
            random.choice(random.key(0), x, (4,)),
            random.choice(random.key(1), x.shape[0], x.shape, replace=False),
        ),
        ("s",),
        loose=DRAWN,
    ),
    Case("dropout", dropout, ("b, s", ""), dtypes=(np.float32, np.int32), loose=DRAWN),
    Case(
        "normal on a leading ragged axis",
        lambda x: random.normal(random.key(0), (x.shape[0], 3)),
        ("b",),
        naive="agrees",
        loose=DRAWN,
    ),
    Case("categorical", lambda x: random.categorical(random.key(0), x), ("b, s",)),
    Case("narrow bits", narrow_bits, ("b, s",), loose=EQUAL),
    Case(
        "integers",
        lambda x: random.randint(random.key(0), (3, x.shape[0], 2), 0, 1000),
        ("s",),
        loose=EQUAL,
    ),
    Case(
        "split into a ragged number of keys",
        lambda x: random.key_data(random.split(random.key(0), x.shape)),
        ("b, s",),
        loose=EQUAL,
    ),
    Case("a key per row", keys_per_row, ("b, s",), naive="agrees", loose=DRAWN),
    Case("a key per step of a scan", keys_in_scan, ("b, s",), loose=EQUAL),
    Case(
        "gamma",
        lambda x: random.gamma(random.key(0), jnp.abs(x) + 0.1),
        ("b, s",),
        loose=FEW,
    ),
    Case("gamma with a key per row", gamma_per_row, ("b, s",), naive="agrees"),
)
