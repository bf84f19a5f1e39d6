"""The attention kernels of one back end on a GPU: right first, then how fast.

    python -m benchmarks.attention_kernels [--only REGEX] [--shapes 4k_128,16k_128] [--json FILE]

Each case is compared with attention in f32 before any is timed. Times are sums of kernel times as
CUPTI tells them, the median of some calls; TFLOP/s count unmasked pairs alone, 4 * H operations
each forward and 2.5 times that backward.
"""

import argparse
import dataclasses
import functools
import json
import re
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.mosaic.gpu import profiler

from shapeexec.attention._blocks import BlockMask, to_dense
from shapeexec.attention._grid import tile_grid
from shapeexec.attention._lists import lists_by_key, lists_by_query, tile_kinds
from shapeexec.attention._positions import Gathered
from shapeexec.attention.backends import mosaic_gpu
from shapeexec.attention.backends._base import Signature, Work
from shapeexec.attention.masks import (
    Causal,
    Dense,
    Documents,
    Full,
    Global,
    Lengths,
    Mask,
    PrefixLM,
    SlidingWindow,
)

Array = Any


@dataclasses.dataclass(frozen=True)
class Shape:
    """A call's sizes; `values` is the value head size, None: that of the keys."""

    batch: int
    queries: int
    heads: int
    key_heads: int
    size: int
    keys: int | None = None
    values: int | None = None
    dtype: str = "bfloat16"
    is_ragged: bool = False

    @property
    def key_length(self) -> int:
        """S."""
        return self.keys or self.queries

    def signature(self) -> Signature:
        """What a back end is told."""
        return Signature(
            batch=self.batch,
            query_size=self.queries,
            key_size=self.key_length,
            query_heads=self.heads,
            key_heads=self.key_heads,
            head_size=self.size,
            value_size=self.values or self.size,
            dtype=self.dtype,
            scale=self.size**-0.5,
            bias=None,
            is_ragged=self.is_ragged,
            tile=(128, 128),
        )

    def operands(self, seed: int = 0) -> list[Array]:
        """q, k, v and the gradient of the output."""
        keys = jax.random.split(jax.random.key(seed), 4)
        value_size = self.values or self.size
        shapes = (
            (self.batch, self.queries, self.heads, self.size),
            (self.batch, self.key_length, self.key_heads, self.size),
            (self.batch, self.key_length, self.key_heads, value_size),
            (self.batch, self.queries, self.heads, value_size),
        )
        return [
            jax.random.normal(key, shape, self.dtype)
            for key, shape in zip(keys, shapes, strict=True)
        ]


SHAPES = {
    "1k_128": Shape(16, 1024, 16, 16, 128),
    "4k_128": Shape(4, 4096, 16, 16, 128),
    "16k_128": Shape(1, 16384, 16, 16, 128),
    "4k_64": Shape(4, 4096, 16, 16, 64),
    "16k_64": Shape(1, 16384, 16, 16, 64),
    "4k_gqa": Shape(4, 4096, 16, 4, 128),
}


def random_blocks(length: int, density: float, seed: int = 0) -> BlockMask:
    """Random 128-tiles at a density, the diagonal kept."""
    count = length // 128
    rng = np.random.default_rng(seed)
    chosen = np.eye(count, dtype=bool)
    wanted = max(0, round(density * count * count) - count)
    chosen.ravel()[rng.choice(np.flatnonzero(~chosen.ravel()), wanted, replace=False)] = True
    kinds = jnp.asarray(chosen.astype(np.uint8) * 2)
    return BlockMask(kinds, (128, 128), (length, length))


def documents(length: int) -> Mask:
    """Eight documents of uneven length, causal inside each."""
    rng = np.random.default_rng(0)
    cuts = np.sort(rng.choice(np.arange(1, length), size=7, replace=False))
    ids = np.searchsorted(cuts, np.arange(length), side="right").astype(np.int32)
    return Documents(jnp.asarray(ids)) & Causal()


MASKS: dict[str, Callable[[int], Mask]] = {
    "rand100": functools.partial(random_blocks, density=1.0),
    "rand50": functools.partial(random_blocks, density=0.5),
    "rand25": functools.partial(random_blocks, density=0.25),
    "rand10": functools.partial(random_blocks, density=0.1),
    "rand5": functools.partial(random_blocks, density=0.05),
    "causal": lambda length: Causal(),
    "window": lambda length: Causal() & SlidingWindow(1023),
    "doc": documents,
}


def pairs(mask: Mask, length: int) -> int:
    """Unmasked pairs of one head."""
    if isinstance(mask, BlockMask):
        return int((np.asarray(mask.kinds) > 0).sum()) * 128 * 128
    dense = _dense(mask, length, length)
    return int(dense.sum())


