"""What attention gives is what its formulas say, as exactly as JAX's own."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from tests.attention.cases import CASES, Case
from tests.attention.reference import Reference, summed_to
from tests.marks import by_name
from tests.tolerance import SUMS, assert_close, epsilon

_QUICK = {"xla_llvm_disable_expensive_passes": True}  # each program runs once


def seeded(case: Case) -> np.random.Generator:
    return np.random.default_rng(abs(hash(case.sizes)) + len(case.name))


def f64(x) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


def reference_of(case: Case, options, q, k, v) -> Reference:
    allowed = np.ones((1, 1, 1, 1), bool) if case.allowed is None else case.allowed(case, options)
    bias = np.zeros((1, 1, 1, 1))
    if case.bias is not None:
        bias = case.bias(case, options)
    elif "bias" in options:
        bias = f64(options["bias"])
    scale = options.get("scale", case.sizes[5] ** -0.5)
    b, t, s, n, *_ = case.sizes
    return Reference(f64(q), f64(k), f64(v), bias, np.broadcast_to(allowed, (b, n, t, s)), scale)


def with_gradients(attend, options, d_out):
    """`run(q, k, v, bias array or None) -> [out, residual, gradients...]`."""

    @functools.partial(jax.jit, compiler_options=_QUICK)
    def run(q, k, v, bias):
        rest = {name: x for name, x in options.items() if name != "bias"}

        def one(q, k, v, bias):
            return attend(q, k, v, bias, return_residual=True, **rest)

        out, transpose, residual = jax.vjp(one, q, k, v, bias, has_aux=True)
        return [out, residual, *jax.tree.leaves(transpose(d_out))]

    return run


def error(actual, expected: np.ndarray) -> float:
    finite = np.isfinite(expected)
    actual = f64(actual)
    np.testing.assert_array_equal(actual[~finite], expected[~finite])
    assert np.isfinite(actual[finite]).all()
    return np.abs(actual[finite] - expected[finite]).max(initial=0)


@pytest.mark.parametrize("case", by_name({case.name: case for case in CASES}, {"tiles apart"}))
def test_result_and_gradients_are_as_exact_as_those_of_jax(case):
    random = seeded(case)
    q, k, v, d_out = case.arrays(random)
    options = case.options(case, random)
    bias = options.get("bias")
    truth = reference_of(case, options, q, k, v)
    *gradients, d_bias = truth.gradients(f64(d_out))
    expected = [truth.out, truth.logsumexp, *gradients]
    if hasattr(bias, "shape"):
        expected.append(summed_to(d_bias, bias.shape))
    ours = with_gradients(sx.dot_product_attention, options, d_out)(q, k, v, bias)
    theirs = of_jax(case, truth, options, q, k, v, d_out)
    for x, like in zip(ours, [q, q, q, k, v], strict=False):
        assert x.dtype == like.dtype
    if bias is not None and not hasattr(bias, "shape"):
        *ours, of_modifier = ours
        want = gradient_of_modifier(case, bias, d_bias).astype(of_modifier.dtype)
        assert_close(of_modifier, want, scale=float(np.abs(want).max()))
    for number, (mine, want) in enumerate(zip(ours, expected, strict=True)):
        assert mine.shape == want.shape
        rounding = epsilon(case.dtype) * max(1.0, np.abs(want[np.isfinite(want)]).max(initial=0))
        allowed = 4 * rounding if theirs is None else 2 * (error(theirs[number], want) + rounding)
        assert error(mine, want) <= allowed, number


def of_jax(case: Case, truth: Reference, options, *arrays) -> list[np.ndarray] | None:
    """What JAX's function gives; None where it has no such call."""
    q, k, v, d_out = arrays
    if case.dtype == "float16" or v.shape != k.shape:  # the former has no product on a CPU
        return None
    if case.plain:
        return with_gradients(jax.nn.dot_product_attention, options, d_out)(
            q, k, v, options.get("bias")
        )
    # JAX knows no row without keys: it is asked for no gradient of these, and its results there
    # are not looked at.
    logsumexp = truth.logsumexp
    rows = np.isfinite(logsumexp)
    finite = np.where(np.isfinite(truth.bias), truth.bias, 0)
    bias = None if truth.bias.size == 1 else jnp.asarray(finite, np.float32)
    mask = {"mask": jnp.asarray(truth.allowed & np.isfinite(truth.bias)), "scale": truth.scale}
    d_out = d_out * jnp.asarray(rows[..., None], d_out.dtype)
    results = with_gradients(jax.nn.dot_product_attention, mask, d_out)(q, k, v, bias)
    out, residual, *gradients = map(f64, results)
    return [np.where(rows[..., None], out, 0), np.where(rows, residual, -np.inf), *gradients]


def gradient_of_modifier(case: Case, bias, d_bias: np.ndarray) -> np.ndarray:
    distance = case.keys - case.queries
    if isinstance(bias, sx.ALiBi):
        return -(d_bias * abs(distance)).sum((0, 2, 3))[None]
    index = np.clip(distance, -4, 2) + 4
    entries = [np.where(index == i, d_bias, 0).sum((0, 2, 3)) for i in range(7)]
    return np.stack(entries, -1)[None]


def test_arguments_of_attention_are_those_of_jax_and_five_more():
    ours = inspect.signature(sx.dot_product_attention).parameters
    theirs = inspect.signature(jax.nn.dot_product_attention).parameters
    more = ["deterministic", "dropout_rate", "dropout_key", "pages", "expected_density"]
    assert list(ours) == [*theirs, *more]
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default
        assert ours[name].kind == parameter.kind


