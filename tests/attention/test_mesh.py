"""Attention on a mesh of four devices: types keep their sharding, and numbers are those of one."""

import pytest

from tests.processes import on_devices

SHARDED = "tests.attention.sharded"
PROGRAM = """
import sys

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from tests.tolerance import assert_close

P = jax.P
random = np.random.default_rng(0)
Q, K, V, D = (random.normal(size=(4, 20, 4, 8)).astype(np.float32) for _ in range(4))
BIAS = random.normal(size=(1, 4, 1, 20)).astype(np.float32)
IDS = np.tile(np.arange(20) // 7, (4, 1)).astype(np.int32)
LENGTHS = np.array([20, 3, 9, 1], np.int32)
ARRAYS = (Q, K, V, BIAS, D, IDS, LENGTHS)
CUTS = {
    "examples and heads": (
        *[P("d", None, "m")] * 3, P(None, "m"), P("d", None, "m"), P("d"), P("d")
    ),
    "one axis twice": (P("d"), P(), P(None, None, None, ("d", "m")), P(), P("d"), P(), P()),
    "values": (P("d"), P("d"), P(None, None, None, "m"), P(), P("d", None, None, "m"), P(), P()),
}


def attend(q, k, v, bias, d_out, ids, n):
    mask = sx.Causal() & sx.Documents(ids)
    return sx.dot_product_attention(q, k, v, bias, mask, key_value_seq_lengths=n)


def gradients(q, k, v, bias, d_out, ids, n):
    out, transpose = jax.vjp(lambda *x: attend(*x, d_out, ids, n), q, k, v, bias)
    return out, transpose(d_out)


def along(q, k, v, bias, d_out, ids, n):
    return jax.jvp(lambda q: attend(q, k, v, bias, d_out, ids, n), (q,), (q,))


def dropped(q, k, v, bias, d_out, ids, n):
    def total(q):
        key = jax.random.key(0)
        return (sx.dot_product_attention(q, k, v, dropout_rate=0.3, dropout_key=key) ** 2).sum()

    return jax.grad(total)(q)


def paged(q, k, v, bias, d_out, ids, n):
    # Keys and values are 4 pages of 20, whatever they are divided over.
    def total(*x):
        pages = ids[:, ::7] + 1
        return (sx.dot_product_attention(*x, pages=pages, key_value_seq_lengths=3 * n) ** 2).sum()

    return jax.grad(total, argnums=(0, 1, 2))(q, k, v)


def types(tree):
    return [jax.typeof(x) for x in jax.tree.leaves(tree)]


kind = sys.argv[1]
if kind == "default":
    mesh = jax.make_mesh((2, 2), ("d", "m"))
else:
    mesh = jax.make_mesh((2, 2), ("d", "m"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
is_explicit = mesh.axis_types[0] == jax.sharding.AxisType.Explicit
cuts_of = CUTS if is_explicit else {"examples and heads": CUTS["examples and heads"]}
want = jax.jit(gradients)(*ARRAYS)
with jax.set_mesh(mesh):
    for name, cuts in cuts_of.items():
        given = [jax.device_put(x, jax.NamedSharding(mesh, cut)) for x, cut in zip(ARRAYS, cuts)]
        out, of_operands = jax.jit(gradients)(*given)
        assert_close((out, of_operands), want)
        if is_explicit:
            assert types(of_operands) == types(tuple(given[:4])), name
            expected = P("d", None, None, "m") if name == "values" else cuts[0]
            expected = tuple(expected) + (None,) * (4 - len(expected))
            assert tuple(jax.typeof(out).sharding.spec) == expected, (name, jax.typeof(out))
given, cuts = ARRAYS, CUTS["examples and heads"]
more = [jax.jit(f)(*ARRAYS) for f in (along, dropped, paged)]
mapped = jax.jit(jax.vmap(gradients, (0, 0, 0, None, 0, 0, 0)))
two = [x if x is BIAS else np.stack([x, x[::-1]]) for x in ARRAYS]
want_mapped = mapped(*two)
with jax.set_mesh(mesh):
    given = [jax.device_put(x, jax.NamedSharding(mesh, cut)) for x, cut in zip(ARRAYS, cuts)]
    for f, right in zip((along, dropped, paged), more):
        assert_close(jax.jit(f)(*given), right)
    given = [
        x if i == 3 else jax.device_put(y, jax.NamedSharding(mesh, P(None, *cut)))
        for i, (x, y, cut) in enumerate(zip(given, two, cuts))
    ]
    assert_close(mapped(*given), want_mapped)
print("all", len(cuts_of), is_explicit)
"""


def run_on_four_devices(*arguments):
    return on_devices(4, *arguments).split()


@pytest.mark.parametrize("kind", [pytest.param("default", marks=pytest.mark.slow), "auto"])
def test_types_keep_their_sharding_and_numbers_do_not_change(kind):
    printed = run_on_four_devices("-c", PROGRAM, kind)
    assert printed == ["all", "3" if kind == "default" else "1", str(kind == "default")]


def test_examples_and_heads_stay_on_their_devices():
    # The gradient by a key head that two devices share is the sum of theirs, and so are those by
    # the pages of keys and of values.
    assert run_on_four_devices("-m", SHARDED, "Auto", "quick") == ["all-reduce", "0", "1", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_every_mask_stays_on_its_devices(kind):
    printed = run_on_four_devices("-m", SHARDED, kind, "all")
    # They sum gradients by a bias or a key head that devices share, and find out whether any score
    # is large. Cut are examples and heads, examples, heads.
    expected = (
        "bias dropout one_key_head pages | bias dropout pages"
        " | lengths documents dropout one_key_head |"
    )
    assert printed == expected.split()
