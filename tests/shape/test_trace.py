"""Guards: each question about a size is answered as the plain function answers it, or refused."""

import dataclasses
import functools
import math
import numbers
import warnings

import einops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import max_dim

import shapeexec as sx
from shapeexec.shape._dim import Dim
from shapeexec.shape._trace import Leaf, trace
from tests.execution.support import assert_runs_as, ones
from tests.marks import written

P = sx.Pow2()
SIZES = (3, 4, 5, 1, 6, 8, 4, 3)
TABLE = {4: 10.0, 6: 3.0}


@dataclasses.dataclass(frozen=True)
class Pair:
    first: int
    second: int


def matched(size):
    match (size, 1):
        case (4, 1):
            return 5
        case (n, 1) if n > 6:
            return 6
    return 7


@functools.lru_cache
def cached(size):
    return 5 if size == 4 else 2


QUESTIONS = {
    "order": lambda s: s > 6,
    "order of a NumPy integer": lambda s: np.int64(4) < s,
    "maximum by NumPy": lambda s: np.maximum(s, 4),
    "remainder": lambda s: s % 2 == 0,
    "truth of a remainder": lambda s: s % 2,
    "not": lambda s: not s % 2,
    "in a tuple": lambda s: s in (6, 8),
    "in a list of NumPy integers": lambda s: s in list(np.array([4, 6])),
    "in an array": lambda s: s in np.array([4, 6]),
    "in a range": lambda s: s in range(2, 5),
    "in a set": lambda s: s in {4, 6},
    "index in a list": lambda s: [4, 5].index(s) if s in [4, 5] else 7,
    "unequal": lambda s: s != 4,
    "a NumPy integer": lambda s: s == np.int64(4),
    "a NumPy integer first": lambda s: np.int64(4) == s,
    "a NumPy array without axes": lambda s: s == np.array(4),
    "elements of an array": lambda s: (s != np.array([4, 6])).all(),
    "a float": lambda s: s == 4.0,
    "a float that is no integer": lambda s: s == 4.5,
    "a NumPy float": lambda s: s == np.float32(4),
    "True": lambda s: s == True,  # noqa: E712 - 1 is True
    "None": lambda s: s == None,  # noqa: E711 - somebody may
    "a string": lambda s: s == "4",
    "a tuple of sizes": lambda s: (2 * s, s) == (8, 4),
    "a tuple in order": lambda s: (s, 3) > (4, 0),
    "a product": lambda s: np.prod((s, 2)) == 8,
    "two expressions": lambda s: 2 * s == s + 4,
    "floor": lambda s: s // 2 == 2,
    "a power": lambda s: s**2 == 16,
    "divmod": lambda s: divmod(s, 2)[1] == 0,
    "look-up": lambda s: TABLE.get(s, 1.0),
    "cached": cached,
    "max": lambda s: max(s, 4),
    "min by key": lambda s: min((s, 9), (4, 1), key=lambda pair: pair[0])[1],
    "sorted": lambda s: sorted([s, 4])[0],
    "ceiling": lambda s: -(-s // 4),
    "bits": lambda s: (s >> 1) + (s << 2) + ~s + (+s) + (s & 3) + (7 & s) + (s & 1 == 0),
    "the absolute value": lambda s: abs(s - 4) + abs(-s),
    "its text": lambda s: {"4": 3.0}.get(str(s), 1.0),
    "its text in another": lambda s: len(f"{s:>{s}}") + len(repr(s)) + (str((s,)) == "(4,)"),
    "whether it is an int": lambda s: 2 if isinstance(s, int) else 3,
    "whether it is integral": lambda s: 2 if isinstance(s, numbers.Integral) else 3,
    "a generated comparison": lambda s: Pair(s, 3) == Pair(4, 3),
    "a pattern": matched,
    "a power of two": lambda s: s & (s - 1) == 0,
    "rounding": round,
    "an order with a float": lambda s: s >= 4.0,
    "NumPy's root": np.sqrt,
    "the ceiling of a quotient": lambda s: math.ceil(s / 2),
    "a traced value": lambda s: jnp.asarray(s) == s,
    "a traced value that differs": lambda s: s != jnp.asarray(s) + (s - 4),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_a_question_about_a_size_is_answered_for_each_size(question):
    def fn(x):
        return x * question(x.shape[0])

    ex = sx.Exec(fn, ("s",), buckets=P)
    for size in SIZES:
        assert_runs_as(fn, ex, ones(size))


@pytest.mark.parametrize(
    "number",
    [
        lambda s: 2 * math.sqrt(s),
        lambda s: math.log(s, 2) + math.exp(-s / 3),
        lambda s: math.gcd(s, 4) + math.isqrt(s),
        lambda s: 1 / math.sqrt(s / 3),
        lambda s: math.comb(s + 3, 2) * math.hypot(s, 1.5),
    ],
    ids=written,
)
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_what_math_makes_of_a_size_is_data(number, dtype):
    def fn(x):
        return x * number(x.shape[0])

    ex = sx.Exec(fn, ("s",), buckets={"s": sx.Linear(8)})
    for size in (1, 3, 7, 8):
        assert_runs_as(fn, ex, ones(size).astype(dtype))
    assert (ex.stats.compiles, ex.stats.differences) == (1, 0)


def test_a_branch_on_what_math_makes_of_a_size_is_a_guard():
    def fn(x):
        return x * 2 if math.log2(x.shape[0]) > 2 else x

    ex = sx.Exec(fn, ("s",), buckets={"s": sx.Linear(8)})
    for size in (3, 4, 5, 8):
        assert_runs_as(fn, ex, ones(size))
    assert ex.stats.compiles == 2


def test_an_error_of_math_is_raised_at_its_sizes():
    def fn(x):
        return x * math.log(x.shape[0] - 3)

    ex = sx.Exec(fn, ("s",), buckets={"s": sx.Linear(8)})
    assert_runs_as(fn, ex, ones(5))
    with pytest.raises(ValueError, match="math domain error"):
        ex(ones(3))


def test_a_quotient_rounded_by_math_is_a_size():
    def fn(x):
        half, third = math.floor(x.shape[0] / 2), math.ceil((2 * x.shape[0] - 9) / 3)
        return x[:half], x[: third + 3].sum(), jnp.arange(half) * third

    ex = sx.Exec(fn, ("s",), buckets={"s": sx.Linear(8)}, check="sizes")
    for size in range(1, 9):
        assert_runs_as(fn, ex, ones(size))
    assert ex.stats.differences == 0
    assert ex.stats.compiles == ex.stats.traces < 4


def swallowed(size):
    try:
        return float(size)
    except Exception:
        return 0.0


@pytest.mark.parametrize(
    "question",
    [
        math.log2,  # as `from math import log2`
        lambda s: len("a" * s),
        lambda s: list(range(9))[s],
        lambda s: int(s / 2),
        lambda s: list(range(9))[round(s / 2)],
        swallowed,
    ],
    ids=written,
)
def test_a_question_that_no_guard_answers_makes_the_size_exact_if_it_may(question):
    def fn(x):
        return x * question(x.shape[0])

    ex = sx.Exec(fn, ("s",), buckets=P, on_unsupported="exact")
    for size in SIZES[:4]:
        assert_runs_as(fn, ex, ones(size))
    with pytest.raises(sx.InconclusiveShapeError):
        sx.Exec(fn, ("s",), buckets=P)(ones(3))


def test_a_second_branch_in_a_bucket_gets_a_graph_of_its_own():
    def fn(x):
        return x.sum() if x.shape[0] % 2 == 0 else x.max()

    ex = sx.Exec(fn, ("s",), buckets={"s": sx.Linear(8)})
    for size in (3, 4, 5, 6):
        assert_runs_as(fn, ex, ones(size))
    assert (ex.cache_size, ex.stats.traces, ex.stats.hits) == (2, 2, 2)
    assert [str(guard) for guard in ex.plan(ones(3)).guards] == ["mod(s, 2) != 0"]
    assert [str(guard) for guard in ex.plan(ones(4)).guards] == ["mod(s, 2) == 0"]


@pytest.mark.parametrize("op", [lambda s: s > 4, lambda s: s == 4], ids=["order", "equality"])
def test_a_guard_knows_the_line_that_asked(op):
    def fn(x):
        return x * 2 if op(x.shape[0]) else x

    (guard,) = sx.Exec(fn, ("s",), buckets=P).plan(ones(4)).guards
    assert "test_trace.py" in guard.described()


def test_a_function_that_was_typed_in_is_user_code():
    fn = eval("lambda x: x * (2 if x.shape[0] == 4 else 3)")
    ex = sx.Exec(fn, ("s",), buckets=P)
    for size in (3, 4):
        assert_runs_as(fn, ex, ones(size))


def test_branches_may_nest_and_ask_of_two_symbols():
    def fn(x):
        b, s = x.shape
        if b == s:
            return x + x.T
        return x * (2 if b > s else 3 if s % 2 else 5)

    ex = sx.Exec(fn, ("b, s",), buckets=P)
    for shape in ((3, 3), (3, 4), (4, 3), (3, 5), (4, 4), (3, 3)):
        assert_runs_as(fn, ex, ones(*shape))


def test_a_question_in_an_inner_jit_is_a_guard_as_well():
    @jax.jit
    def inner(x):
        return x.sum() if x.shape[0] == 4 else x.max()

    def fn(x):
        return inner(x) + inner(x[:3])

    ex = sx.Exec(fn, ("s",), buckets=P)
    for size in (4, 5, 3, 4):
        assert_runs_as(fn, ex, ones(size))


scaled = jax.jit(lambda x, n: x * n, static_argnums=1)
scaled_by_name = jax.jit(lambda x, *, n: x * n, static_argnames="n")


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: scaled(x, x.shape[0]),
        lambda x: scaled_by_name(x, n=x.shape[0]),
        lambda x: jnp.broadcast_to(x.sum(), x.shape),
        lambda x: jnp.full(x.shape, 2.0) + jnp.zeros(x.shape[0]),
        lambda x: einops.rearrange(x, "(s one) -> s one", one=1),
        lambda x: einops.repeat(x, "s -> s two", two=2),
        lambda x: x.reshape(x.shape[0], 1).reshape(-1),
        lambda x: jnp.mean(x) + x.shape[0] / 2,
    ],
    ids=["static", "static name", "broadcast", "full", "rearrange", "repeat", "reshape", "mean"],
)
def test_what_decides_nothing_leaves_no_guard(fn):
    ex = sx.Exec(fn, ("s",), buckets=P)
    for size in (3, 4, 3, 2, 5):
        assert_runs_as(fn, ex, ones(size))
    assert ex.stats.traces == 1
    assert ex.plan(ones(3)).guards == ()