def _dense(mask: Mask, queries: int, keys: int) -> np.ndarray:
    return np.asarray(to_dense(mask, (queries, keys)))


def work(mask: Mask, shape: Shape, sizes: tuple[Array, Array] | None = None) -> Work:
    """The lists of a mask, made where this is traced."""
    length = (shape.queries, shape.key_length)
    whole = [np.full(shape.batch, n, np.int32) for n in length]
    grid = tile_grid(length, (128, 128), *(sizes or ()), known=False)
    kinds = tile_kinds(mask, grid)
    each = sizes or whole
    return Work(mask & Lengths(), each[0], each[1], lists_by_query(kinds), lists_by_key(kinds))


def passes(shape: Shape, backend: Any) -> tuple[Callable, Callable]:
    """Forward, and forward with backward, as functions of (work's parts, q, k, v, d_out)."""
    signature = shape.signature()

    def forward(mask: Mask, sizes: Any, lists: Any, *operands: Array) -> tuple:
        return backend.forward(signature, Work(mask, *sizes, *lists), *operands, None)

    def both(mask: Mask, sizes: Any, lists: Any, *operands: Array) -> tuple:
        q, k, v, d_out = operands
        job = Work(mask, *sizes, *lists)
        out, logsumexp = backend.forward(signature, job, q, k, v, None)
        gradients = backend.backward(
            signature,
            job,
            q,
            k,
            v,
            None,
            out,
            logsumexp,
            d_out,
            None,
            deterministic=True,
            bias_gradient=False,
        )
        return out, logsumexp, *gradients[:3]

    return forward, both


@dataclasses.dataclass(frozen=True)
class Check:
    """A case whose results are compared with f32; sizes are valid lengths, behind them is NaN."""

    name: str
    shape: Shape
    mask: Mask
    sizes: tuple[list[int], list[int]] | None = None


def checks() -> list[Check]:
    """What must be right before anything is timed."""
    wide = Shape(2, 640, 4, 2, 128)
    ragged = dataclasses.replace(wide, is_ragged=True)
    rng = np.random.default_rng(1)
    dense = Dense(jnp.asarray(rng.random((1, 4, 640, 640)) < 0.5))
    ids = jnp.asarray(np.sort(rng.integers(0, 6, (2, 640)), axis=1).astype(np.int32))
    blocks = jnp.asarray(rng.integers(0, 3, (1, 4, 5, 5)).astype(np.uint8))
    return [
        Check("full", wide, Full()),
        Check("causal", wide, Causal()),
        Check("documents", wide, Documents(ids) & Causal()),
        Check("dense", wide, dense),
        Check(
            "blocks by head",
            wide,
            BlockMask(blocks, (128, 128), (640, 640), elements=Causal()),
        ),
        Check(
            "prefix, global, not",
            wide,
            (PrefixLM(jnp.array([7, 300])) | Global(3))
            & ~Dense(jnp.asarray(rng.random((2, 1, 1, 640)) < 0.2)),
        ),
        Check("ragged", ragged, Causal(), ([640, 333], [500, 333])),
        Check("ragged full", ragged, Full(), ([1, 640], [129, 0])),
        Check("odd", Shape(1, 333, 2, 2, 64, keys=205), Causal(align="end")),
        Check("one", Shape(1, 1, 2, 1, 64, keys=129), Full()),
        Check("tiny", Shape(1, 7, 2, 1, 128, keys=3), Full()),
        Check("D=40", Shape(1, 264, 2, 2, 40), Causal()),
        Check("D=80, V=64", Shape(1, 264, 2, 2, 80, values=64), Causal()),
        Check("D=192", Shape(1, 264, 2, 2, 192), Causal()),
        Check("D=256", Shape(1, 264, 2, 1, 256), Causal()),
        Check("fp16", Shape(1, 640, 2, 2, 128, dtype="float16"), Causal()),
        Check("D=64 blocks", Shape(1, 1024, 2, 2, 64), random_blocks(1024, 0.4, 3)),
        Check("D=128 long", Shape(1, 4096, 4, 4, 128), random_blocks(4096, 0.1)),
    ]


