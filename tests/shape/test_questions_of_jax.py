"""What JAX's own library asks of a size: reshapes, strides and sizes that fit are guarded."""

import jax
import jax.numpy as jnp
import pytest

import shapeexec as sx
from tests.execution.support import assert_runs_as, ones
from tests.shape.test_trace import P


@pytest.mark.parametrize(
    ("fn", "specs", "shapes"),
    [
        (lambda x: jnp.packbits(x > 3), ("s",), [(8,), (5,), (16,), (9,)]),
        (lambda x: jnp.linspace(0, 1, x.shape[0], endpoint=False), ("s",), [(4,), (1,), (3,)]),
        (lambda x: jnp.sum(x[1:]) / x[1:].size, ("s",), [(4,), (3,), (2,)]),
        (lambda x: jnp.average(x, weights=jnp.arange(1.0, 4)), ("s",), [(3,)]),
        (
            lambda x: jnp.where(x[:-1] > 2, size=4, fill_value=0)[1],
            ("b, s",),
            [(4, 3), (2, 2), (1, 3), (1, 1)],
        ),
        (
            lambda x: jax.lax.map(lambda row: jnp.nonzero(row > 3, size=2)[0], x),
            ("b, s",),
            [(4, 3), (2, 2), (1, 1)],
        ),
        (
            lambda x: jnp.linalg.slogdet(jnp.outer(x, x) + 30 * jnp.eye(x.size))[1],
            ("b, s",),
            [(2, 2), (1, 3), (1, 1)],
        ),
    ],
    ids=["packbits", "linspace", "size", "average", "where", "nonzero in a loop", "one element"],
)
def test_jaxs_library_is_answered_as_the_plain_call_is(fn, specs, shapes):
    ex = sx.Exec(fn, specs, buckets=P, poison="nan")
    for shape in shapes:
        assert_runs_as(fn, ex, ones(*shape))


def test_a_reduction_of_nothing_fails_as_it_does():
    fn = lambda x: x[1:].max()
    ex = sx.Exec(fn, ("s",), buckets=P)
    assert_runs_as(fn, ex, ones(3))
    with pytest.raises(ValueError, match="zero-size array to reduction"):
        ex(ones(1))


FITTING = {
    "two symbols": (lambda x, y: x + y, [(5, 5), (6, 6), (1, 1)], "s == t"),
    "a dot": (lambda x, y: x @ y, [(5, 5), (3, 3)], "s == t"),
    "broadcast": (lambda x, y: x * y, [(5, 1), (6, 1), (1, 1)], "t == 1"),
    "stacked": (lambda x, y: jnp.stack([x, y]), [(4, 4)], "s == t"),
    "inside": (lambda x, y: x.at[1:-1].set(y[2:]), [(6, 6), (7, 7)], "s == t"),
    "a static size": (lambda x, y: x + jnp.arange(4.0) + y[0], [(4, 2), (4, 3)], "s == 4"),
    "interior": (lambda x, y: x.at[1:-1].set(x[2:]) + y[0], [(6, 2), (5, 2), (2, 2)], "s >= 2"),
    "shifted": (lambda x, y: x.at[1:].set(y[:-1]), [(4, 4), (3, 3), (1, 1)], "s == t"),
    "halves": (
        lambda x, y: x[0::2] + x[1::2] + y[0],
        [(6, 2), (8, 2), (4, 2)],
        "floordiv(s + 1, 2) == floordiv(s, 2)",
    ),
    "rows of a half": (
        lambda x, y: x.reshape(-1, x.shape[0] // 2) * y[0],
        [(6, 2), (8, 2), (3, 2)],
        "mod(s, - floordiv(s, 2)) == 0",
    ),
    "index": (lambda x, y: x[x.shape[0] // 2] * y.at[y.shape[0] - 1].set(0), [(5, 2), (4, 3)], ""),
}


@pytest.mark.parametrize(("fn", "sizes", "guard"), FITTING.values(), ids=FITTING)
def test_sizes_that_fit_in_a_call_are_guarded(fn, sizes, guard):
    ex = sx.Exec(fn, ("s", "t"), buckets=P, poison="nan")
    for s, t in sizes:
        assert_runs_as(fn, ex, ones(s), ones(t))
    guards = [str(g) for g in ex.plan(*map(ones, sizes[0])).guards]
    assert guard in guards if guard else guards == []


def test_sizes_that_do_not_fit_fail_as_the_plain_call_does():
    ex = sx.Exec(lambda x: x[0::2] + x[1::2], ("s",), buckets=P)
    ex(ones(4))
    with pytest.raises(TypeError, match="incompatible shapes"):
        ex(ones(5))


def test_symbols_that_are_equal_share_a_bucket():
    ex = sx.Exec(lambda x, y: x + y, ("s", "t"), buckets={"s": P, "t": sx.Linear(6)})
    assert_runs_as(lambda x, y: x + y, ex, ones(5), ones(5))
    assert dict(ex.plan(ones(5), ones(5)).buckets) == {"s": 8, "t": 8}


def convolved(x, stride, padding):
    kernel = jnp.arange(1.0, 4).reshape(3, 1, 1)
    dims = ("NWC", "WIO", "NWC")
    return jax.lax.conv_general_dilated(x, kernel, (stride,), padding, dimension_numbers=dims)


@pytest.mark.parametrize(
    ("stride", "padding"), [(2, "SAME"), (2, "VALID"), (3, "SAME"), (1, "VALID")]
)
def test_the_gradient_of_a_strided_convolution_runs_padded(stride, padding):
    fn = jax.grad(lambda x: (convolved(x, stride, padding) ** 2).sum())
    ex = sx.Exec(fn, ("b, s, 1",), buckets=P, poison="nan")
    for size in (9, 8, 7, 3):
        assert_runs_as(fn, ex, ones(2, size, 1))
    assert len({ex.plan(ones(2, size, 1)).key for size in range(9, 15)}) == 1
    assert ex.stats.exact == {}


def test_strides_may_follow_each_other():
    fn = jax.grad(lambda x: (convolved(convolved(x, 2, "SAME"), 2, "SAME") ** 2).sum())
    ex = sx.Exec(fn, ("b, s, 1",), buckets=P, poison="nan")
    for size in (9, 1):
        assert_runs_as(fn, ex, ones(2, size, 1))
    assert ex.plan(ones(2, 9, 1)).guards == ()
    assert ex.stats.traces == 1
