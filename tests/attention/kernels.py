"""Calls for kernels in Pallas' interpreter, at sizes of some small tiles, and what they must give.

Masks are taken by their own word here (`to_dense`): what they mean is asked in their own tests.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from shapeexec.attention._blocks import BlockMask, to_dense
from shapeexec.attention._grid import tile_grid
from shapeexec.attention._lists import lists_by_key, lists_by_query
from shapeexec.attention.backends import _choose
from shapeexec.attention.backends._base import Residuals, Signature, Work
from shapeexec.attention.masks import (
    ALiBi,
    Causal,
    Dense,
    Documents,
    Full,
    Global,
    Lengths,
    Mask,
    MaskFunction,
    RelativeBias,
    SlidingWindow,
)
from shapeexec.attention.masks.kept import Kept
from tests.attention.reference import Reference, summed_to
from tests.attention.tiles import tile_kinds
from tests.tolerance import assert_close, epsilon

Random = np.random.Generator
Sizes = tuple[int, int, int, int, int, int, int]

_QUICK = {  # each program runs once
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        name: What it shows.
        sizes: B, T, S, N, K, H, V.
        dtype: Of query, key and value.
        mask: Makes the mask.
        lengths: How many queries, and how many keys, each example has; None: all.
        bias: Makes the bias: an array f32[B or 1, N or 1, T or 1, S or 1], or a score modifier.
        tile: Queries and keys of a tile.
    """

    name: str
    sizes: Sizes
    dtype: str = "float32"
    mask: Callable[[Random, Sizes], Mask] = lambda random, sizes: Full()
    lengths: tuple[list[int], list[int]] | None = None
    bias: Callable[[Random, Sizes], Any] = lambda random, sizes: None
    tile: tuple[int, int] = (16, 16)

    @property
    def seed(self) -> int:
        return sum(map(ord, self.name))


def window(left: int, right: int) -> Callable[[Random, Sizes], Mask]:
    return lambda random, sizes: SlidingWindow(left, right) & Causal()


def causal(random: Random, sizes: Sizes) -> Mask:
    return Causal()


def causal_at_the_end(random: Random, sizes: Sizes) -> Mask:
    return Causal(align="end")


def documents_and_array(random: Random, sizes: Sizes) -> Mask:
    b, t, s, n, *_ = sizes
    ids = (np.sort(random.integers(0, 3, (b, length))).astype(np.int32) for length in (t, s))
    return Documents(*ids) & Dense(random.random((1, n, t, s)) < 0.7)


def array_of_keys(random: Random, sizes: Sizes) -> Mask:
    return Dense(random.random((sizes[0], 1, 1, sizes[2])) < 0.5)


def by_head_and_example(random: Random, sizes: Sizes) -> Mask:
    return MaskFunction(lambda b, h, q, k: (q + k + h + 2 * b) % 3 > 0) | Global(2)


def random_share(random: Random, sizes: Sizes) -> Mask:
    seeds = random.integers(-(2**31), 2**31, sizes[0]).astype(np.int32)
    return Kept(0.4, seeds) & SlidingWindow(15, None)


