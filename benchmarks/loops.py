"""Two loops whose data stays on the device, beside exact shapes and code of a fixed size.

A decode loop: one query of attention over a cache that grows by one row a step. `sx.Exec` takes the
cache as a handle with room (`sx.Padded.grown`), and donates it; by hand there is one buffer of the
greatest length, a mask and a counter; `jax.jit` at exact shapes compiles each length, so that a
sample of lengths is timed. A train loop: batches of many sizes are normalized by one function, and
its result trains the parameters, which are donated. By hand each batch is padded to the greatest
size, with masks.

Each contestant makes one step in its turn, and waits for it.
"""

import argparse
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

import shapeexec as sx
from benchmarks._common import (
    Claim,
    Ratio,
    Report,
    Table,
    Timing,
    counting_compilations,
    run_benchmark,
    take_turns,
)

WIDTH, PROMPT, LONGEST, FIRST_BUCKET = 128, 40, 256, 64
LADDER = sx.Pow2(minimum=FIRST_BUCKET)
BATCHES = (7, 31, 64, 100, 129, 200, 256)
SAMPLES = 4


def attended(w: Array, cache: Array, x: Array, is_valid: Array | None = None) -> Array:
    """f32[width] from f32[s, 2, width], keys and values; where `is_valid`, if that is given."""
    scores = cache[:, 0] @ (x @ w)
    if is_valid is not None:
        scores = jnp.where(is_valid, scores, -jnp.inf)
    return jnp.tanh(jax.nn.softmax(scores) @ cache[:, 1])


def written(cache: Array, x: Array, at: Any) -> Array:
    """The cache with a row of x in the place of the one at a position."""
    return lax.dynamic_update_index_in_dim(cache, jnp.stack([x, -x]), at, axis=0)


def decode(w: Array, cache: Array, x: Array) -> tuple[Array, Array]:
    """A step at the true size; the last row of the cache is free."""
    cache = written(cache, x, cache.shape[0] - 1)
    return cache, attended(w, cache, x)


def decode_by_hand(w: Array, cache: Array, x: Array, size: Any) -> tuple[Array, Array]:
    """A step in a buffer of the greatest length, of whose rows `size` are valid after it."""
    cache = written(cache, x, size - 1)
    return cache, attended(w, cache, x, jnp.arange(LONGEST) < size)


class Decoding:
    """A loop that begins anew where the cache is full.

    Args:
        step: From (cache, x, size) to (cache, x).
        begin: Makes the first cache.
    """

    def __init__(self, step: Callable[..., Any], begin: Callable[[], Any]) -> None:
        self._step, self._begin = step, begin
        self._size = LONGEST

    def __call__(self) -> Any:
        """One step; its result."""
        if self._size == LONGEST:
            self._size, self._cache, self._x = PROMPT, self._begin(), jnp.ones(WIDTH) / WIDTH
        self._size += 1
        self._cache, self._x = self._step(self._cache, self._x, self._size)
        return self._x


def decoding() -> tuple[dict[str, Callable[[], Any]], sx.Exec]:
    """The contestants by name, and the Exec among them."""
    w = jnp.asarray(np.random.default_rng(0).normal(size=(WIDTH, WIDTH)), jnp.float32) / WIDTH
    start = np.random.default_rng(1).normal(size=(PROMPT, 2, WIDTH)).astype(np.float32)

    def room(rows: int) -> Array:
        return jnp.asarray(np.pad(start, ((0, rows - PROMPT), (0, 0), (0, 0))))

    run = sx.Exec(
        decode, (None, f"s, 2, {WIDTH}", None), buckets=LADDER, donate_argnums=1, returns="padded"
    )
    fixed = jax.jit(decode_by_hand, donate_argnums=1)
    exact = jax.jit(decode)
    lengths = np.linspace(PROMPT + 1, LONGEST, SAMPLES, dtype=int)
    samples = itertools.cycle([(room(n), jnp.ones(WIDTH) / WIDTH) for n in lengths])
    ours = Decoding(
        lambda cache, x, _: run(w, cache.grown(), x),
        lambda: sx.Padded(room(FIRST_BUCKET), start.shape),
    )
    by_hand = Decoding(
        lambda cache, x, size: fixed(w, cache, x, np.int32(size)), lambda: room(LONGEST)
    )
    return {
        "exact": lambda: exact(w, *next(samples))[1],
        "by hand": by_hand,
        "exec": ours,
    }, run


def normalized(x: Array) -> Array:
    """f32[b, width] with mean 0 and deviation 1 along b."""
    return (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-3)