def check(case: Check, backend: Any) -> dict[str, Any]:
    """Errors of a case: ||got - want|| / ||want|| of out, dq, dk, dv; the largest of logsumexp."""
    shape = case.shape
    arrays = shape.operands()
    length = (shape.queries, shape.key_length)
    sizes = case.sizes or ([length[0]] * shape.batch, [length[1]] * shape.batch)
    sizes = tuple(np.asarray(size, np.int32) for size in sizes)
    valid = [np.arange(n)[None, :] < size[:, None] for n, size in zip(length, sizes, strict=True)]
    poisoned = [
        jnp.where(valid[side][:, :, None, None], array, jnp.nan)
        for array, side in zip(arrays, (0, 1, 1, 0), strict=True)
    ]
    made = jax.jit(lambda mask, sizes: _parts(work(mask, shape, sizes)))(case.mask, sizes)
    _, both = passes(shape, backend)
    run = jax.jit(both)
    got = run(*made, *poisoned)
    again = run(*made, *poisoned)
    same = all(bool((a == b).all()) for a, b in zip(got, again, strict=True))
    want = _wanted(case, arrays, valid, sizes)
    names = ("out", "logsumexp", "dq", "dk", "dv")
    row: dict[str, Any] = {"case": case.name, "same bits": same}
    for name, *both_of_it in zip(names, got, want, strict=True):
        a, b = (np.asarray(x, np.float32) for x in both_of_it)
        if name == "logsumexp":
            finite = np.isfinite(b)
            row[name] = float(np.abs(a[finite] - b[finite]).max(initial=0))
            row["alive"] = bool((np.isfinite(a) == finite).all())
        else:
            row[name] = float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-9))
            if not np.isfinite(a).all():
                row[name] = float("nan")
    limit = 0.01 if shape.dtype == "bfloat16" else 0.002
    row["ok"] = bool(
        same
        and row["alive"]
        and row["logsumexp"] < 1e-4
        and all(row[name] < limit for name in names if name != "logsumexp")
    )
    return row


def _parts(job: Work) -> tuple:
    lists = (job.by_query, job.by_key)
    return job.mask, (job.query_sizes, job.key_sizes), tuple(map(_as_lists, lists))


def _as_lists(lists: Any) -> Any:
    return mosaic_gpu.ListRefs(lists.tiles, lists.full, lists.counts, lists.order)