def blocks(random: Random, sizes: Sizes) -> Mask:
    """Tiles of any kind, some rows and columns wholly empty; other ones for each head."""
    _, t, s, n, *_ = sizes

    def mask(*tile: int) -> Mask:
        count = (-(-t // tile[0]), -(-s // tile[1]))
        kinds = random.integers(0, 3, (1, n, *count)).astype(np.uint8)
        return BlockMask(kinds, tile, (t, s), elements=SlidingWindow(5, 5))

    holes = np.ones((4, 4), np.uint8)
    holes[1] = holes[:, 1] = 0
    return (mask(16, 16) | mask(32, 8)) & BlockMask(holes, (16, 16), (t, s))


def random_bias(*axes: int) -> Callable[[Random, Sizes], Any]:
    """An array whose axes are full where `axes` says 0."""

    def make(random: Random, sizes: Sizes) -> Any:
        b, t, s, n, *_ = sizes
        full = [axis or length for axis, length in zip(axes, (b, n, t, s), strict=True)]
        return random.normal(size=full).astype(np.float32)

    return make


def extreme_bias(random: Random, sizes: Sizes) -> Any:
    bias = random_bias(1, 0, 0, 0)(random, sizes)
    bias[..., ::3] = -np.inf
    bias[:, 0, 1] = -np.inf  # nothing to attend to
    bias[:, 0, 2, 1] = 1e30
    bias[:, 0, 3] = -1e30  # all alike
    return bias


def alibi(random: Random, sizes: Sizes) -> Any:
    return ALiBi(np.abs(random.normal(size=sizes[3])).astype(np.float32))


def relative(random: Random, sizes: Sizes) -> Any:
    return RelativeBias(random.normal(size=(sizes[3], 9)).astype(np.float32), left=5)


CASES = (
    Case("one query and one key", (2, 1, 1, 2, 1, 40, 40), bias=random_bias(0, 0, 0, 0)),
    Case("full, few key heads, other values", (1, 33, 47, 4, 2, 40, 24), "bfloat16"),
    Case(
        "causal, NaN behind lengths",
        (3, 35, 40, 2, 2, 48, 48),
        mask=causal,
        lengths=([35, 0, 17], [33, 20, 40]),
        bias=random_bias(0, 1, 0, 0),
    ),
    Case(
        "causal at the end, lengths of whole tiles",
        (2, 20, 50, 2, 1, 40, 40),
        mask=causal_at_the_end,
        lengths=([16, 20], [32, 48]),
    ),
    Case("window", (1, 70, 70, 2, 1, 64, 64), "bfloat16", window(20, 3)),
    Case(
        "documents, an array of each head",
        (2, 40, 33, 4, 2, 40, 40),
        mask=documents_and_array,
        lengths=([40, 30], [33, 9]),
        bias=random_bias(1, 1, 0, 1),
    ),
    Case(
        "a mask of keys, a bias of keys",
        (2, 17, 45, 2, 2, 40, 40),
        mask=array_of_keys,
        bias=random_bias(0, 1, 1, 0),
    ),
    Case("a function", (2, 20, 40, 2, 1, 40, 40), mask=by_head_and_example, bias=alibi),
    Case("a random share of a window", (2, 40, 40, 4, 2, 40, 40), mask=random_share),
    Case("blocks of one tile, of more and of less", (1, 60, 50, 2, 1, 40, 40), mask=blocks),
    Case(
        "extreme biases", (2, 20, 24, 2, 1, 40, 40), bias=extreme_bias, tile=(16, 32), mask=causal
    ),
)


@dataclasses.dataclass(frozen=True)
class Made:
    """The arrays of a case.

    Attributes:
        q, k, v, d_out, d_logsumexp: As a back end gets them, finite everywhere.
        mask: The mask.
        bias: The bias.
        sizes: How many queries and keys count, i32[B] each.
        reference: What it is.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    d_out: np.ndarray
    d_logsumexp: np.ndarray
    mask: Mask
    bias: Any
    sizes: tuple[np.ndarray, np.ndarray]
    reference: Reference


def made(case: Case) -> Made:
    random = np.random.default_rng(case.seed)
    b, t, s, n, k, h, v = case.sizes
    shapes = (b, t, n, h), (b, s, k, h), (b, s, k, v), (b, t, n, v)
    arrays = [np.asarray(jnp.asarray(random.normal(size=x), case.dtype)) for x in shapes]
    d_logsumexp = random.normal(size=(b, n, t)).astype(np.float32)
    mask, bias = case.mask(random, case.sizes), case.bias(random, case.sizes)
    lengths = case.lengths or ([t] * b, [s] * b)
    sizes = np.array(lengths[0], np.int32), np.array(lengths[1], np.int32)
    allowed = allowed_of(case, mask, sizes)
    distance = np.arange(s) - np.arange(t)[:, None]
    q, key, value, _ = (x.astype(np.float64) for x in arrays)
    plain = bias_as_array(bias, distance)
    reference = Reference(q, key, value, plain, allowed, h**-0.5)
    return Made(*arrays, d_logsumexp, mask, bias, sizes, reference)


def allowed_of(case: Case, mask: Mask, sizes: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """bool[B, N, T, S]; of each example by itself, for what a mask says may depend on its size."""
    b, t, s, n, *_ = case.sizes
    allowed = np.zeros((b, n, t, s), bool)
    if case.lengths is None:
        return np.array(to_dense(mask, (t, s), batch=b, heads=n))
    for i, (queries, keys) in enumerate(zip(*sizes, strict=True)):
        if isinstance(mask, Causal) and mask.align == "end":
            own = np.arange(keys) - keys <= np.arange(queries)[:, None] - queries
        else:
            own = np.asarray(to_dense(mask, (t, s), batch=b, heads=n))[i, :, :queries, :keys]
        allowed[i, :, :queries, :keys] = own
    return allowed


def bias_as_array(bias: Any, distance: np.ndarray) -> np.ndarray:
    if bias is None:
        return np.zeros((1, 1, 1, 1))
    if isinstance(bias, ALiBi):
        return -np.asarray(bias.slopes)[..., None, None] * np.abs(distance)
    if isinstance(bias, RelativeBias):
        last = bias.table.shape[-1] - 1
        return np.asarray(bias.table, np.float64)[..., (distance + bias.left).clip(0, last)]
    return bias.astype(np.float64)


def signature_of(case: Case, bias: Any) -> Signature:
    b, t, s, n, k, h, v = case.sizes
    return Signature(
        batch=b,
        query_size=t,
        key_size=s,
        query_heads=n,
        key_heads=k,
        head_size=h,
        value_size=v,
        dtype=case.dtype,
        scale=h**-0.5,
        bias=None if bias is None else bias.shape if hasattr(bias, "shape") else type(bias),
        is_ragged=case.lengths is not None,
        tile=case.tile,
    )


def work_of(case: Case, mask: Mask, sizes: tuple[np.ndarray, np.ndarray]) -> Work:
    b, t, s, n, *_ = case.sizes
    queries, keys = (None, None) if case.lengths is None else sizes
    grid = tile_grid((t, s), case.tile, query_lengths=queries, key_lengths=keys, batch=b, heads=n)
    kinds = tile_kinds(mask, grid)
    return Work(mask & Lengths(), *sizes, lists_by_query(kinds), lists_by_key(kinds))


def poisoned(x: np.ndarray, sizes: np.ndarray, axis: int) -> np.ndarray:
    """NaN behind the valid lengths."""
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    behind = np.arange(x.shape[axis]).reshape(shape) >= sizes.reshape(-1, *[1] * (x.ndim - 1))
    return np.where(behind, np.asarray(np.nan, x.dtype), x)


def run(
    backend: Any, case: Case, given: Made, work: Work, *, bias_gradient: bool
) -> list[np.ndarray]:
    """Output, log-sum-exp, and the gradients, in one program."""
    queries, keys = given.sizes
    q, d_out = (poisoned(x, queries, 1) for x in (given.q, given.d_out))
    k, v = (poisoned(x, keys, 1) for x in (given.k, given.v))
    d_logsumexp = poisoned(given.d_logsumexp, queries, 2)
    bias = given.bias
    if case.lengths is not None and hasattr(bias, "shape"):
        for axis, sizes in ((2, queries), (3, keys)):
            if bias.shape[axis] > 1 and bias.shape[0] > 1:
                bias = poisoned(bias, sizes, axis)
    signature = signature_of(case, bias)

    @functools.partial(jax.jit, compiler_options=_QUICK if backend.interpret else None)
    def all_of_it(arrays):
        work, q, k, v, bias, d_out, d_logsumexp = arrays
        out, logsumexp = backend.forward(signature, work, q=q, k=k, v=v, bias=bias)
        gradients = backend.backward(
            *(signature, work),
            residuals=Residuals(q, k, v, bias, out, logsumexp),
            d_out=d_out,
            d_logsumexp=d_logsumexp,
            deterministic=True,
            bias_gradient=bias_gradient,
        )
        return [out, logsumexp, *gradients]

    results = all_of_it((work, q, k, v, bias, d_out, d_logsumexp))
    return [np.asarray(x) for x in results if x is not None]


def expected(case: Case, given: Made, *, bias_gradient: bool) -> list[np.ndarray]:
    """The same of formulas."""
    truth, d_logsumexp = given.reference, given.d_logsumexp.astype(np.float64)
    d_out = given.d_out.astype(np.float64)
    *gradients, d_scores = truth.gradients(d_out)
    more = truth.weights * d_logsumexp[..., None]
    b, _, s, n, k, h, _ = case.sizes
    group = n // k
    gradients[0] += np.einsum("bnts,bsnh->btnh", more, truth.k.repeat(group, 2)) * truth.scale
    of_heads = np.einsum("bnts,btnh->bsnh", more, truth.q) * truth.scale
    gradients[1] += of_heads.reshape(b, s, k, group, h).sum(3)
    results = [truth.out, truth.logsumexp.transpose(0, 2, 1), *gradients]
    if bias_gradient:
        results.append(summed_to(d_scores + more, given.bias.shape))
    return results


def assert_right(case: Case, actual: list[np.ndarray], want: list[np.ndarray]) -> None:
    names = ("out", "logsumexp", "d_q", "d_k", "d_v", "d_bias")
    for name, mine, right in zip(names, actual, want, strict=False):
        assert mine.shape == right.shape, name
        assert mine.dtype == (np.float32 if name in ("logsumexp", "d_bias") else case.dtype), name
        finite = np.isfinite(right)
        np.testing.assert_array_equal(mine[~finite], right[~finite].astype(mine.dtype), name)
        largest = max(1, np.abs(right[finite]).max(initial=0))
        error = np.abs(mine[finite].astype(np.float64) - right[finite]).max(initial=0)
        assert error <= 8 * epsilon(case.dtype) * largest, (name, error, largest)
        nothing = (right == 0) & (name != "logsumexp")
        assert not mine[nothing].any(), f"{name}: what attends to nothing is 0"
    assert len(actual) == len(want)


def check(backend: Any, case: Case, *, bias_gradient: bool) -> None:
    """Assert that a back end gives what formulas give, whatever lies behind the lengths."""
    given = made(case)
    bias_gradient = bias_gradient and hasattr(given.bias, "shape")
    work = work_of(case, given.mask, given.sizes)
    actual = run(backend, case, given, work, bias_gradient=bias_gradient)
    assert_right(case, actual, expected(case, given, bias_gradient=bias_gradient))


def check_lists(backend: Any) -> None:
    """Assert that the lists say what is visited: the mask is asked in partial tiles only."""
    case = Case("a mask that is not asked", (1, 48, 48, 1, 1, 40, 40))
    given = dataclasses.replace(made(case), mask=MaskFunction(_nothing))
    kinds = np.array([[2, 0, 2], [1, 0, 2], [0, 0, 0]], np.uint8)[None, None]
    work = Work(given.mask, *given.sizes, lists_by_query(kinds), lists_by_key(kinds))
    actual = run(backend, case, given, work, bias_gradient=False)
    allowed = np.kron(kinds == 2, np.ones((16, 16), bool))
    truth = dataclasses.replace(given.reference, allowed=allowed)
    want = expected(case, dataclasses.replace(given, reference=truth), bias_gradient=False)
    assert_right(case, actual, want)


def _nothing(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q < 0) & (k < 0)


def check_in_shard_map(backend: Any, name: str, monkeypatch: Any) -> None:
    """Assert that the function runs it where a mesh is mapped over, its gradient too."""
    monkeypatch.setattr(_choose, "load", lambda name: backend)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 17, 1, 40)), np.float32)

    def gradient(implementation: str) -> Any:
        def loss(x: Any) -> Any:
            out = sx.dot_product_attention(x, x, x, implementation=implementation)
            return (out**2).sum(keepdims=True)

        axes = jax.sharding.PartitionSpec("x")
        mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        mapped = jax.shard_map(loss, mesh=mesh, in_specs=axes, out_specs=axes)
        return jax.jit(jax.grad(lambda x: mapped(x).sum()), compiler_options=_QUICK)(x)

    mine = gradient(name)
    monkeypatch.undo()
    assert_close(mine, gradient("xla"))
