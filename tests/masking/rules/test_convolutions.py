"""Convolutions of data that are not finite: NaN stands where the unpadded call has it, only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shapeexec as sx
from shapeexec.masking import _taps
from tests.execution.support import assert_same
from tests.tolerance import SUMS, assert_close

LINE, IMAGE = ("NHC", "HIO", "NHC"), ("NHWC", "HWIO", "NHWC")


def conv(x, kernel, stride=1, padding="SAME", **options):
    numbers = LINE if x.ndim == 3 else IMAGE
    strides = (stride,) * (x.ndim - 2)
    return lax.conv_general_dilated(
        x, kernel, strides, padding, dimension_numbers=numbers, **options
    )


def with_options(**options):
    return lambda x, kernel: conv(x, kernel, **options)


def by_data(fn):
    return lambda x, kernel, cotangent: jax.vjp(fn, x, kernel)[1](cotangent)[0]


def by_kernel(fn):
    return lambda x, kernel, cotangent: jax.vjp(fn, x, kernel)[1](cotangent)[1]


def twice(fn):
    """The gradient by the kernel of one by the data."""

    def first(x, kernel, cotangent):
        return jax.vjp(fn, x, kernel)[1](cotangent)[0]

    def second(x, kernel, cotangent):
        back = jax.vjp(lambda kernel: first(x, kernel, cotangent), kernel)[1]
        return back(jnp.sin(x))[0]

    return second


X, KERNEL = ("b, s, 2", (2, 9, 2)), ("t, 2, 3", (3, 2, 3))
FIXED, SAME = (None, (3, 2, 3)), ("b, s, 3", (2, 9, 3))
VALID = with_options(padding="VALID")
WIDE = with_options(padding=[(2, 3)], stride=2)
HALF = with_options(stride=2)
TRANSPOSED = with_options(padding=[(0, 3)], lhs_dilation=(2,))
DILATED = with_options(rhs_dilation=(2,))
GROUPS = with_options(feature_group_count=2)
ROWS = with_options(batch_group_count=2)
KERNELS = jax.vmap(conv)
HALVES = ("b, floordiv(s + 1, 2), 3", (2, 5, 3))
SQUARES = ("b, h, w, 2", (2, 4, 5, 2))

# A function, its arguments (a spec and a shape), and which of them holds what is not finite.
PROGRAMS = {
    "convolve": (jnp.convolve, [("s", (7,)), ("t", (3,))], 0),
    "convolve, same": (lambda x, y: jnp.convolve(x, y, "same"), [("s", (7,)), ("t", (3,))], 0),
    "correlate, valid": (lambda x, y: jnp.correlate(x, y, "valid"), [("s", (7,)), ("t", (3,))], 0),
    "complex": (
        lambda x, y: jnp.convolve(x + 0j, y + 1j),
        [("s", (7,)), ("t", (3,))],
        0,
    ),
    "ragged kernel": (conv, [X, KERNEL], 0),
    "ragged kernel, by its values": (conv, [X, KERNEL], 1),
    "ragged kernel and stride": (WIDE, [X, KERNEL], 0),
    "ragged dilated kernel": (DILATED, [X, KERNEL], 0),
    "ragged kernel, groups": (GROUPS, [X, ("t, 1, 4", (3, 1, 4))], 0),
    "ragged kernel, groups of rows": (ROWS, [("4, s, 2", (4, 7, 2)), ("t, 2, 4", (3, 2, 4))], 0),
    "ragged kernels, one per example": (
        KERNELS,
        [("b, 2, s, 2", (3, 2, 7, 2)), ("b, t, 2, 3", (3, 3, 2, 3))],
        0,
    ),
    "ragged kernel in two directions": (
        conv,
        [SQUARES, ("t, u, 2, 3", (3, 2, 2, 3))],
        0,
    ),
    "zeros between elements": (TRANSPOSED, [X, FIXED], 1),
    "by data, stride": (by_data(HALF), [X, FIXED, HALVES], 1),
    "by data, ragged kernel": (by_data(conv), [X, KERNEL, SAME], 2),
    "by data, ragged kernel and stride": (by_data(HALF), [X, KERNEL, HALVES], 2),
    "by the kernel": (by_kernel(conv), [X, FIXED, SAME], 0),
    "by the kernel, cotangent": (by_kernel(conv), [X, FIXED, SAME], 2),
    "by the kernel, VALID": (
        by_kernel(VALID),
        [("b, s + 2, 2", (2, 9, 2)), FIXED, ("b, s, 3", (2, 7, 3))],
        0,
    ),
    "by the kernel, stride": (by_kernel(HALF), [X, FIXED, HALVES], 0),
    "by the kernel, dilated": (by_kernel(DILATED), [X, FIXED, SAME], 0),
    "by the kernel, zeros between elements": (
        by_kernel(TRANSPOSED),
        [X, FIXED, ("b, 2*s, 3", (2, 18, 3))],
        2,
    ),
    "by a ragged kernel": (by_kernel(conv), [X, KERNEL, SAME], 0),
    "by the kernel, groups": (
        by_kernel(GROUPS),
        [X, (None, (3, 1, 4)), ("b, s, 4", (2, 9, 4))],
        0,
    ),
    "by the kernel, images": (
        by_kernel(conv),
        [SQUARES, (None, (3, 2, 2, 3)), ("b, h, w, 3", (2, 4, 5, 3))],
        0,
    ),
    "by kernels, one per example": (
        by_kernel(KERNELS),
        [("b, 2, s, 2", (3, 2, 7, 2)), ("b, 3, 2, 3", (3, 3, 2, 3)), ("b, 2, s, 3", (3, 2, 7, 3))],
        0,
    ),
    "second order": (twice(conv), [X, FIXED, SAME], 2),
    "second order, stride": (twice(HALF), [X, FIXED, HALVES], 0),
}


def places(size):
    return sorted({0, 1, size // 3, size // 2, size - 2, size - 1})


@pytest.mark.parametrize("poison", [None, "nan"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_not_finite_spreads_no_further_than_in_the_plain_call(name, poison):
    fn, arguments, which = PROGRAMS[name]
    run = sx.Exec(fn, tuple(spec for spec, _ in arguments), buckets=sx.Linear(5), poison=poison)
    jitted = jax.jit(fn)
    rng = np.random.default_rng(0)
    args = [rng.normal(size=shape).astype(np.float32) for _, shape in arguments]
    args[1 - which if which < 2 else 1].flat[::4] = 0  # zeros that are data make NaN
    for place in places(args[which].size):
        for value in (np.inf, -np.inf, np.nan):
            own = [arg.copy() for arg in args]
            own[which].flat[place] = value
            assert_close(run(*own), jitted(*own), loose=SUMS)
    assert run.stats.compiles == 1
    assert not run.stats.exact


def test_only_examples_that_are_not_finite_are_so_in_a_map():
    def loss(kernel, x):
        return (conv(x[None], kernel) ** 2).sum()

    run = sx.Exec(jax.grad(loss), (None, "s, 2"), buckets=sx.Linear(8))
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(3, 2, 3)).astype(np.float32)
    examples = [rng.normal(size=(size, 2)).astype(np.float32) for size in (5, 8, 3)]
    examples[2][-1, 0] = np.inf
    wanted = [jax.jit(jax.grad(loss))(kernel, x) for x in examples]
    assert np.isfinite(wanted[0]).all()
    for got, want in zip(run.map(kernel, examples), wanted, strict=True):
        assert_close(got, want, loose=SUMS)
    total = run.map(kernel, examples, reduce="sum")
    assert_same(total, np.sum(wanted, axis=0))


def test_finite_data_take_one_convolution(monkeypatch):
    """Patchwise kernels and kernels of 1 meet no padding, so that nothing is asked of the data."""
    asked = []
    monkeypatch.setattr(_taps, "_of_any", lambda flag: asked.append(flag) or flag)

    def count(fn, *arguments):
        asked.clear()
        specs, shapes = zip(*arguments, strict=True)
        sx.Exec(fn, specs, buckets=sx.Linear(5))(*(np.ones(shape, np.float32) for shape in shapes))
        return len(asked)

    assert count(conv, X, FIXED) == 0
    assert count(by_kernel(conv), X, FIXED, SAME)
    assert count(by_kernel(conv), X, (None, (1, 2, 3)), SAME) == 0
    patches = with_options(stride=3, padding="VALID")
    whole = ("b, 3*s, 2", (2, 9, 2))
    assert count(by_kernel(patches), whole, FIXED, ("b, s, 3", (2, 3, 3))) == 0


def test_large_finite_numbers_of_16_bits_take_one_convolution(monkeypatch):
    def apart(product, axes, struct):
        return jnp.full(struct.shape, jnp.nan, struct.dtype)

    monkeypatch.setattr(_taps, "by_pairs", apart)
    run = sx.Exec(by_kernel(conv), (X[0], None, SAME[0]), buckets=sx.Linear(5))
    args = [np.ones(shape, np.float16) for shape in (X[1], FIXED[1], SAME[1])]
    args[0][:] = 3000  # about 100,000 together
    got = run(*args)
    assert np.isfinite(got).all()
    assert_close(got, by_kernel(conv)(*args), loose=SUMS)
    args[0][0, 0] = np.inf
    assert np.isnan(run(*args)).all()