def test_without_a_batch_axis_a_call_gives_what_it_gives_for_a_batch_of_one():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(7, 2, 40)), np.float32)
    lengths = jnp.array([5], jnp.int32)
    alone, residual = sx.dot_product_attention(
        x, x, x, key_value_seq_lengths=lengths, return_residual=True
    )
    whole = sx.dot_product_attention(x[None], x[None], x[None], key_value_seq_lengths=lengths)
    assert residual.shape == (7, 2)
    np.testing.assert_array_equal(alone, whole[0])


def test_a_scale_may_be_traced():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 7, 2, 40)), np.float32)

    def total(attend, scale):
        return attend(x, x, x, scale=scale).sum()

    for run in (total, jax.grad(total, argnums=1)):
        assert_close(
            run(sx.dot_product_attention, jnp.float32(0.2)),
            run(jax.nn.dot_product_attention, jnp.float32(0.2)),
            loose=SUMS,  # 560 numbers of either sign are added
        )


def test_an_expected_density_changes_no_result():
    random = np.random.default_rng(0)
    x, direction = (jnp.asarray(random.normal(size=(3, 2, 150, 2, 8)), np.float32) for _ in "ab")
    ids = jnp.asarray(np.sort(random.integers(0, 4, (3, 2, 150))), np.int32)

    def results(**options):
        def attend(x, ids):
            mask = sx.Documents(ids) & sx.Causal()
            options["deterministic"] = False
            return sx.dot_product_attention(x, x, x, mask=mask, **options)

        mapped = jax.vmap(attend)
        gradient = jax.grad(lambda x, ids: (attend(x, ids) ** 2).sum())
        padded = sx.Exec(gradient, ("b, t, 2, 8", "b, t"))
        return [
            attend(x[0], ids[0]),
            jax.jit(jax.grad(lambda x: (mapped(x, ids) ** 2).sum()))(x),
            jax.jvp(lambda x: mapped(x, ids), (x,), (direction,))[1],
            padded(x[1], ids[1]),
        ]

    jax.tree.map(np.testing.assert_array_equal, results(expected_density=0.3), results())


@pytest.mark.parametrize("empty", ["B", "T", "S"])
def test_an_axis_of_0_gives_what_there_is(empty):
    sizes = {"B": 2, "T": 3, "S": 4} | {empty: 0}
    q, k = jnp.ones((sizes["B"], sizes["T"], 2, 8)), jnp.ones((sizes["B"], sizes["S"], 2, 8))
    out = sx.dot_product_attention(q, k, k)
    gradient = jax.grad(lambda q: sx.dot_product_attention(q, k, k).sum())(q)
    assert out.shape == gradient.shape == q.shape
    assert not out.any()
    assert not gradient.any()


def test_tiles_that_nobody_attends_to_are_not_visited():
    random = np.random.default_rng(0)
    q, k, v = (random.normal(size=(1, 400, 2, 40)).astype(np.float32) for _ in range(3))
    mask = np.ones((1, 1, 400, 400), bool)
    mask[:, :, :, 128:256] = False
    mask[:, :, 256:384] = False
    k[:, 128:256], v[:, 128:256], q[:, 256:384] = np.nan, np.nan, np.nan

    def total(q, k, v):
        return sx.dot_product_attention(q, k, v, mask=mask).sum()

    value, gradients = jax.value_and_grad(total, argnums=(0, 1, 2))(q, k, v)
    assert np.isfinite(value)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_behind_the_lengths_all_is_0_whatever_the_operands_hold():
    random = np.random.default_rng(0)
    q, k, v, d_out = (random.normal(size=(1, 9, 2, 8)).astype(np.float32) for _ in range(4))
    q[:, 5:], d_out[:, 5:], k[:, 7:], v[:, 7:] = np.nan, np.inf, np.nan, np.inf
    v[:, 2] = np.nan  # one that counts

    def attend(q, k, v):
        return sx.dot_product_attention(
            q,
            k,
            v,
            query_seq_lengths=np.array([5], np.int32),
            key_value_seq_lengths=np.array([7], np.int32),
        )

    out, transpose = jax.vjp(attend, q, k, v)
    assert np.isnan(out[:, :5]).all()
    for x, length in zip((out, *transpose(d_out)), (5, 5, 7, 7), strict=True):
        assert not x[:, length:].any()


def test_memory_is_linear_in_the_sizes():
    x = jax.ShapeDtypeStruct((1, 2048, 1, 8), np.float32)

    def total(x):
        return sx.dot_product_attention(x, x, x, is_causal=True).sum()

    compiled = jax.jit(jax.value_and_grad(total)).lower(x).compile()
    largest = compiled.memory_analysis().temp_size_in_bytes
    assert largest < 2048 * 2048  # bytes; scores in f32 would take four times as many


def test_equal_calls_give_equal_bits():
    random = np.random.default_rng(0)
    q, k, v = (jnp.asarray(random.normal(size=(2, 140, 4, 40)), np.float32) for _ in range(3))
    run = jax.jit(
        jax.grad(
            lambda *x: (sx.dot_product_attention(*x, is_causal=True) ** 2).sum(), argnums=(0, 1, 2)
        )
    )
    first = run(q, k, v)
    for _ in range(10):
        jax.tree.map(np.testing.assert_array_equal, run(q, k, v), first)
