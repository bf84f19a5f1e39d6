"""Attention inside `Exec`: padding changes nothing, forward and backward, and needs no mask."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.masking import POISONS

BUCKETS = {"b": sx.Pow2(), "t": sx.Linear(64), "s": sx.Linear(48)}
SIZES = ((3, 70, 50), (1, 1, 1), (2, 64, 96))


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of query, key and value, and of more.

    Attributes:
        name: What it shows.
        fn: The function.
        specs: Those of its further arguments.
        make: Makes them, of b, t and s.
    """

    name: str
    fn: Callable[..., Any]
    specs: tuple[str, ...] = ()
    make: Callable[..., tuple[Any, ...]] = lambda random, b, t, s: ()


def attend(**options: Any) -> Callable[..., Any]:
    return lambda q, k, v: sx.dot_product_attention(q, k, v, **options)


def with_ids(q, k, v, ids, others):
    return sx.dot_product_attention(q, k, v, mask=sx.Documents(ids, others))


def make_ids(random, b, t, s):
    return tuple(random.integers(0, 3, (b, n)).astype(np.int32) for n in (t, s))


def with_arrays(q, k, v, mask, bias):
    return sx.dot_product_attention(q, k, v, bias, mask)


def make_arrays(random, b, t, s):
    mask = random.random((b, 1, t, s)) < 0.7
    return mask, random.normal(size=(1, 4, t, s)).astype(np.float32)


def with_lengths(q, k, v, queries, keys):
    return sx.dot_product_attention(
        q, k, v, query_seq_lengths=queries, key_value_seq_lengths=keys, mask=sx.Causal(align="end")
    )


def make_lengths(random, b, t, s):
    return tuple(random.integers(1, n + 1, b).astype(np.int32) for n in (t, s))


def with_modifier(q, k, v, table, n):
    mask = sx.PrefixLM(n)
    return sx.dot_product_attention(q, k, v, sx.RelativeBias(table), mask)


def make_modifier(random, b, t, s):
    table = random.normal(size=(4, 5)).astype(np.float32)
    return table, random.integers(0, 9, b).astype(np.int32)


PROGRAMS = (
    Program("full", attend()),
    Program("the last query at the last key", attend(mask=sx.Causal(align="end"))),
    Program("window", attend(is_causal=True, local_window_size=(40, 0))),
    Program("documents", with_ids, ("b, t", "b, s"), make_ids),
    Program("arrays", with_arrays, ("b, _, t, s", "_, _, t, s"), make_arrays),
    Program("lengths", with_lengths, ("b", "b"), make_lengths),
    Program("modifier", with_modifier, ("_, _", "b"), make_modifier),
)


def gradients(program: Program) -> Callable[..., Any]:
    """Of query, key, value and what else is a number, and the value itself."""

    def run(q, k, v, weight, *more):
        floats = [i for i, x in enumerate(more) if jnp.issubdtype(x.dtype, np.floating)]

        def total(arrays, floats_given):
            given = dict(zip(floats, floats_given, strict=True))
            whole = [given.get(i, x) for i, x in enumerate(more)]
            return (program.fn(*arrays, *whole) * weight).sum()

        return jax.value_and_grad(total, argnums=(0, 1))((q, k, v), [more[i] for i in floats])

    return run


def arguments(program: Program, b: int, t: int, s: int) -> list[np.ndarray]:
    random = np.random.default_rng(b + t)
    shapes = (b, t, 4, 8), (b, s, 2, 8), (b, s, 2, 8), (b, t, 4, 8)
    arrays = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    return [*arrays, *program.make(random, b, t, s)]


def specs(program: Program) -> tuple[str, ...]:
    q, k = "b, t, _, _", "b, s, _, _"
    return (q, k, k, q, *program.specs)


def assert_close(actual, expected) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 2e-4, 2e-5), actual, expected)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_padding_changes_nothing(program):
    fn = gradients(program)
    plain = jax.jit(fn)
    calls = [arguments(program, *sizes) for sizes in SIZES]
    expected = [plain(*args) for args in calls]
    poisons = POISONS if program.name == "arrays" else ("nan", "max")
    for poison in poisons:
        run = sx.Exec(fn, specs(program), buckets=BUCKETS, poison=poison)
        for args, want in zip(calls, expected, strict=True):
            assert_close(run(*args), want)


def test_nothing_is_filled():
    program = PROGRAMS[2]
    run = sx.Exec(lambda q, k, v, w: jax.vjp(program.fn, q, k, v)[1](w), specs(program), BUCKETS)
    args = arguments(program, 3, 70, 50)
    run(*args)
    assert "0 masks" in str(run.explain(*args))


def test_a_derivative_along_a_direction_is_exact_too():
    def along(q, k, v, d):
        return jax.jvp(lambda q: sx.dot_product_attention(q, k, v, is_causal=True), (q,), (d,))

    args = arguments(PROGRAMS[0], 3, 20, 50)
    run = sx.Exec(along, specs(PROGRAMS[0]), BUCKETS, poison="nan")
    assert_close(run(*args), along(*args))


def test_examples_of_different_sizes_are_mapped_together():
    def one(x, ids):
        return sx.dot_product_attention(x, x, x, mask=sx.Documents(ids), is_causal=True)

    random = np.random.default_rng(0)
    sizes = (3, 64, 70, 1)
    examples = [random.normal(size=(n, 2, 8)).astype(np.float32) for n in sizes]
    ids = [random.integers(0, 2, n).astype(np.int32) for n in sizes]
    run = sx.Exec(one, ("s, _, _", "s"), BUCKETS)
    assert_close(run.map(examples, ids), [one(*x) for x in zip(examples, ids, strict=True)])


REFUSED = {
    "heads": (lambda q: sx.dot_product_attention(q, q, q), "_, _, n, _", "heads"),
    "a table": (
        lambda t: sx.dot_product_attention(X, X, X, sx.RelativeBias(t, left=3)),
        "_, n",
        "none of the call's",
    ),
}
X = np.ones((1, 5, 4, 8), np.float32)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_padded_is_refused(name):
    fn, spec, why = REFUSED[name]
    x = X if name == "heads" else np.ones((4, 7), np.float32)
    run = sx.Exec(fn, (spec,))
    with pytest.raises(sx.UnsupportedPrimitiveError, match=why) as caught:
        run(x)
    assert caught.value.symbols == {"n"}
    assert "test_exec.py" in caught.value.where
