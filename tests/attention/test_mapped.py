"""Mask functions where calls are mapped: b is the number of an example in its own call."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from tests.marks import marked_slow
from tests.tolerance import assert_close


def by_example(b, h, q, k):
    return k <= q - b


def by_all(b, h, q, k):
    return (k <= q + h) & ((k + b) % 3 != 1)


MASKS = {
    "of examples": sx.MaskFunction(by_example),
    "of all": sx.MaskFunction(by_all),
    "joined": ~(sx.Causal() & ~sx.MaskFunction(by_example)) | sx.Global(2),
    "of tiles": sx.BlockMask.from_mask(
        sx.MaskFunction(by_example), query_size=20, key_size=20, tile=(8, 8), batch=2
    ),
}


def attend(x, mask):
    return sx.dot_product_attention(x, x, x, mask=mask)


def normal(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), np.float32)


def looped(f, x):
    return jnp.stack([f(part) for part in x])


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("times", marked_slow([1, 2], [2]))
def test_each_mapped_call_asks_for_its_own_examples(name, times):
    run = jax.jit(functools.partial(attend, mask=MASKS[name]))
    x = normal(*(3, 2)[2 - times :], 2, 20, 2, 8)
    mapped, loop = run, run
    for _ in range(times):
        mapped, loop = jax.vmap(mapped), functools.partial(looped, loop)

    def with_gradient(f, x):
        out, transpose = jax.vjp(f, x)
        return out, *transpose(out)

    both = jax.jit(lambda x: [with_gradient(f, x) for f in (mapped, loop)])(x)
    for result, expected in zip(*both, strict=True):
        assert_close(result, expected)


def test_a_mapped_call_asks_for_its_own_example_within_loops_and_where_it_has_one():
    x, run = normal(3, 20, 2, 8), functools.partial(attend, mask=MASKS["of examples"])
    assert_close(jax.vmap(run)(x), looped(run, x))
    assert_close(jax.lax.map(run, x), looped(run, x))
    assert_close(jax.lax.map(run, x, batch_size=2), looped(run, x))


def test_examples_that_an_exec_maps_are_each_the_first():
    examples = [np.asarray(normal(n, 2, 8)) for n in (3, 20, 7)]
    run = functools.partial(attend, mask=MASKS["of examples"])
    results = sx.Exec(run, ("s, _, _",), buckets=sx.Linear(24)).map(examples)
    for example, result in zip(examples, results, strict=True):
        assert_close(result, run(example))


def test_batches_that_an_exec_maps_keep_their_examples():
    batches = [np.asarray(normal(b, s, 2, 8)) for b, s in ((1, 5), (3, 20), (2, 9))]
    run = functools.partial(attend, mask=MASKS["of all"])
    results = sx.Exec(run, ("b, s, _, _",), buckets={"b": sx.Linear(4), "s": sx.Linear(24)}).map(
        batches
    )
    for batch, result in zip(batches, results, strict=True):
        assert_close(result, run(batch))


def test_a_mapped_axis_over_a_batch_of_unknown_size_is_refused_or_exact():
    x = np.asarray(normal(3, 2, 20, 2, 8))
    run = jax.vmap(functools.partial(attend, mask=MASKS["of all"]))
    with pytest.raises(sx.InconclusiveShapeError, match=r"(?s)by_all under `vmap` .*Fix:.*exact"):
        sx.Exec(run, ("_, b, _, _, _",))(x)
    exact = sx.Exec(run, ("_, b, _, _, _",), on_unsupported="exact")
    assert_close(exact(x), run(x))


@pytest.mark.parametrize("wrap", [jax.vmap, lambda f: lambda x: jax.lax.map(f, x), jax.jit])
def test_a_traced_array_that_a_function_closes_over_is_refused(wrap):
    x = normal(2, 20, 2, 8)

    def run(i):
        return attend(x, sx.MaskFunction(lambda b, h, q, k: k <= q - i))

    with pytest.raises(sx.ConfigError, match=r"(?s)closes over a traced array.*Fix:.*Documents"):
        wrap(run)(jnp.int32(3) if wrap is jax.jit else jnp.arange(3))
