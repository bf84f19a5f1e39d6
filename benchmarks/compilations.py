"""How often XLA compiles for batches of 1 to 100, by JAX's own event.

Padding and cutting by hand with jnp compiles too, a small program for each size; that is why the
event is counted and not the graphs.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from benchmarks._common import Claim, Report, Table, counting_compilations, run_benchmark


def model(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Centre f32[b, 16] over the batch, and apply a layer: f32[b, 16]."""
    return jnp.tanh((x - x.mean(axis=0)) @ weights)


def padded_eagerly() -> Callable[[Any, Any], Any]:
    """Pad and cut with jnp around `jax.jit`, as is often seen (and wrong here: no masks)."""
    jitted, strategy = jax.jit(model), sx.Pow2()

    def call(weights: Any, x: Any) -> Any:
        missing = strategy.bucket(len(x)) - len(x)
        return jitted(weights, jnp.pad(x, ((0, missing), (0, 0))))[: len(x)]

    return call


def run(options: argparse.Namespace) -> Report:
    """Count for each way to call, and each kind of input."""
    largest = 5 if options.tiny else 100
    weights = jax.block_until_ready(jnp.asarray(np.eye(16, dtype=np.float32)))
    batches = [np.ones((n, 16), np.float32) for n in range(1, largest + 1)]
    kinds = {"NumPy": lambda x: x, "jax.Array": jax.device_put}
    figures, rows, claims = {}, [], []
    expected = len(sx.Pow2().buckets_up_to(largest))
    for kind, convert in kinds.items():
        inputs = jax.block_until_ready([convert(x) for x in batches])
        ex = sx.Exec(model, in_shapes=(None, "b, 16"), buckets=sx.Pow2())
        ways = {
            "sx.Exec": ex,
            "jax.jit, exact shapes": jax.jit(model),
            "jnp.pad, jax.jit, [:n]": padded_eagerly(),
        }
        for way, call in ways.items():
            jax.clear_caches()  # each way begins with nothing compiled
            with counting_compilations() as compilations:
                for x in inputs:
                    jax.block_until_ready(call(weights, x))
            figures[f"{way}; {kind}"] = {
                "compilations": compilations.count,
                "compile_seconds": round(compilations.seconds, 3),
            }
            count, seconds = compilations.count, compilations.seconds
            rows.append((way, kind, str(count), f"{seconds:.2f}"))
            if way == "sx.Exec":
                holds = count == expected == ex.cache_size
                claims.append(Claim(f"{expected} compilations, {kind}", count, holds))
    columns = ("way", "input", "compilations", "XLA seconds")
    return Report([Table(f"batches of 1 to {largest}", columns, rows)], figures, claims)


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run as a program."""
    return run_benchmark("compilations", __doc__, run=run, arguments=arguments)


if __name__ == "__main__":
    main()
