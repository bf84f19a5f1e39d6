"""A program of a user's who checks types: tests/test_releases.py runs pyright and mypy over it.

Each `assert_type` is what an editor shows; both checkers have it at their strictest. What a call
returns is of any type: it depends on `fn` and on `returns=`.
"""

# JAX leaves parts of its own types open: `jnp.ones` is partly unknown to pyright.
# pyright: reportUnknownMemberType=false

import functools
from collections.abc import Mapping
from typing import assert_type

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from shapeexec.attention import flax_attention_fn


class Third(sx.Strategy):
    """A strategy of a user's own."""

    def bucket(self, size: int) -> int:
        return -(-size // 3) * 3


def loss(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w).sum()


def main() -> None:
    w, x = jnp.ones(4), np.ones((2, 3, 4), np.float32)
    run = sx.Exec(loss, (None, "b, s, 4"), buckets={"b": Third(), sx.Dim("s"): 8})
    value: jax.Array = run(w, x)
    values: list[jax.Array] = sx.Exec(loss, (None, "s, 4")).map(w, [x[0], x[1]])
    run.warmup(w, x, b=range(1, 9), s=[8, 16])
    run.freeze()
    assert_type(run.cache_size, int)
    assert_type(run.stats, sx.Stats)
    assert_type(run.stats.hits, int)
    assert_type(run.plan(w, x), sx.Plan)
    assert_type(str(run.explain(w, x)), str)
    assert_type(run.variant(buckets="pow2"), sx.Exec)
    sizes: Mapping[str, int] = run.plan(w, x).sizes
    print(value, values, sizes, sx.validate(run, w, x).comparisons)
    try:
        run(w, np.ones((70, 3, 4), np.float32))
    except sx.FrozenError as error:
        print(type(error).__name__, bool(error.fix))


def attend(x: jax.Array) -> jax.Array:
    mask = sx.Causal() & sx.SlidingWindow(7) | sx.Global(2)
    out = sx.dot_product_attention(x, x, x, mask=mask)
    assert_type(out, jax.Array)
    return out + functools.partial(flax_attention_fn, within=mask)(x, x, x)


@sx.bucketed(("s",), buckets=sx.Ladder([8, 16], beyond="exact"))
def total(x: jax.Array) -> jax.Array:
    return x.sum()


if __name__ == "__main__":
    main()
    print(total(jnp.ones(3)), sx.eval_shape(attend, "b, s, 2, 4"))
