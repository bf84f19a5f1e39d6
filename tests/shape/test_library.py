"""What stands in for functions of JAX's library: the plain results, where sizes are symbolic."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import signal

import shapeexec as sx
from tests.execution.support import assert_runs_as, ones
from tests.tolerance import assert_close

P = sx.Pow2()
KEY = jax.random.key(3)
OWN_FILES = [file.name for file in pathlib.Path(sx.__file__).parent.rglob("[a-z_]*.py")]


def gradient(fn):
    """The gradient of a sum in which each result counts differently, by all arguments."""

    def loss(*args):
        return sum(jnp.sin(leaf).sum() for leaf in jax.tree.leaves(fn(*args)))

    return lambda *args: jax.grad(loss, tuple(range(len(args))))(*args)


def searched(method, side):
    def search(x, y):
        unsorted = jnp.searchsorted(x, y, side, method=method)
        return unsorted, jnp.searchsorted(jnp.sort(x), y[::-1], side, method=method)

    return search


def linear_recurrence(x, y):
    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    return lax.associative_scan(combine, (x, y), axis=1)


def of_matrices(x):
    matrices = {"m": jnp.stack([x, 1 - x, jnp.cos(x), x / 2], -1).reshape(-1, 2, 2)}
    product = lambda a, b: {"m": a["m"] @ b["m"]}
    return lax.associative_scan(product, matrices), lax.associative_scan(product, matrices, True)


def with_ties(fn):
    return lambda x: fn(jnp.floor(2 * x), 1)


def in_place_of_a_size(x):
    n = x.shape[0]
    return jax.random.permutation(KEY, n), jax.random.choice(KEY, n, (4,))


def chosen(x):
    p = jax.nn.softmax(x)
    return [
        jax.random.choice(KEY, x, (3, 2)),
        jax.random.choice(KEY, x.shape[0], (3,), p=p),
        jax.random.choice(KEY, x, x.shape, replace=False),
        jax.random.choice(KEY, x.shape[0], (1,), replace=False),
        jax.random.choice(KEY, x, (1,), replace=False, p=p),
    ]


def permuted(x):
    return [
        jax.random.permutation(KEY, x),
        jax.random.permutation(KEY, x, axis=1),
        jax.random.permutation(KEY, x, axis=1, independent=True),
    ]


def interpolated(x, xp, fp):
    xp = jnp.sort(xp)
    return [
        jnp.interp(x, xp, fp),
        jnp.interp(x, xp, fp, left="extrapolate", right="extrapolate"),
        jnp.interp(x, xp, fp, left=-1, right=1),
        jnp.interp(x, xp, fp, period=1.5),
    ]


def scanned(x):
    def step(carry, _):
        key, total = carry
        key, own = jax.random.split(key)
        return (key, 0.9 * total + jax.random.normal(own)), total

    def last(length, **options):
        (_, total), totals = lax.scan(step, (KEY, x.sum()), None, length=length, **options)
        return total, totals

    return last(x.shape[0]), last(2 * x.size + 1, reverse=True), last(x.shape[0], unroll=2)


def covariances(x, w):
    return [
        jnp.cov(x),
        jnp.cov(x, rowvar=False, bias=True),
        jnp.cov(x, aweights=w),
        jnp.cov(w, x),
    ]


# By name: the function, the specs of its arguments, and whether the gradient is tested too.
PROGRAMS = {
    **{
        f"searchsorted {method} {side}": (searched(method, side), ("s", "t, 2"), False)
        for method in ("scan", "sort", "compare_all")
        for side in ("left", "right")
    },
    "searchsorted, unrolled": (searched("scan_unrolled", "left"), ("s", "t"), False),
    "searchsorted in rows": (jax.vmap(searched("scan", "left")), ("b, s", "b, t"), False),
    "searchsorted in what is known": (
        lambda x: (jnp.searchsorted(jnp.arange(3.0), x), jnp.digitize(x, jnp.arange(3.0))),
        ("s",),
        False,
    ),
    **{
        f"{name} {mode}": (lambda x, y, f=f, mode=mode: f(x, y, mode), ("s", "t"), True)
        for name, f in {"convolve": jnp.convolve, "correlate": jnp.correlate}.items()
        for mode in ("full", "same", "valid")
    },
    "convolve with a kernel": (
        lambda x: [jnp.convolve(x, ones(3), mode) for mode in ("full", "same", "valid")],
        ("s",),
        True,
    ),
    "signal.convolve": (lambda x, y: signal.convolve(x, y, "same"), ("s", "t"), True),
    "covariances": (covariances, ("b, s", "s"), False),
    "corrcoef": (jnp.corrcoef, ("s", "s"), False),
    "interp": (interpolated, ("t", "s", "s"), True),
    "squeeze": (lambda x: jnp.squeeze(x[None] * 2), ("b, s",), True),
    "permutation": (permuted, ("b, s",), True),
    "permutation of a size": (in_place_of_a_size, ("s",), False),
    "choice": (chosen, ("s",), False),
    "associative_scan": (lambda x: lax.associative_scan(jnp.add, x), ("s",), True),
    "associative_scan from the end": (
        lambda x: lax.associative_scan(jnp.maximum, x, reverse=True, axis=1),
        ("b, s",),
        True,
    ),
    "associative_scan of pairs": (linear_recurrence, ("b, s", "b, s"), True),
    "associative_scan of matrices": (of_matrices, ("s",), True),
    "associative_scan in rows": (
        jax.vmap(lambda row: lax.associative_scan(jnp.multiply, row)),
        ("b, s",),
        False,
    ),
    **{
        f"gradient of {fn.__name__} over ties": (gradient(with_ties(fn)), ("b, s",), False)
        for fn in (lax.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp)
    },
    "product": (lambda x: (x.prod(1), x.prod()), ("b, s",), True),
    "curvature of a product": (jax.hessian(jnp.prod), ("s",), False),
    "reduce with a function of the user's": (
        lambda x: lax.reduce(x, np.float32(1), lambda a, b: a * b, (0,)),
        ("s, b",),
        True,
    ),
    "stft": (
        lambda x: signal.stft(x, nperseg=4, noverlap=3, boundary=None)[1:],
        ("s + 3",),
        False,
    ),
    "stft and back": (
        lambda x: signal.istft(signal.stft(x, fs=2.0, nperseg=4)[2], fs=2.0, nperseg=4),
        ("b, s + 5",),
        False,
    ),
    "welch": (lambda x: signal.welch(x, nperseg=4), ("s + 5",), False),
    **{
        f"fftconvolve {mode}": (
            lambda x, y, mode=mode: signal.fftconvolve(x, y, mode),
            ("s", "t"),
            mode == "same",
        )
        for mode in ("full", "same", "valid")
    },
    "fftconvolve of rows": (
        lambda x, y: signal.fftconvolve(x, y, axes=1),
        ("b, s", "b, 3"),
        False,
    ),
    "fftconvolve of planes": (
        lambda x: signal.convolve(x, ones(2, 3), method="fft"),
        ("b, s",),
        False,
    ),
    "Fourier transforms of a length": (
        lambda x, y: [
            jnp.fft.fft(x, n=2 * x.shape[0]),
            jnp.fft.rfft(x, n=y.shape[0] + 1),
            jnp.fft.irfft(jnp.fft.rfft(x), n=x.shape[0]),
            jnp.fft.ifft2(x[:, None] * y, s=(x.shape[0] + 1, y.shape[0])),
        ],
        ("s", "t"),
        False,
    ),
    "detrend": (
        lambda x: (signal.detrend(x, axis=1), signal.detrend(x, type="constant")),
        ("b, s + 5",),
        False,
    ),
    "polyfit": (
        lambda x, y: jnp.polyfit(jnp.arange(x.shape[0]) / 2, x, 2, full=True),
        ("s + 5", "t"),
        False,
    ),
    "polyfit with its covariance": (
        lambda x: jnp.polyfit(jnp.arange(x.shape[0]) / 2, x, 2, cov=True),
        ("s + 5",),
        False,
    ),
    "matrix_rank": (lambda x: jnp.linalg.matrix_rank(x[:, None] * x), ("s + 1",), False),
    "scan of a length": (scanned, ("s",), True),
    "scan of a length in rows": (jax.vmap(scanned), ("b, s",), True),
}
SIZES = ((2, 1, 1), (2, 5, 3), (2, 8, 4), (1, 3, 5))


def arguments(specs, sizes, seed):
    b, s, t = sizes
    rng = np.random.default_rng(seed)
    shapes = [eval(f"({spec},)", {"b": b, "s": s, "t": t}) for spec in specs]
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def padded(specs):
    """All sizes of a program in one bucket."""
    return {symbol: sx.Linear(8) for symbol in "bst" if symbol in " ".join(specs)}


def assert_has_proven_all(ex):
    """No size ran exactly: all are of one bucket, and each trace has one graph."""
    assert ex.stats.differences == 0
    assert ex.stats.checks > 1
    assert ex.stats.compiles == ex.stats.traces


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_results_are_those_of_the_plain_function(name):
    fn, specs, _ = PROGRAMS[name]
    ex = sx.Exec(fn, specs, buckets=padded(specs), poison="nan", check="sizes")
    for seed, sizes in enumerate(SIZES):
        assert_runs_as(fn, ex, *arguments(specs, sizes, seed))
    assert_has_proven_all(ex)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, (*_, has) in PROGRAMS.items() if has])
def test_gradients_of_stand_ins_are_those_of_the_plain_function(name):
    fn, specs, _ = PROGRAMS[name]
    fn = gradient(fn)
    ex = sx.Exec(fn, specs, buckets=padded(specs), poison="max", check="sizes")
    for seed, sizes in enumerate(SIZES[1:]):
        assert_runs_as(fn, ex, *arguments(specs, sizes, seed))
    assert_has_proven_all(ex)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: lax.associative_scan(jnp.multiply, x, reverse=True),
        lambda x: jnp.searchsorted(jnp.sort(x), x),
        lambda x: jax.random.permutation(KEY, x),
        lambda x: jnp.convolve(x, ones(2), "same"),
        jax.grad(lambda x: jnp.sin(x).prod()),
        lambda x: lax.reduce_window(x, 0.0, lax.add, x.shape, (1,), "SAME"),
        lambda x: signal.stft(x, nperseg=2)[2],
    ],
    ids=["associative_scan", "searchsorted", "permutation", "convolve", "prod", "window", "stft"],
)
def test_examples_of_different_sizes_share_a_graph(fn):
    ex = sx.Exec(fn, ("s",), buckets=P, poison="nan")
    examples = [ones(n) / 3 for n in (5, 7, 6)]
    for got, want in zip(ex.map(examples), map(jax.jit(fn), examples), strict=True):
        assert_close(got, want)
    assert ex.stats.compiles == 1


@pytest.mark.slow
def test_a_size_past_a_power_of_16_takes_another_trace_and_a_bucket_no_more():
    fn = lambda x: lax.associative_scan(jnp.add, x)
    ex = sx.Exec(fn, ("s",), buckets=P)
    for size in range(1, 40):
        assert_runs_as(fn, ex, ones(size))
    assert ex.stats.compiles == 7
    assert ex.stats.traces == 2


def test_a_scan_groups_elements_as_the_plain_one_does():
    x = np.random.default_rng(0).integers(-9, 9, 300, dtype=np.int32)
    fn = lambda x: lax.associative_scan(jnp.subtract, x)
    ex = sx.Exec(fn, ("s",), buckets=P)
    for size in (37, 300):
        np.testing.assert_array_equal(ex(x[:size]), jax.jit(fn)(x[:size]))


@pytest.mark.parametrize(
    "combine",
    [
        lambda a, b: a + b - 0.1 * b.mean(),
        lambda a, b: a + jnp.cumsum(b),
        lambda a, b: a + b * a.shape[0],
    ],
    ids=["mean", "cumsum", "number"],
)
def test_a_scan_combines_as_many_elements_at_once_as_the_plain_one_does(combine):
    fn = lambda x: lax.associative_scan(combine, x)
    ex = sx.Exec(fn, ("s",), buckets=sx.Linear(16), poison="nan")
    for size in (5, 6, 12):
        assert_runs_as(fn, ex, ones(size))
    assert ex.stats.differences == 0


def test_an_overflow_beyond_the_size_reaches_no_gradient():
    fn = jax.grad(lambda x: lax.associative_scan(jnp.multiply, x)[-1])
    ex = sx.Exec(fn, ("s",), buckets=P, poison="max")
    for numbers in ([1e-5, 1e-5, 1e-5, 1e-5, 1e10], [1e20, 1e15], [1e30] * 3):
        x = np.asarray(numbers, np.float32)
        assert_close(ex(x), jax.jit(fn)(x), scale=0)


def test_what_is_not_combined_is_not_differentiated():
    fn = gradient(lambda x: lax.associative_scan(jnp.divide, x))  # by 0 it would be NaN
    ex = sx.Exec(fn, ("s",), buckets=P, poison="nan")
    for size in (1, 2, 3, 4, 8):
        assert_runs_as(fn, ex, ones(size))


def test_a_scan_of_arrays_whose_sizes_are_not_its_length_is_refused_as_ever():
    fn = lambda x: lax.scan(lambda c, y: (c + y, c), 0.0, x, length=x.shape[0] - 1)
    with pytest.raises(ValueError, match="`length` argument of 4 which disagrees"):
        sx.Exec(fn, ("s",), buckets=P)(ones(5))
    fn = lambda x, y: lax.scan(lambda c, y: (c + y, c), 0.0, x, length=y.size)
    ex = sx.Exec(fn, ("s", "t"), buckets=P)
    assert_runs_as(fn, ex, ones(5), ones(5))
    with pytest.raises(ValueError, match="`length` argument of 6 which disagrees"):
        ex(ones(5), ones(6))


def test_a_size_has_no_more_attributes_for_a_user_than_an_int():
    def fn(x):
        return x * 2 if hasattr(x.shape[0], "astype") else x

    ex = sx.Exec(fn, ("s",), buckets=P)
    assert_runs_as(fn, ex, ones(5))
    assert ex.stats.differences == 0
