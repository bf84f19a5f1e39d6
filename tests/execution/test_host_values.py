"""What code computes from sizes, it computes in Python's numbers, at each call's true sizes."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from tests.cases.sizes import CASES
from tests.execution.support import assert_runs_as, assert_same, ones
from tests.tolerance import EQUAL, FEW, assert_close

P = sx.Pow2()


def n_of(x):
    return x.shape[0]


# Where i32 or f32 would give another number: the function, and the size.
BEYOND = {
    "pairs": (lambda x: x.sum() / (n_of(x) * (n_of(x) - 1) / 2), 50000),
    "spearman": (lambda x: 1 - (x**2).sum() * (6 / (n_of(x) * (n_of(x) ** 2 - 1))), 1300),
    "converted": (lambda x: jnp.float32(n_of(x) ** 4) * x, 256),
    "a rest": (lambda x: x * (n_of(x) ** 4 % 1000), 256),
    "filled": (lambda x: jnp.full((3,), n_of(x) ** 4, jnp.float32), 256),
    "a small quotient": (lambda x: x.sum() * (1 / 2 ** n_of(x)) * 1e12, 40),
    "a rest of a power": (lambda x: x.sum() * (3 ** n_of(x) % 7), 30),
    "f64 on the way": (lambda x: x.sum() / (1 - (1 - 1e-7) ** n_of(x)), 5),
    "a large factor": (lambda x: x * ((n_of(x) * 2654435761) % 97), 5),
    "a dim whose terms are beyond": (lambda x: x * (n_of(x) * (n_of(x) - 1) // 2), 50000),
    "bf16 straight from f64": (lambda x: jnp.asarray(n_of(x) * 0.1, jnp.bfloat16) * x, 7),
}


@pytest.mark.parametrize(("fn", "size"), BEYOND.values(), ids=BEYOND)
def test_numbers_beyond_i32_and_f32_are_the_plain_ones(fn, size):
    ex = sx.Exec(fn, ("s",), buckets=P)
    assert_runs_as(fn, ex, np.ones(size, np.float32))
    assert_runs_as(fn, ex, np.ones(size - 1, np.float32))
    assert ex.stats.differences == 0


@pytest.mark.parametrize("x64", [False, True], ids=["x32", "x64"])
@pytest.mark.parametrize("name", ["prod", "max", "sum", "min", "mean"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.int32])
def test_what_numpy_makes_of_a_shape_has_its_strong_dtype(name, dtype, x64):
    def fn(x):
        return x * getattr(np, name)(x.shape), x + np.int64(2) * x.shape[0]

    with jax.enable_x64(x64):
        assert_runs_as(fn, sx.Exec(fn, ("b, s",), buckets=P), ones(2, 3).astype(dtype))


ERRORS = {
    "an operand": (lambda x: x.sum() * n_of(x) ** 3 / 1e6, OverflowError, 1300),
    "an int of the host": (lambda x: x * (2 ** n_of(x)), OverflowError, 40),
    "a float": (lambda x: x * 10.0 ** (n_of(x) * 70), OverflowError, 6),
    "a quotient": (lambda x: x * (1 / (n_of(x) - 5)), ZeroDivisionError, 5),
    "a rest of dims": (lambda x: x * (7 % (n_of(x) - 5)), ZeroDivisionError, 5),
    "a shift": (lambda x: x * (1 << (n_of(x) - 6)), ValueError, 5),
}


@pytest.mark.parametrize(("fn", "kind", "size"), ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_an_error_of_plain_arithmetic_is_raised_at_its_sizes(fn, kind, size, first):
    ex = sx.Exec(fn, ("s",), buckets=sx.Linear(2048))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        if not first:
            fits = 4 if size != 5 else 7
            assert_runs_as(fn, ex, ones(fits))
        for _ in range(2):
            with pytest.raises(kind):
                ex(ones(size))
        assert_runs_as(fn, ex, ones(7 if size == 5 else 3))


@pytest.mark.parametrize(
    "case", [case for case in CASES if len(case.in_shapes) == 1], ids=lambda case: case.name
)
def test_a_call_of_exec_gives_them_too_and_map_one_per_example(case):
    ex = sx.Exec(case.fn, case.in_shapes, buckets=sx.Linear(8))
    plain = jax.jit(case.fn)
    examples = []
    for size in (3, 4, 5, 7, 4):
        (x,) = case.make_args(dict.fromkeys(case.symbols, size), seed=size)
        assert_same(ex(x), plain(x))
        examples.append(x)
    assert ex.stats.differences == 0
    for got, x in zip(ex.map(examples), examples, strict=True):
        assert_same(got, plain(x))


def test_one_graph_serves_all_sizes_of_a_bucket():
    def fn(x):
        return x * (x.shape[0] / 3) ** 1.5 + np.log(np.prod(x.shape))

    ex = sx.Exec(fn, ("s",), buckets=sx.Linear(32))
    for size in range(1, 33):
        assert_runs_as(fn, ex, ones(size))
    assert (ex.cache_size, ex.stats.compiles) == (1, 1)


def test_a_size_alone_costs_nothing_more():
    graph = sx.Exec(lambda x: x.mean() + x.shape[0] * 3 - 1, ("s",), buckets=P).plan(ones(5))
    assert len(graph.size_vector) == 1


def test_what_is_not_read_is_not_an_operand():
    def fn(x):
        _ = jnp.float32(x.shape[0] / 3)
        return x

    assert len(sx.Exec(fn, ("s",), buckets=P).plan(ones(5)).size_vector) == 1


def test_a_number_that_is_another_kind_at_another_size_has_another_trace():
    def fn(x):
        return x.astype(jnp.int32) * 2 ** (x.shape[0] - 5)  # a float below 5

    ex = sx.Exec(fn, ("s",), buckets=sx.Linear(8))
    for size in (4, 5, 6, 3):
        assert_runs_as(fn, ex, ones(size))
    assert ex.stats.traces == 2


def test_questions_of_numbers_are_guards_that_tell_how_they_were_written():
    def fn(x):
        return x.sum() if x.shape[0] / 2 > 3 else x.max()

    ex = sx.Exec(fn, ("s",), buckets=sx.Linear(16))
    assert [str(g) for g in ex.plan(ones(7)).guards] == ["(s / 2) > 3"]
    assert [str(g) for g in ex.plan(ones(4)).guards] == ["not ((s / 2) > 3)"]
    for size in (4, 7, 5, 6):
        assert_runs_as(fn, ex, ones(size))
    assert ex.cache_size == 2
    assert "test_host_values.py" in str(ex.explain(ones(7)))


def test_pad_safe_computes_them_at_sizes_that_are_traced():
    def fn(x):
        return x.sum() / (x.shape[0] * (x.shape[0] - 1) / 2)

    padded = sx.masking.pad_safe(fn, ("s",))
    x = np.where(np.arange(8) < 5, 1.0, np.nan).astype(np.float32)
    assert_close(padded({"s": 5}, x), fn(x[:5]), loose=FEW)
    assert_close(jax.jit(padded)({"s": jnp.int32(5)}, x), fn(x[:5]), loose=FEW)
    many = jax.vmap(padded, ({"s": 0}, None))({"s": jnp.array([3, 5])}, x)
    assert_close(many, np.stack([fn(x[:3]), fn(x[:5])]), loose=FEW)


WRAPPING = {
    "a product": lambda n: np.prod((n,), dtype=np.uint8),
    "a product of products": lambda n: np.prod((n, n, n, n), dtype=np.int32) // n**3,
    "arithmetic": lambda n: np.prod((n,), dtype=np.uint8) * 2,
    "a ufunc": lambda n: np.multiply(np.prod((n,), dtype=np.uint8), 2),
}


@pytest.mark.parametrize("length", WRAPPING.values(), ids=WRAPPING)
def test_a_length_that_wraps_in_its_dtype_is_not_taken_for_the_size(length):
    def fn(x):
        return x.sum() * jnp.ones(length(n_of(x)))

    ex = sx.Exec(fn, ("s",), buckets=sx.Linear(1024), on_unsupported="exact")
    for size in (100, 600, 90, 260):
        x = ones(size)
        assert_same(ex(x), jax.jit(fn)(x))
    assert "s" in ex.stats.exact
    with pytest.raises(sx.InconclusiveShapeError, match="as a Python int"):
        sx.Exec(fn, ("s",), buckets=sx.Linear(1024))(ones(600))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * int(x.shape[0] / 2),
        lambda x: x[: round(x.shape[0] / 2)],
        lambda x: jnp.zeros(round(x.shape[0] / 2)),
    ],
    ids=["int", "slice", "shape"],
)
def test_a_number_where_python_needs_an_int_is_refused_or_exact(fn):
    with pytest.raises(sx.InconclusiveShapeError, match="as a Python int"):
        sx.Exec(fn, ("s",), buckets=P)(ones(5))
    ex = sx.Exec(fn, ("s",), buckets=P, on_unsupported="exact")
    assert_runs_as(fn, ex, ones(5))


@pytest.mark.filterwarnings("ignore:shapeexec. the function was traced:RuntimeWarning")
def test_a_number_that_a_memo_keeps_is_what_plain_code_would_have_kept():
    @functools.lru_cache(None)
    def inverse(number):
        return 1.0 / number

    def fn(x):
        return x * inverse(n_of(x) * 1.0) + x * inverse(n_of(x) * 2.0)

    ex = sx.Exec(fn, ("s",), buckets=P)
    for size in (10, 5, 20):
        assert_close(ex(ones(size)), 1.5 / size * ones(size))
    again = sx.Exec(lambda x: x * inverse(n_of(x) * 4.0), ("s",), buckets=P)
    assert_close(again(ones(5)), ones(5) / 20)
    assert_close(jax.jit(fn)(ones(10)), 0.15 * ones(10))
    assert float(inverse(10.0)) == 0.1
    assert str(inverse(10.0)) == "0.1"


def test_ufuncs_of_one_name_are_not_taken_for_each_other():
    more = np.frompyfunc(lambda a: np.float64(a + 1), 1, 1)
    thrice = np.frompyfunc(lambda a: np.float64(a * 3), 1, 1)

    def fn(x):
        return x * more(n_of(x) / 2) + 100 * thrice(n_of(x) / 2)

    for size in (5, 3, 8):
        assert_runs_as(fn, sx.Exec(fn, ("s",), buckets=P), ones(size))


def test_an_array_that_code_changes_afterwards_is_kept_as_it_was():
    def fn(x):
        factors = np.array([1.0, 2.0])
        before = factors * n_of(x)
        factors[0] = 7.0
        return x.sum() * before + factors * n_of(x)

    ex = sx.Exec(fn, ("s",), buckets=sx.Linear(8))
    for size in (5, 3, 8):
        assert_runs_as(fn, ex, ones(size))
    assert ex.stats.compiles == 1
    assert ex.stats.differences == 0


def test_a_kept_number_and_one_of_the_next_trace_make_one_of_the_next_trace():
    kept = []

    def fn(x):
        kept.append(n_of(x) / 2)
        return x * (kept[0] * 1.0)

    sx.Exec(fn, ("s",), buckets=P)(ones(10))
    five, ex = (
        kept[0],
        sx.Exec(lambda x: x * (five + n_of(x) / 4) * (five - n_of(x)), ("s",), buckets=P),
    )
    for size in (8, 6):
        assert_close(ex(ones(size)), ones(size) * (5 + size / 4) * (5 - size), loose=EQUAL)
    assert ex.stats.compiles == 1