def loss(w: Array, x: Array) -> Array:
    """How badly x is told from itself: f32[]."""
    return ((jnp.tanh(x @ w) - x) ** 2).mean()


def trained(w: Array, x: Array) -> tuple[Array, Array]:
    """The parameters after a step, and the loss."""
    value, slope = jax.value_and_grad(loss)(w, x)
    return w - 0.1 * slope, value


def normalized_by_hand(x: Array, size: Any) -> Array:
    """`normalized`, of which `size` rows are valid; zeros behind them."""
    is_valid = (jnp.arange(len(x)) < size)[:, None]
    centred = jnp.where(is_valid, x - x.sum(axis=0) / size, 0)
    return centred / (jnp.sqrt((centred**2).sum(axis=0) / size) + 1e-3)


def trained_by_hand(w: Array, x: Array, size: Any) -> tuple[Array, Array]:
    """`trained` on x whose rows behind `size` are zero, which add nothing to this loss."""
    value, slope = jax.value_and_grad(
        lambda w: ((jnp.tanh(x @ w) - x) ** 2).sum() / (size * WIDTH)
    )(w)
    return w - 0.1 * slope, value


class Training:
    """A loop over batches of all sizes in turn.

    Args:
        step: From (w, batch) to (w, loss).
        sizes: Those of the batches.
    """

    def __init__(self, step: Callable[..., Any], sizes: Sequence[int]) -> None:
        rng = np.random.default_rng(2)
        batches = [rng.normal(size=(n, WIDTH)).astype(np.float32) for n in sizes]
        self._step, self._batches = step, itertools.cycle(batches)
        self._w = jnp.eye(WIDTH)

    def __call__(self) -> Any:
        """One step; its loss."""
        self._w, value = self._step(self._w, next(self._batches))
        return value


def training() -> tuple[dict[str, Callable[[], Any]], sx.Exec]:
    """The contestants by name, and the Exec that trains."""
    spec = f"b, {WIDTH}"
    prepare = sx.Exec(normalized, (spec,), buckets=LADDER, returns="padded")
    train = sx.Exec(trained, (None, spec), buckets=LADDER, donate_argnums=0)
    prepare_fixed, prepare_exact = jax.jit(normalized_by_hand), jax.jit(normalized)
    fixed = jax.jit(trained_by_hand, donate_argnums=0)
    exact = jax.jit(trained, donate_argnums=0)

    def by_hand(w: Array, batch: np.ndarray) -> Any:
        padded, size = np.zeros((LONGEST, WIDTH), np.float32), np.int32(len(batch))
        padded[: len(batch)] = batch
        return fixed(w, prepare_fixed(padded, size), size)

    return {
        "exact": Training(lambda w, x: exact(w, prepare_exact(x)), BATCHES[:SAMPLES]),
        "by hand": Training(by_hand, BATCHES),
        "exec": Training(lambda w, x: train(w, prepare(x)), BATCHES),
    }, train


LOOPS: Mapping[str, Callable[[], tuple[dict[str, Callable[[], Any]], sx.Exec]]] = {
    "decode, a row a step": decoding,
    "train, batches of 7 to 256": training,
}


def run(options: argparse.Namespace) -> Report:
    """Compare per loop."""
    rounds = 3 if options.tiny else 2 * LONGEST
    figures, rows, claims = {}, [], []
    for name, make in LOOPS.items():
        contestants, ex = make()
        with counting_compilations() as ours:
            for _ in range(LONGEST):  # each size that there is
                contestants["exec"]()
        for call in contestants.values():
            for _ in range(SAMPLES):
                call()
        seconds = take_turns(contestants, rounds=rounds)
        timings = {who: Timing.of(values) for who, values in seconds.items()}
        ratio = Ratio.of(seconds["exec"], seconds["by hand"])
        rows.append((name, *map(str, timings.values()), str(ratio), str(ours.count)))
        figures[name] = {
            "ratio": asdict(ratio),
            "compilations": ours.count,
            "seconds": {who: asdict(timing) for who, timing in timings.items()},
        }
        buckets = len(LADDER.buckets_up_to(LONGEST))
        text = f"at most {buckets} graphs of a step, {name}"
        claims.append(Claim(text, ex.stats.compiles, ex.stats.compiles <= buckets))
    columns = ("", "jax.jit, exact", "by hand, fixed", "sx.Exec", "sx.Exec / by hand", "compiles")
    return Report([Table("a step: median (quartiles)", columns, rows)], figures, claims)


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run as a program."""
    return run_benchmark("loops", __doc__, run=run, arguments=arguments)


if __name__ == "__main__":
    main()