def _wanted(case: Check, arrays: list[Array], valid: list[np.ndarray], sizes: tuple) -> list[Array]:
    shape = case.shape
    at = Gathered(
        np.arange(shape.batch).reshape(-1, 1, 1, 1),
        np.arange(shape.heads).reshape(1, -1, 1, 1),
        np.arange(shape.queries).reshape(1, 1, -1, 1),
        np.arange(shape.key_length).reshape(1, 1, 1, -1),
        *(size.reshape(-1, 1, 1, 1) for size in sizes),
    )
    allowed = case.mask.allows(at) & valid[0][:, None, :, None] & valid[1][:, None, None, :]
    group = shape.heads // shape.key_heads

    def attention(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        k, v = (jnp.repeat(x, group, axis=2) for x in (k, v))
        scores = jnp.einsum("btnh,bsnh->bnts", q, k, precision="highest") * shape.size**-0.5
        scores = jnp.where(allowed, scores, -jnp.inf)
        alive = allowed.any(-1, keepdims=True)
        weights = jnp.where(alive, jax.nn.softmax(jnp.where(alive, scores, 0.0), -1), 0.0)
        weights = jnp.where(allowed, weights, 0.0)
        logsumexp = jax.nn.logsumexp(jnp.where(alive, scores, 0.0), -1)
        out = jnp.einsum("bnts,bsnv->btnv", weights, v, precision="highest")
        return out, jnp.where(alive[..., 0], logsumexp, -jnp.inf)

    @jax.jit
    def all_of_it(q: Array, k: Array, v: Array, d_out: Array) -> list[Array]:
        out, pull, logsumexp = jax.vjp(attention, q, k, v, has_aux=True)
        d_out = jnp.where(valid[0][:, :, None, None], d_out, 0.0)
        return [out, logsumexp, *pull(d_out)]

    return all_of_it(*(array.astype(np.float32) for array in arrays))


def clock(call: Callable, *args: Any, most: int = 12) -> list[tuple[str, float]]:
    """Median milliseconds of each kernel of a call, in the order in which they ran."""
    jax.block_until_ready(call(*args))
    begin = time.perf_counter()
    jax.block_until_ready([call(*args) for _ in range(3)])
    each = (time.perf_counter() - begin) / 3
    iterations = int(min(most, max(4, 0.05 / each)))
    _, rounds = profiler.measure(call, iterations=iterations, aggregate=False)(*args)
    assert rounds
    return [
        (kernels[0][0], statistics.median(ms for _, ms in kernels))
        for kernels in zip(*rounds, strict=True)
    ]


def measure(name: str, kind: str, shape: Shape, backend: Any, rows: list) -> None:
    """Time one mask at one shape."""
    mask = MASKS[kind](shape.queries)
    arrays = shape.operands()
    made = jax.jit(lambda mask: _parts(work(mask, shape)))(mask)
    operations = 4.0 * shape.batch * shape.heads * shape.size * pairs(mask, shape.queries)
    _, both = passes(shape, backend)
    key = (name, type(mask), str(jax.tree.structure(mask)))
    if key not in _COMPILED:
        begin = time.perf_counter()
        lowered = jax.jit(both).lower(*made, *arrays)
        lower = time.perf_counter() - begin
        _COMPILED[key] = lowered.compile()
        print(f"# lowered in {lower:.1f} s, compiled in {time.perf_counter() - begin - lower:.1f}")
    kernels = clock(_COMPILED[key], *made, *arrays)
    main = [(n, ms) for n, ms in kernels if "mosaic" in n or "attention" in n]
    total = sum(ms for _, ms in kernels)
    rate = lambda ms, times: operations * times / ms / 1e9  # noqa: E731
    forward, *backward = [ms for _, ms in main]
    row = {
        "shape": name,
        "mask": kind,
        "forward ms": forward,
        "forward TF/s": rate(forward, 1),
        "backward ms": backward,
        "both ms": total,
        "both TF/s": rate(total, 3.5),
        "backward TF/s": rate(total - forward, 2.5),
        "rest ms": total - forward - sum(backward),
    }
    rows.append(row)
    print(
        f"{name:8} {kind:8} forward {forward:7.4f} {row['forward TF/s']:6.1f}   backward "
        f"{' + '.join(f'{ms:.4f}' for ms in backward)} + {row['rest ms']:.4f} "
        f"{row['backward TF/s']:6.1f}   both {total:7.4f} {row['both TF/s']:6.1f}",
        flush=True,
    )
    if "--kernels" in sys.argv:
        for kernel, ms in kernels:
            print(f"    {ms:8.4f} {kernel[:100]}")


_COMPILED: dict[Any, Any] = {}


def dense_rivals(name: str, shape: Shape, rows: list) -> None:
    """Time cuDNN through `jax.nn`, full and causal."""
    q, k, v, d_out = shape.operands()
    for is_causal in (False, True):
        attend = functools.partial(
            jax.nn.dot_product_attention, implementation="cudnn", is_causal=is_causal
        )

        def both(q: Array, k: Array, v: Array, d_out: Array, attend: Callable = attend) -> Any:
            out, pull = jax.vjp(attend, q, k, v)
            return out, pull(d_out)

        times = [
            sum(ms for _, ms in clock(jax.jit(f).lower(*a).compile(), *a))
            for f, a in ((attend, (q, k, v)), (both, (q, k, v, d_out)))
        ]
        count = shape.queries**2 if not is_causal else shape.queries * (shape.queries + 1) // 2
        operations = 4.0 * shape.batch * shape.heads * shape.size * count
        told = [operations * f / ms / 1e9 for f, ms in zip((1, 3.5), times, strict=True)]
        rows.append({"shape": name, "cudnn causal": is_causal, "ms": times, "TF/s": told})
        print(
            f"{name:8} cuDNN {'causal' if is_causal else 'full':6} forward {times[0]:7.4f}"
            f" {told[0]:6.1f}   both {times[1]:7.4f} {told[1]:6.1f}",
            flush=True,
        )


def main() -> None:
    """Check, then time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default="4k_128,16k_128,4k_64,4k_gqa")
    parser.add_argument("--masks", default=",".join(MASKS))
    parser.add_argument("--only", default="", help="a regular expression for the checks")
    parser.add_argument("--json", default=None)
    parser.add_argument("--budget", type=float, default=240.0, help="seconds for timing")
    parser.add_argument("--no-rivals", action="store_true")
    parser.add_argument("--no-checks", action="store_true")
    parser.add_argument("--kernels", action="store_true", help="tell each kernel's time")
    options = parser.parse_args()
    backend, rows, failed = mosaic_gpu.backend, [], 0
    for case in [] if options.no_checks else checks():
        if not re.search(options.only, case.name):
            continue
        begin = time.perf_counter()
        try:
            row = check(case, backend)
        except Exception as error:
            row = {
                "case": case.name,
                "ok": False,
                "error": f"{type(error).__name__}: {error}"[:400],
            }
            traceback.print_exc(limit=-3)
        failed += not row["ok"]
        rows.append(row)
        told = {k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()}
        print(
            "ok  " if row["ok"] else "BAD ",
            told,
            f"{time.perf_counter() - begin:.1f} s",
            flush=True,
        )
    print(f"# {failed} of the checks failed", flush=True)
    begin = time.perf_counter()
    for name in filter(None, options.shapes.split(",")):
        shape = SHAPES[name]
        try:
            if not options.no_rivals:
                dense_rivals(name, shape, rows)
            for kind in options.masks.split(","):
                if time.perf_counter() - begin < options.budget:
                    measure(name, kind, shape, backend, rows)
        except Exception:
            traceback.print_exc(limit=-3)
    if options.json:
        Path(options.json).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
