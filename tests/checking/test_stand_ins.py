"""Stand-ins run in the plain trace where they ran in the symbolic one, and nowhere else."""

import threading

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import shapeexec as sx
from shapeexec.checking import Difference, check
from tests.checking.support import examined, f32, leaf, plain_jaxpr, traced_at
from tests.execution.support import assert_runs_as, ones

KEY = jax.random.key(5)
SIZES = ({"s": 1}, {"s": 3}, {"s": 12})


def standing(x):
    """Functions that have stand-ins, one of them in another, all of an array f32[s]."""
    places = jnp.searchsorted(jnp.sort(x), x)
    shuffled = jax.random.permutation(KEY, x) + jax.random.permutation(KEY, x.shape[0])
    sums = lax.associative_scan(lambda a, b: a + b * jnp.searchsorted(x, 0.5), x)
    return jnp.sin(x).prod() + (places + shuffled + sums) / 32


@jax.custom_vjp
def with_own_gradient(x):
    return standing(x)


with_own_gradient.defvjp(lambda x: (standing(x), x), lambda x, ct: (ct * standing(x),))


def total(fn):
    return lambda x: jnp.sin(fn(x)).sum()


def twice_in_scans(x):
    def step(carry, row):
        inner, _ = lax.scan(lambda c, _: (c + standing(row), None), carry, None, length=2)
        return inner, None

    return lax.scan(step, x, jnp.stack([x, 2 * x]))[0]


def with_a_carry_that_is_traced_again(x):
    """A carry that begins weakly typed: JAX traces the body a second time."""
    step = lambda carry, _: (carry * 1.0 + standing(x).sum(), None)
    return lax.scan(step, 0, None, length=3)[0]


# How a function stands in others, at any depth that JAX traces by itself.
AROUND = {
    "plain": standing,
    "jit": jax.jit(standing),
    "jit, called twice": lambda x: jax.jit(standing)(x) + jax.jit(standing)(x + 1),
    "checkpoint": jax.grad(total(jax.checkpoint(standing))),
    "checkpoint in a scan": jax.grad(
        total(
            lambda x: lax.scan(
                jax.checkpoint(lambda c, _: (c + standing(c), None)), x, None, length=2
            )[0]
        )
    ),
    "grad": jax.grad(total(standing)),
    "grad of jit": jax.grad(total(jax.jit(standing))),
    "hessian": jax.hessian(lambda x: jnp.sin(lax.associative_scan(jnp.multiply, x)).sum()),
    "jvp": lambda x: jax.jvp(standing, (x,), (x,)),
    "vmap": lambda x: jax.vmap(standing)(jnp.stack([x, -x])),
    "vmap of grad": lambda x: jax.vmap(jax.grad(total(standing)))(jnp.stack([x, -x])),
    "custom_vjp": jax.grad(total(with_own_gradient)),
    "scans": twice_in_scans,
    "grad of scans": jax.grad(total(twice_in_scans)),
    "scan over the axis": lambda x: lax.scan(lambda c, e: (c + e, standing(c)), x, x)[1],
    "a body that is traced twice": with_a_carry_that_is_traced_again,
    "cond": lambda x: lax.cond(x.sum() > 0, standing, lambda x: standing(-x), x),
    "switch": lambda x: lax.switch(x.shape[0] % 2, [standing, jnp.sin], x),
    "while": lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + standing(c) ** 2, x),
    "fori_loop up to the size": lambda x: lax.fori_loop(0, x.shape[0], lambda i, c: standing(c), x),
    "map": lambda x: lax.map(standing, jnp.stack([x, -x])),
    "tree": lambda x: jax.tree.map(standing, {"a": x, "b": (x[:, None] * 2).ravel()}),
}


@pytest.mark.parametrize("name", AROUND)
def test_stand_ins_within_any_transformation_are_no_difference(name):
    fn = AROUND[name]
    traced = traced_at(fn, "s", {"s": 5})
    admitted = [sizes for sizes in SIZES if traced.admits(sizes)]
    assert len(admitted) >= 2
    for sizes in admitted:
        assert check(traced, fn, leaves=[leaf("s")], sizes=sizes) is None, sizes


