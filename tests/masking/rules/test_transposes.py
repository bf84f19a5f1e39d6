"""Gradients of strided layers: one trace for all sizes, and the plain gradient's numbers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shapeexec as sx
from tests.marks import by_name
from tests.tolerance import SUMS, assert_close

P = sx.Pow2()


def conv(x, kernel, stride=2, padding="SAME", **options):
    numbers = ("NHWC", "HWIO", "NHWC") if x.ndim == 4 else ("NHC", "HIO", "NHC")
    strides = (stride,) * (x.ndim - 2)
    return lax.conv_general_dilated(
        x, kernel, strides, padding, dimension_numbers=numbers, **options
    )


def pool(x, init, combine, padding="SAME", stride=2):
    space = x.ndim - 2
    window, strides = (1, *(3,) * space, 1), (1, *(stride,) * space, 1)
    return lax.reduce_window(x, init, combine, window, strides, padding)


def network(layers, padding="SAME", stride=2, **options):
    """Convolutions, average and maximum pooling, by their first letters."""

    def apply(kernels, x):
        kernels = iter(kernels)
        for layer in layers:
            if layer == "c":
                x = jnp.tanh(conv(x, next(kernels), stride, padding, **options))
            elif layer == "a":
                x = pool(x, 0.0, lax.add, padding, stride)
            else:
                x = pool(x, -jnp.inf, lax.max, padding, stride)
        return x

    return apply


def floats(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def total(x):
    return jnp.sum(jnp.sin(x))


def assert_one_graph(fn, specs, calls, poison="nan", traces=1):
    run = sx.Exec(fn, specs, buckets=P, poison=poison)
    for args in calls:
        assert_close(run(*args), jax.jit(fn)(*args), loose=SUMS)
    assert run.stats.traces == traces
    return run


# Odd, even, one, and just the size of a window.
AREAS = ((13, 16), (1, 2), (3, 3))
PLANE = {
    "convolutions": network("ccc"),
    "convolutions VALID": network("ccc", "VALID"),
    "mixed": network("cma"),
    "mixed VALID": network("amc", "VALID"),
    "stride 3, explicit padding": network("cc", [(2, 1), (-1, 3)], 3),
    "dilated kernels": network("cc", rhs_dilation=(2, 2)),
    "dilated data": network("cc", [(2, 4), (0, 5)], lhs_dilation=(2, 3)),
}
KERNELS = [floats(3, 3, 3, 4), floats(3, 3, 4, 4, seed=1), floats(3, 3, 4, 2, seed=2)]


@pytest.mark.parametrize(
    "apply", by_name(PLANE, PLANE.keys() - {"mixed", "mixed VALID", "convolutions VALID"})
)
def test_layers_over_two_ragged_axes_have_one_trace(apply):
    def loss(kernels, x):
        return total(apply(kernels, x))

    fn = jax.grad(loss, argnums=(0, 1))
    calls = [(KERNELS, floats(2, *area, 3)) for area in AREAS]
    run = assert_one_graph(fn, (None, "b, h, w, 3"), calls)
    plans = [run.plan(KERNELS, floats(2, *area, 3)) for area in AREAS]
    assert all(plan.guards == () for plan in plans)
    assert run.cache_size == len({tuple(plan.buckets.items()) for plan in plans})


LINE = [floats(3, 3, 4), *(floats(3, 4, 4, seed=n) for n in range(3))]


@pytest.mark.parametrize(("padding", "poison"), [("SAME", "nan"), ("VALID", None)])
def test_four_layers_over_a_ragged_length_have_one_trace(padding, poison):
    apply = network("cccc", padding)
    fn = jax.grad(lambda kernels, x: total(apply(kernels, x)), argnums=(0, 1))
    calls = [(LINE, floats(2, size, 3)) for size in (31, 32, 1, 3)]
    assert_one_graph(fn, (None, "b, s, 3"), calls, poison)


@pytest.mark.slow
def test_validate_finds_every_equation_right():
    apply = network("ca")
    fn = jax.grad(lambda kernels, x: total(apply(kernels, x)), argnums=(0, 1))
    run = sx.Exec(fn, (None, "b, s, 3"), buckets=P)
    sx.validate(run, LINE[:1], floats(1, 5, 3))


GROUPS = {
    "of features": ({"feature_group_count": 2}, "3, 2, 6", "b, s, 4"),
    "of ragged features": ({"feature_group_count": 2}, "3, t, 2*t", "b, s, 2*t"),
    "of a ragged number": ({"feature_group_count": "all"}, "3, 1, t", "b, s, t"),
    "of a ragged batch": ({"batch_group_count": 2}, "3, 3, 4", "2*b, s, 3"),
    "none, over ragged features": ({}, "3, t, 4", "b, s, t"),
    "none, by a ragged kernel": ({"padding": [(3, 4)]}, "t, 3, 4", "b, s, 3"),
}


@pytest.mark.parametrize(("options", "kernel", "data"), GROUPS.values(), ids=GROUPS)
def test_gradients_with_groups_and_other_ragged_axes_are_exact(options, kernel, data):
    def loss(kernel, x):
        given = dict(options)
        if given.get("feature_group_count") == "all":
            given["feature_group_count"] = x.shape[2]
        return total(conv(x, kernel, **given))

    def made(text, sizes):
        return floats(*(eval(dim, {}, sizes) for dim in text.split(",")))

    sizes = [{"b": b, "s": s, "t": t} for b, s, t in ((2, 7, 3), (1, 8, 5))]
    calls = [(made(kernel, each), made(data, each)) for each in sizes]
    assert_one_graph(jax.grad(loss, argnums=(0, 1)), (kernel, data), calls)


# Of one array [b, s, 3].
GRADIENTS = {
    "every other": lambda x: total(x[:, ::2] ** 2),
    "every third from 1": lambda x: total(lax.slice_in_dim(x, 1, x.shape[1], 3, 1) ** 2),
    "pad between": lambda x: total(lax.pad(x**2, 0.5, [(0, 0, 0), (1, -1, 2), (0, 0, 0)])),
    "pad off": lambda x: total(lax.pad(x**2, 0.5, [(0, 0, 0), (-1, 2, 1), (0, 0, 0)])),
    "ragged pad": lambda x: total(
        lax.pad(x**2, 0.5, [(0, 0, 0), (x.shape[1] // 2, 0, 1), (0, 0, 0)])
    ),
    "flax average": lambda x: total(nn.avg_pool(x**2, (3,), (2,), "SAME", count_include_pad=False)),
    "flax maximum": lambda x: total(nn.max_pool(x**2, (2,), (2,))),
    "flax average of all": lambda x: total(nn.avg_pool(x**2, x.shape[1:2])),
    "maximum of dilated": lambda x: total(
        lax.reduce_window(
            x, -jnp.inf, lax.max, (1, 3, 2), (1, 2, 2), ((0, 0), (1, 2), (1, 0)), (1, 2, 3)
        )
    ),
    "checkpoint in a scan": lambda x: lax.scan(
        jax.checkpoint(lambda c, y: (c + total(conv(y[None], LINE[0])), None)), 0.0, x
    )[0],
    "cond": lambda x: lax.cond(
        x[0, 0, 0] > 0, lambda: total(conv(x, LINE[0])), lambda: total(pool(x, 0.0, lax.add))
    ),
    "jit": jax.jit(lambda x: total(conv(conv(x, LINE[0]), LINE[1]))),
}


@pytest.mark.parametrize("loss", GRADIENTS.values(), ids=GRADIENTS)
def test_gradients_of_slices_pads_pools_and_bodies_share_one_graph(loss):
    calls = [(floats(b, s, 3),) for b, s in ((2, 7), (3, 2))]
    assert_one_graph(jax.grad(loss), ("b, s, 3",), calls)


def line_loss(kernels, x):
    return total(network("cma")(kernels, x))


SECOND = floats(2, 4, 3, seed=5)

# Of the kernels and one array [b, s, 3].
HIGHER = {
    "of each kernel": lambda kernels, x: jax.vmap(jax.grad(lambda kernel: total(conv(x, kernel))))(
        jnp.stack([kernels[0], 2 * kernels[0]])
    ),
    "of a gradient": jax.grad(
        lambda kernels, x: sum(map(total, jax.grad(line_loss, argnums=(0, 1))(kernels, x)[0]))
    ),
    "of a gradient by the data": jax.grad(
        lambda kernels, x: total(jax.grad(line_loss, argnums=1)(kernels, x)), argnums=(0, 1)
    ),
    "of a gradient by the kernel, by the data": jax.grad(
        lambda kernels, x: total(
            jax.grad(lambda k: total(conv(jnp.tanh(conv(x, k)), SECOND)))(kernels[0])
        ),
        argnums=1,
    ),
    "times a vector": lambda kernels, x: jax.jvp(
        jax.grad(line_loss, argnums=(0, 1)), (kernels, x), (kernels, 2 * x)
    )[1],
}


@pytest.mark.parametrize("fn", by_name(HIGHER, {"of a gradient by the data", "times a vector"}))
def test_transformations_of_a_gradient_are_exact(fn):
    calls = [(LINE[:1], floats(b, s, 3)) for b, s in ((2, 13), (3, 2))]
    assert_one_graph(fn, (None, "b, s, 3"), calls)


# Of each example of an array [b, s, 3].
OF_EACH = {
    "the gradient": jax.grad(line_loss),
    "both gradients": jax.grad(line_loss, argnums=(0, 1)),
    "the Jacobian": jax.jacrev(lambda kernels, x: network("cma")(kernels, x).mean(1)[0]),
    "a penalty on the gradient": jax.grad(
        lambda kernels, x: total(jax.grad(lambda k: total(conv(x, k)))(kernels[0])), argnums=1
    ),
    "kernels of its own": jax.grad(
        lambda kernels, x: total(conv(jnp.tanh(conv(x, kernels[0] * x.mean())), SECOND * x.max())),
        argnums=1,
    ),
    "the gradient, in groups": jax.grad(
        lambda kernels, x: total(conv(x, kernels[0][:, :1, :3], feature_group_count=3))
    ),
}


@pytest.mark.parametrize(
    "fn", by_name(OF_EACH, OF_EACH.keys() - {"both gradients", "the gradient, in groups"})
)
def test_gradients_of_each_example_share_a_graph(fn):
    each = jax.vmap(lambda kernels, x: fn(kernels, x[None]), in_axes=(None, 0))
    calls = [(LINE[:1], floats(b, s, 3)) for b, s in ((2, 13), (3, 2), (2, 16), (1, 9))]
    run = assert_one_graph(each, (None, "b, s, 3"), calls)
    assert run.stats.differences == 0
    assert run.stats.compiles == 3  # buckets 2 and 16, 4 and 2, 1 and 16


def test_a_map_over_examples_is_exact_for_each():
    fn = jax.grad(lambda kernels, x: line_loss(kernels, x[None]))
    run = sx.Exec(fn, (None, "s, 3"), buckets=P)
    examples = [floats(size, 3, seed=size) for size in (7, 1, 8)]
    got = run.map(LINE[:1], examples)
    for result, x in zip(got, examples, strict=True):
        assert_close(result, fn(LINE[:1], x), loose=SUMS)
    assert run.stats.traces == 1


def test_what_no_window_reads_is_not_multiplied():
    def fn(kernel, x):
        return jax.grad(lambda kernel: conv(x, kernel, 3, "VALID").sum())(kernel)

    x = floats(1, 8, 3)
    x[:, 6:] = np.inf  # windows of 3 with stride 3 read the first 6
    kernel = floats(3, 3, 4)
    assert np.isfinite(fn(kernel, x)).all()
    assert_one_graph(fn, (None, "b, s, 3"), [(kernel, x)])


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_goes_where_it_goes_in_the_plain_gradient(value):
    cotangent = floats(1, 4, 4)
    cotangent[0, 2] = value
    kernel = floats(3, 3, 4)

    def fn(x, cotangent):
        y = pool(conv(x, kernel), 0.0, lax.add, stride=1)
        return jax.grad(lambda x: (conv(x, kernel)[:, :4] * cotangent).sum())(x), y

    assert_one_graph(fn, ("b, s, 3", None), [(floats(1, 7, 3), cotangent)])
