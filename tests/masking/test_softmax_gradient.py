"""The sum in a softmax's gradient needs no mask; what looks like one and is none gets its mask."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.masking._softmax import WHY_NONE
from tests.tolerance import assert_close

B = sx.Linear(8)
SPECS = ("q, 2", "s, 2", "q, s")
INF, NAN = np.inf, np.nan


def parts(a, b, x):
    """Cotangents, weights and their total, and the sum, as JAX makes them."""
    g = a @ b.T
    w = jnp.exp(x - x.max(1, keepdims=True))
    t = w.sum(1, keepdims=True)
    return g, w, t, (g * t**-2 * w).sum(1, keepdims=True)


def gradient(a, b, x):
    g, w, t, total = parts(a, b, x)
    return w * (g / t - total)


def attention(a, b, x):
    return jax.grad(lambda x: (jax.nn.softmax(x, 1) @ b * a).sum())(x)


def by_negation(a, b, x):
    g, w, t, total = parts(a, b, x)
    return (g / t + -total) * w


def of_whole_rows(a, b, x):
    """Each factor is of a row alone."""
    g, w, t, _ = parts(a, b, x)
    return w * (g / t - (g * t**-2 * w).sum(1)[:, None])


def read_elsewhere(a, b, x):
    g, w, t, total = parts(a, b, x)
    return w * (g / t - total), total


def added(a, b, x):
    g, w, t, total = parts(a, b, x)
    return w * (g / t + total)


def subtracted_from(a, b, x):
    g, w, t, total = parts(a, b, x)
    return w * (total - g / t)


def both_subtracted(a, b, x):
    g, w, t, total = parts(a, b, x)
    return w * (-total - g / t)


def of_other_cotangents(a, b, x):
    _, w, t, total = parts(a, b, x)
    return w * ((a * 2 @ b.T) / t - total)


def over_another_total(a, b, x):
    g, w, t, total = parts(a, b, x)
    return w * (g / (t * 2) - total)


def over_the_total_of_another_softmax(a, b, x):
    _, _, other, _ = parts(a, b, x * 2)
    g, w, _, total = parts(a, b, x)
    return w * (g / other - total)


def of_other_weights(a, b, x):
    g, w, t, total = parts(a, b, x)
    return jnp.exp(w) * (g / t - total)


def not_multiplied(a, b, x):
    g, _, t, total = parts(a, b, x)
    return g / t - total


def difference_read_elsewhere(a, b, x):
    g, w, t, total = parts(a, b, x)
    difference = g / t - total
    return w * difference, difference


def of_all_rows(a, b, x):
    g, w, t, total = parts(a, b, x)
    return w * (g / t - total.sum(0, keepdims=True))


def cotangents_of_unknown_padding(a, b, x):
    g, w, t, total = parts(a, b + 1, x)
    return w * (g / t - total)


def weights_that_are_filled(a, b, x):
    g = a @ b.T
    w = jnp.exp(x - x.max(1, keepdims=True))
    t = w.sum(1, keepdims=True)
    least = w.min(1)
    return w * (g / t - (g * t**-2 * w).sum(1, keepdims=True)), least


def summands_that_are_filled(a, b, x):
    g = a @ b.T
    w = jnp.exp(x - x.max(1, keepdims=True))
    t = w.sum(1, keepdims=True)
    summands = g * t**-2 * w
    least = summands.min(1)
    return w * (g / t - summands.sum(1, keepdims=True)), least


def turned(a, b, x):
    """Totals of rows beside columns."""
    g, w, t, total = parts(a, a, a @ a.T)
    return w * (g / t - total.reshape(1, -1))


SPARED = (gradient, attention, by_negation, of_whole_rows)
MASKED = (
    read_elsewhere,
    added,
    subtracted_from,
    both_subtracted,
    of_other_cotangents,
    over_another_total,
    over_the_total_of_another_softmax,
    of_other_weights,
    not_multiplied,
    difference_read_elsewhere,
    of_all_rows,
    cotangents_of_unknown_padding,
    weights_that_are_filled,
    summands_that_are_filled,
    turned,
)


def arguments():
    """Rows of cotangents and logits that hold infinities, NaN, both, and neither."""
    random = np.random.default_rng(0)
    a, b, x = (random.normal(size=shape).astype(np.float32) for shape in ((6, 2), (5, 2), (6, 5)))
    b = np.abs(b)  # so that an infinity in `a` makes a row of infinities of one sign
    a[0, 0], a[1] = INF, (INF, -INF)
    a[2, 1], a[3, 0] = NAN, 3e38
    x[4, 2] = NAN
    x[5, :3] = -INF
    return a, b, x


def executed(fn, poison=None):
    """An Exec of `fn`, behind a sum that fills the padding of `b` with zeros."""
    return sx.Exec(lambda a, b, x: (b.sum(0), fn(a, b, x)), SPECS, buckets=B, poison=poison)


def is_spared(fn, poison=None):
    notes = executed(fn, poison).explain(*arguments()).masks
    return any(note.action == WHY_NONE for note in notes)


@pytest.mark.parametrize("fn", [*SPARED, *MASKED], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("poison", [None, "nan"])
def test_infinities_and_nan_come_out_as_they_are(fn, poison):
    args = arguments()
    _, got = executed(fn, poison)(*args)
    assert_close(got, jax.jit(fn)(*args))


@pytest.mark.parametrize("fn", SPARED, ids=lambda fn: fn.__name__)
def test_the_sum_in_a_gradient_needs_no_mask(fn):
    assert is_spared(fn)
    assert is_spared(fn, "nan")


@pytest.mark.parametrize("fn", MASKED, ids=lambda fn: fn.__name__)
def test_what_only_looks_like_it_gets_its_mask(fn):
    assert not is_spared(fn)


def test_totals_that_another_reader_fills_are_no_totals():
    def fn(x):
        w = jnp.exp(x - x.max(1, keepdims=True))
        t = jax.lax.broadcast_in_dim(w.sum(1), x.shape, (0,))
        return t.sum(1), (w / t).sum(1)

    x = arguments()[2][:4]
    assert_close(sx.Exec(fn, ("q, s",), buckets=B)(x), fn(x), scale=0)