@pytest.mark.parametrize("name", ["plain", "grad", "vmap"])
def test_stand_ins_share_one_graph_of_a_bucket_and_give_the_plain_results(name):
    fn = AROUND[name]
    ex = sx.Exec(fn, ("s",), buckets=sx.Linear(16), check="sizes")
    for size in (5, 1, 16):
        assert_runs_as(fn, ex, ones(size) / 7)
    assert (ex.stats.compiles, ex.stats.differences, ex.stats.checks) == (1, 0, 3)


def tree(v):
    return lax.associative_scan(jnp.add, v)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: [tree(v) for v in (x, jnp.ones(4))],
        lambda x: [tree(v) for v in (jnp.ones(4), x)],
        lambda x: [tree(v) for v in (x, jnp.ones(4), x * 2, jnp.ones(4))],
        lambda x: jax.tree.map(tree, {"a": jnp.ones(4), "b": x}),
    ],
)
def test_known_and_symbolic_sizes_that_are_equal_are_told_apart_by_their_order(fn):
    for sizes in ({"s": 3}, {"s": 4}):
        assert examined(fn, "s", sizes, traced_at={"s": 5}).difference is None


def test_a_shape_that_jax_finds_in_its_cache_costs_a_graph_at_that_size_alone():
    fn = lambda x: [jnp.searchsorted(v, v) for v in (x, jnp.arange(4.0))]
    assert examined(fn, "s", {"s": 3}, traced_at={"s": 5}).difference is None
    found = examined(fn, "s", {"s": 4}, traced_at={"s": 5}).difference
    assert isinstance(found, Difference)
    assert found.text == "`convert_element_type` i32[4] instead of `while` i32[4]"


def test_nothing_of_a_replay_stays_in_jaxs_caches():
    fn = lambda x: tree(x) + jnp.searchsorted(jnp.sort(x), x, method="scan")
    before = str(plain_jaxpr(fn, f32(9)))
    for size in (9, 10):  # one that JAX has traced by itself, and one that it has not
        assert examined(fn, "s", {"s": size}, traced_at={"s": 5}).difference is None
    assert str(plain_jaxpr(fn, f32(9))) == before
    after = str(plain_jaxpr(fn, f32(10)))
    jax.clear_caches()
    assert str(plain_jaxpr(fn, f32(10))) == after


def test_a_plain_trace_in_another_thread_runs_jaxs_own_meanwhile():
    found = []

    def fn(x):
        result = tree(x)
        if type(x.shape[0]) is int:
            thread = threading.Thread(target=lambda: found.append(str(plain_jaxpr(tree, f32(6)))))
            thread.start()
            thread.join()
        return result

    assert examined(fn, "s", {"s": 6}).difference is None
    assert found == [str(plain_jaxpr(tree, f32(6)))]


def test_an_exception_in_a_stand_in_that_the_user_catches_is_the_same_in_both_traces():
    def fn(x):
        def refuse(a, b):
            raise ValueError("no")

        try:
            lax.associative_scan(refuse, x)
        except ValueError:
            return tree(x)
        return x

    for sizes in SIZES:
        assert examined(fn, "s", sizes, traced_at={"s": 5}).difference is None


def test_code_without_a_sound_is_told_within_a_stand_in_as_well():
    def fn(x):
        scale = 2 if type(x.shape[0]) is int else 3
        return lax.associative_scan(lambda a, b: a + scale * b, x)

    found = examined(fn, "s", {"s": 5}).difference
    assert isinstance(found, Difference)
    assert found.text.startswith("the constant ")


def test_a_call_that_the_symbolic_trace_did_not_make_runs_jaxs_own():
    fn = lambda x: tree(x) if type(x.shape[0]) is int else x + 0 * tree(x)
    found = examined(fn, "s", {"s": 5}).difference
    assert isinstance(found, Difference)
    assert found.text == "argument 0, f32[5], instead of padding f32[5]"
