"""Which multiples matter: matrix products at sizes around a large one, on the default device.

One axis of a product has `base - t` and `base + t` elements, whose greatest divisor that is a power
of two is t, for t = 1, 2, 4 and so on. How many FLOPs a second are computed, beside those at `base`
itself? The axes are those that buckets pad: rows of what is multiplied (a sequence by weights),
columns (keys of attention), and the axis that is summed (values of attention). Calls take turns.
"""

import argparse
import functools
import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import shapeexec as sx
from benchmarks._common import Report, Table, run_benchmark, take_turns

AXES = ("rows", "columns", "summed")
BASES = {"cpu": 512, "gpu": 4096, "tpu": 4096}
DTYPES = {"cpu": ("float32",), "gpu": ("float32", "bfloat16"), "tpu": ("bfloat16",)}
ROUNDS, REPEATS = 31, 3


def steps(base: int) -> list[int]:
    """The powers of two up to a fourth of the base."""
    return [1 << bit for bit in range(base.bit_length() - 2)]


def run(options: argparse.Namespace) -> Report:
    """Measure each axis and dtype."""
    platform = jax.default_backend()
    base = 64 if options.tiny else BASES[platform]
    figures: dict[str, Any] = {}
    rows: list[tuple[str, ...]] = []
    for dtype, axis in itertools.product(DTYPES[platform], AXES):
        found = _measure(dtype, axis, base=base, rounds=3 if options.tiny else ROUNDS)
        figures[f"{dtype}, {axis}"] = found
        rows.append((dtype, axis, *(f"{found[str(step)]:.2f}" for step in steps(base))))
    tiles = {dtype: sx.HardwareAware(dtype, device=platform).tile for dtype in DTYPES[platform]}
    figures["tiles"] = tiles
    told = ", ".join(f"{tile} for {dtype}" for dtype, tile in tiles.items())
    title = f"FLOPs per second at {base} +- t, beside {base}; tiles of HardwareAware: {told}"
    return Report([Table(title, ("dtype", "axis", *map(str, steps(base))), rows)], figures)


def _measure(dtype: str, axis: str, *, base: int, rounds: int) -> dict[str, float]:
    """By step the FLOPs per second, in units of those at the base: medians by round."""
    sizes = {0: (base,)} | {step: (base - step, base + step) for step in steps(base)}
    calls: dict[str, Callable[[], Any]] = {
        f"{step}, {size}": _product(dtype, axis, base=base, size=size)
        for step, own in sizes.items()
        for size in own
    }
    seconds = take_turns(calls, rounds=rounds, repeats=REPEATS)
    per_element = {
        step: [
            sum(turn) / sum(own)
            for turn in zip(*(seconds[f"{step}, {size}"] for size in own), strict=True)
        ]
        for step, own in sizes.items()
    }
    return {
        str(step): statistics.median(
            whole / each for whole, each in zip(per_element[0], turns, strict=True)
        )
        for step, turns in per_element.items()
        if step
    }


def _product(dtype: str, axis: str, *, base: int, size: int) -> Callable[[], Any]:
    rows, columns, summed = (size if axis == name else base for name in AXES)
    x, y = jnp.ones((rows, summed), dtype), jnp.ones((summed, columns), dtype)
    return functools.partial(jax.jit(jnp.matmul).lower(x, y).compile(), x, y)


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run as a program."""
    return run_benchmark("tiles", __doc__, run=run, arguments=arguments)


if __name__ == "__main__":
    main()