def test_a_number_of_numpy_lends_its_dtype_to_no_size_that_is_equal():
    def fn(x):
        number = np.positive(x.shape[0])
        assert max_dim(number, 1) == number
        return x * number, x * (x.shape[0] + 1 - 1)

    found = trace(fn, [Leaf((Dim("s"),), np.dtype(np.int8))], sizes={"s": 3})
    plain = jax.eval_shape(fn, jax.ShapeDtypeStruct((3,), np.int8))
    assert [aval.dtype for aval in found.jaxpr.out_avals] == [each.dtype for each in plain]


def test_bodies_that_a_trace_shares_stay_one():
    leaf = Leaf((Dim("s"),), np.dtype(np.float32))
    doubled = jax.jit(lambda x: x * 2)
    found = trace(lambda x: doubled(x) + doubled(x + 1), [leaf], sizes={"s": 3})
    first, second = (e.params["jaxpr"] for e in found.jaxpr.eqns if "jaxpr" in e.params)
    assert first is second


def test_a_static_argument_on_the_line_of_a_look_up_hides_nothing():
    def fn(x):
        return scaled(x, x.shape[0]) * {4: 10.0}.get(x.shape[0], 1.0)

    ex = sx.Exec(fn, ("s",), buckets=P)
    for size in (3, 4, 3, 5):
        assert_runs_as(fn, ex, ones(size))


def test_a_reshape_that_fits_some_sizes_is_guarded():
    def fn(x):
        return x.reshape(x.shape[0] // 2, 2)

    ex = sx.Exec(fn, ("s",), buckets=P)
    assert_runs_as(fn, ex, ones(4))
    with pytest.raises(TypeError, match="cannot reshape"):
        ex(ones(5))
    assert_runs_as(fn, ex, ones(6))


def test_a_reshape_may_leave_a_dim_to_jax():
    def fn(x):
        return x.reshape(-1, 2)

    ex = sx.Exec(fn, ("s",), buckets=P)
    for size in (4, 2, 6):
        assert_runs_as(fn, ex, ones(size))
    with pytest.raises(TypeError, match="cannot reshape"):
        ex(ones(5))


def test_a_function_with_many_guards_is_told_once():
    def fn(x):
        return x * TABLE.get(x.shape[0], 1.0)

    ex = sx.Exec(fn, ("s",), buckets=P)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for size in range(1, 12):
            ex.plan(ones(size))
    (warning,) = [w for w in told if "it branches on its sizes" in str(w.message)]
    assert "test_trace.py" in str(warning.message)
    assert "Fix:   decide with jnp.where" in str(warning.message)
