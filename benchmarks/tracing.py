"""What a trace at symbolic sizes costs beside one at known sizes, of gradients.

Both are first traces: JAX's caches are cleared before each, the function is a new object, and the
symbols have names that no trace had before, so that nothing that shapeexec remembers of dims helps.
Another figure is plain tracing with JAX's caches kept, which only plain tracing can use: its shapes
are those of the trace before. Times are the least processor time of all rounds.
"""

import argparse
import dataclasses
import functools
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from benchmarks._common import Claim, Ratio, Report, Table, run_benchmark
from shapeexec.shape._dim import Dim
from shapeexec.shape._trace import Leaf, trace

MOST = 3.0
SIZES = {"b": 2, "h": 64, "w": 61, "s": 33}


def _convolve(x: Array, kernel: Array, stride: int) -> Array:
    numbers = ("NHC", "HIO", "NHC") if x.ndim == 3 else ("NHWC", "HWIO", "NHWC")
    strides = (stride,) * (x.ndim - 2)
    return lax.conv_general_dilated(x, kernel, strides, "SAME", dimension_numbers=numbers)


def _pool(x: Array, init: float, combine: Callable[..., Any]) -> Array:
    return lax.reduce_window(x, init, combine, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def convolution_and_pooling(x: Array, kernel: Array) -> Array:
    """Three layers of stride 2 over f32[b, h, w, 3]."""
    x = jnp.tanh(_convolve(x, kernel, 2))
    return jnp.sin(_pool(_pool(x, -jnp.inf, lax.max), 0.0, lax.add)).sum()


def four_convolutions(x: Array, *kernels: Array) -> Array:
    """Four layers of stride 2 over f32[b, s, 3]."""
    for kernel in kernels:
        x = jnp.tanh(_convolve(x, kernel, 2))
    return jnp.sin(x).sum()


def _normalize(x: Array, axes: tuple[int, ...]) -> Array:
    centred = x - x.mean(axes, keepdims=True)
    return centred * lax.rsqrt(x.var(axes, keepdims=True) + 1e-5)


def resnet(x: Array, stem: Array, *kernels: Array) -> Array:
    """A stem and four residual blocks over f32[b, h, w, 3], of which three halve the plane."""
    x = _pool(jax.nn.relu(_convolve(x, stem, 2)), -jnp.inf, lax.max)
    for block in range(len(kernels) // 3):
        first, second, beside = kernels[3 * block : 3 * block + 3]
        stride = 2 if block else 1
        y = jax.nn.relu(_normalize(_convolve(x, first, stride), (0, 1, 2)))
        y = _normalize(_convolve(y, second, 1), (0, 1, 2))
        x = jax.nn.relu(y + _convolve(x, beside, stride))
    return (x.mean((1, 2)) ** 2).sum()


def transformer(x: Array, *weights: Array) -> Array:
    """Layers of causal attention over f32[b, s, 16], with four weights each."""
    batch, positions, width = x.shape
    for layer in range(len(weights) // 4):
        project, out, up, down = weights[4 * layer : 4 * layer + 4]
        heads = (_normalize(x, (-1,)) @ project).reshape(batch, positions, 2, -1)
        q, k, v = jnp.split(heads, 3, axis=-1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(width // 2)
        is_seen = jnp.tril(jnp.ones((positions, positions), bool))
        shares = jax.nn.softmax(jnp.where(is_seen, scores, -jnp.inf), axis=-1)
        attended = jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(batch, positions, width)
        x = x + attended @ out
        x = x + jax.nn.gelu(_normalize(x, (-1,)) @ up) @ down
    return (x**2).mean()


# A function of the ragged array and of weights, and their shapes.
PROGRAMS: dict[str, tuple[Callable[..., Any], Sequence[tuple[int | str, ...]]]] = {
    "three strided layers of a plane": (
        convolution_and_pooling,
        [("b", "h", "w", 3), (3, 3, 3, 4)],
    ),
    "four strided layers of a line": (
        four_convolutions,
        [("b", "s", 3), (3, 3, 4), *[(3, 4, 4)] * 3],
    ),
    "ResNet, 4 blocks": (
        resnet,
        [("b", "h", "w", 3), (7, 7, 3, 8), *[(3, 3, 8, 8), (3, 3, 8, 8), (1, 1, 8, 8)] * 4],
    ),
    "transformer, 8 layers": (
        transformer,
        [("b", "s", 16), *[(16, 48), (16, 16), (16, 64), (64, 16)] * 8],
    ),
}


def _gradient(loss: Callable[..., Any], operands: int) -> Callable[..., Any]:
    return jax.grad(functools.partial(loss), argnums=tuple(range(operands)))


def symbolic(
    loss: Callable[..., Any], shapes: Sequence[tuple[int | str, ...]], suffix: str
) -> object:
    """Trace a gradient at symbols whose names end in `suffix`."""
    leaves = [
        Leaf(
            tuple(Dim(f"{dim}{suffix}") if isinstance(dim, str) else dim for dim in shape),
            np.dtype(np.float32),
        )
        for shape in shapes
    ]
    symbols = {symbol for shape in shapes for symbol in shape if isinstance(symbol, str)}
    sizes = {f"{symbol}{suffix}": SIZES[symbol] for symbol in symbols}
    return trace(_gradient(loss, len(shapes)), leaves, sizes=sizes)


def plain(loss: Callable[..., Any], shapes: Sequence[tuple[int | str, ...]]) -> object:
    """Trace it as JAX does, at known sizes."""
    structs = [
        jax.ShapeDtypeStruct(
            tuple(SIZES[dim] if isinstance(dim, str) else dim for dim in shape), np.float32
        )
        for shape in shapes
    ]
    return jax.make_jaxpr(_gradient(loss, len(shapes)))(*structs)


def _seconds(call: Callable[[], object]) -> float:
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        call()
        return time.process_time() - start
    finally:
        gc.enable()


def measure(
    loss: Callable[..., Any], shapes: Sequence[tuple[int | str, ...]], rounds: int
) -> Mapping[str, list[float]]:
    """The processor time of each way to trace, by round."""
    found: dict[str, list[float]] = {"symbolic": [], "plain": [], "plain, caches kept": []}
    for number in range(rounds):
        jax.clear_caches()
        again = functools.partial(symbolic, loss, shapes, f"_{number}")
        found["symbolic"].append(_seconds(again))
        jax.clear_caches()
        for way in ("plain", "plain, caches kept"):
            found[way].append(_seconds(functools.partial(plain, loss, shapes)))
    return found


def run(options: argparse.Namespace) -> Report:
    """Compare for four gradients."""
    rounds = 2 if options.tiny else 20
    figures, rows, claims = {}, [], []
    for name, (loss, shapes) in PROGRAMS.items():
        by_round = measure(loss, shapes, rounds)
        seconds = {way: min(times) for way, times in by_round.items()}
        ratio = seconds["symbolic"] / seconds["plain"]
        spread = Ratio.of(by_round["symbolic"], by_round["plain"])
        kept = seconds["symbolic"] / seconds["plain, caches kept"]
        figures[name] = {
            "seconds": seconds,
            "ratio": ratio,
            "ratio, caches kept": kept,
            "ratio by round": dataclasses.asdict(spread),
        }
        times = [f"{1e3 * one:.1f} ms" for one in seconds.values()]
        rows.append((f"gradient of {name}", *times, f"{ratio:.2f}", f"{kept:.2f}", str(spread)))
        claims.append(Claim(f"at most {MOST:g} times plain tracing, {name}", ratio, ratio <= MOST))
    columns = (
        *("", "symbolic", "plain", "plain, caches kept"),
        *("symbolic / plain", "symbolic / caches kept", "medians (quartiles)"),
    )
    title = f"a first trace: the least of {rounds} rounds"
    return Report([Table(title, columns, rows)], figures, claims)


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run as a program."""
    return run_benchmark("tracing", __doc__, run=run, arguments=arguments)


if __name__ == "__main__":
    main()
