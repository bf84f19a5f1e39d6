"""Results have the dtype, weak type, tree and device of the plain call, in every dtype."""

import collections
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from tests.execution.support import assert_runs_as, ones

BUCKETS = sx.Linear(8)
NARROW = (
    *(jnp.float16, jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.complex64),
    *(jnp.int4, jnp.uint4, jnp.int8, jnp.uint8, jnp.int16, jnp.uint16, jnp.uint32, jnp.bool_),
)
WIDE = (np.float64, np.int64, np.uint64, np.complex128)


def moved_and_reduced(x: jax.Array) -> Any:
    """Results that are right only with the identities of the dtype."""
    wide = x if x.dtype.itemsize > 1 or x.dtype == bool else x.astype(jnp.float32)
    return {
        "moved": (x, x.T, x[::-1], x.reshape(-1), jnp.concatenate([x, x], 1), x == x[0, 0]),
        "reduced": (wide.sum(1), wide.max(1) if x.dtype.kind != "c" else x.prod(1), wide.any(0)),
        "sorted": jnp.sort(x, 1) if x.dtype.kind != "c" else x.mean(1),
        "from the end": jax.lax.cumsum(wide * 1, 1, reverse=True),
        "sizes": (x.shape[1], jnp.ones(x.shape), jnp.arange(x.shape[0])),
    }


@pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: np.dtype(dtype).name)
def test_every_dtype_goes_in_and_out(dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 2, (3, 5)).astype(dtype)
    run = sx.Exec(moved_and_reduced, ("b, s",), buckets=BUCKETS, poison="min")
    assert_runs_as(moved_and_reduced, run, x)
    np.testing.assert_array_equal(run(jnp.asarray(x))["moved"][0], x)


def test_integers_of_two_bits_are_sorted() -> None:
    x = np.array([[1, -2, 0, -1, -2]])
    run = sx.Exec(
        lambda x: jnp.sort(x, 1), ("b, s",), buckets=BUCKETS
    )  # where XLA's own sort fails
    np.testing.assert_array_equal(run(x.astype(jnp.int2)).astype(int), np.sort(x, 1))


@pytest.mark.parametrize("x64", [True, False], ids=["x64", "x32"])
@pytest.mark.parametrize("dtype", WIDE, ids=lambda dtype: np.dtype(dtype).name)
def test_wide_dtypes_go_in_and_out(dtype: Any, x64: bool) -> None:
    with jax.enable_x64(x64):
        run = sx.Exec(moved_and_reduced, ("b, s",), buckets=BUCKETS, poison="max")
        assert_runs_as(moved_and_reduced, run, ones(3, 5).astype(dtype))


@pytest.mark.parametrize("scalar", [2, 2.5, True, 1j], ids=str)
def test_python_scalars_promote_as_they_do(scalar: Any) -> None:
    def fn(x: jax.Array, scalar: Any) -> Any:
        return x * scalar, scalar, scalar + 1, jnp.broadcast_to(scalar, x.shape)

    run = sx.Exec(fn, ("b, s", None), buckets=BUCKETS)
    assert_runs_as(fn, run, ones(3, 5).astype(jnp.bfloat16), scalar)


Pair = collections.namedtuple("Pair", "first second")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Batch:
    data: Any
    mask: Any = None
    name: str = dataclasses.field(default="train", metadata={"static": True})


@pytest.mark.parametrize(
    ("fn", "argument"),
    [
        (lambda p: Pair(p.first * 2, None), Pair(ones(3, 5), None)),
        (lambda p: [None, (p.second, {"sum": p.first.sum()})], Pair(ones(3, 5), ones(3, 5))),
        (lambda b: Batch(b.data[::-1], b.mask, "other"), Batch(ones(3, 5))),
        (lambda d: collections.OrderedDict(z=d["a"], a=d["m"]), {"a": ones(3, 5), "m": None}),
        (lambda x: None, ones(3, 5)),
    ],
    ids=["namedtuple", "nested", "dataclass", "dictionary", "nothing"],
)
def test_trees_keep_their_nodes(fn: Any, argument: Any) -> None:
    result = assert_runs_as(fn, sx.Exec(fn, ("b, s",), buckets=BUCKETS), argument)
    assert type(result) is type(fn(jax.tree.map(jnp.asarray, argument)))


STRICT = {
    "ranks": lambda: jax.numpy_rank_promotion("raise"),
    "dtypes": lambda: jax.numpy_dtype_promotion("strict"),
    "nans": lambda: jax.debug_nans(True),
    "infs": lambda: jax.debug_infs(True),
}


def on_positive_numbers(x: jax.Array) -> Any:
    """What has NaN and infinity on zero padding."""
    return x / x, jnp.log(x), x[::-1], jnp.cumsum(x, 1), jnp.sort(x, 0), jax.nn.softmax(x), x @ x.T


@pytest.mark.parametrize("strict", STRICT)
def test_strictness_asked_of_the_function_is_not_asked_of_the_rules(strict: str) -> None:
    run = sx.Exec(on_positive_numbers, ("b, s",), buckets=BUCKETS)
    assert_runs_as(on_positive_numbers, run, ones(3, 5))
    with STRICT[strict]():
        assert_runs_as(on_positive_numbers, run, ones(3, 5))


def test_nan_in_a_valid_element_is_found_still() -> None:
    run = sx.Exec(on_positive_numbers, ("b, s",), buckets=BUCKETS)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        run(np.zeros((3, 5), np.float32))
