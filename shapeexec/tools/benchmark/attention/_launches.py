"""A study: a model whose kernels are so short that launching them dominates the time.

Twelve layers at 128 tokens, forward and with backward, beside the same model with `jax.nn`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from shapeexec.tools.benchmark.attention._clock import Timing, clock
from shapeexec.tools.benchmark.attention._contestant import compiled, in_one_line
from shapeexec.tools.benchmark.attention._finding import Finding
from shapeexec.tools.benchmark.attention._problems import PASSES, Pass
from shapeexec.tools.benchmark.attention._reference import LIMITS, WrongResultError
from shapeexec.tools.benchmark.attention._run import Plan, Row

Array = Any
Attend = Callable[..., Array]


@dataclasses.dataclass(frozen=True)
class Model:
    """A causal transformer of gated attention without MLPs, so that its layers are small.

    Attributes:
        batch, length, layers, heads, head_size: Its sizes; its width is heads * head_size.
        dtype: The dtype of all arrays.
    """

    batch: int
    length: int
    layers: int
    heads: int
    head_size: int
    dtype: str = "bfloat16"

    @property
    def name(self) -> str:
        """The sizes as text."""
        heads = f"{self.heads} heads of {self.head_size}"
        return f"{self.layers} layers, {self.batch} x {self.length} tokens, {heads}"

    def arguments(self) -> tuple[Array, ...]:
        """The weights of all layers, [layers, width, 4 width], and x, [batch, length, width]."""
        width = self.heads * self.head_size
        keys = jax.random.split(jax.random.key(0), 2)
        weights = jax.random.normal(keys[0], (self.layers, width, 4 * width), self.dtype)
        x = jax.random.normal(keys[1], (self.batch, self.length, width), self.dtype)
        return weights * jnp.asarray(width**-0.5, self.dtype), x

    def function(self, attend: Attend, passes: Pass) -> Callable[..., Array]:
        """The model; for the pass `both` the gradient by its weights."""

        def run(weights: Array, x: Array) -> Array:
            for layer in weights:
                made = (x @ layer).reshape(self.batch, self.length, 4, self.heads, self.head_size)
                q, k, v, gate = (made[:, :, i] for i in range(4))
                out = attend(q, k, v, is_causal=True) * jax.nn.sigmoid(gate)
                x = x + out.reshape(x.shape)
            return x

        if passes == "forward":
            return run

        def loss(weights: Array, x: Array) -> Array:
            return run(weights, x).astype(jnp.float32).sum()

        return jax.grad(loss)


_ON_A_GPU = (Model(1, 128, 12, 12, 64), Model(8, 128, 12, 12, 64), Model(1, 128, 12, 8, 128))
_ON_A_CPU = (Model(1, 128, 12, 2, 16, "float32"),)
_RIVALS = ("cudnn", "xla")
_OURS = "shapeexec"
_ROUNDS = 5


def launches(plan: Plan, rows: Sequence[Row]) -> Iterator[Finding]:
    """The time and the kernels of a model's call, beside the same call with the best rival."""
    del plan, rows
    for model in _ON_A_GPU if jax.default_backend() == "gpu" else _ON_A_CPU:
        arguments = model.arguments()
        for passes in PASSES:
            yield from _findings(model, passes, arguments=arguments)


def _findings(model: Model, passes: Pass, *, arguments: tuple[Array, ...]) -> Iterator[Finding]:
    case = f"{model.name}, {passes}"
    result, call = _compiled(model, sx.dot_product_attention, passes=passes, arguments=arguments)
    calls, refused = {_OURS: call}, list[str]()
    for rival in _RIVALS:
        attend = functools.partial(jax.nn.dot_product_attention, implementation=rival)
        try:
            other, calls[rival] = _compiled(model, attend, passes=passes, arguments=arguments)
        except (ValueError, RuntimeError) as error:  # jax.nn raises these where it refuses a call
            refused.append(f"jax.nn with {rival}: {in_one_line(error)}")
            continue
        if rival == "xla":
            exactly = tuple(x.astype(jnp.float32) for x in arguments)
            exact = compiled(model.function(attend, passes), exactly)
            wanted = np.asarray(exact.call(*exactly))
            _check(model, result, wanted=wanted, error=_distance(other, wanted))
    theirs = _timings(calls, arguments)
    mine = theirs.pop(_OURS)
    for reason in refused if theirs else [*refused, "jax.nn cannot run it"]:
        yield Finding("launches", case, "us", 1e3 * mine.wall, None, reason)
    if not theirs:
        return
    best = min(theirs, key=lambda rival: theirs[rival].wall)
    meaning = f"of jax.nn with {best}"
    yield Finding("launches", case, "us", 1e3 * mine.wall, 1e3 * theirs[best].wall, meaning)
    own, others = len(mine.kernels), len(theirs[best].kernels)
    if own and others:  # nobody counts them on a CPU
        yield Finding("launches", f"{case}, kernels started", "", own, others, meaning)


def _compiled(
    model: Model, attend: Attend, *, passes: Pass, arguments: tuple[Array, ...]
) -> tuple[np.ndarray, Callable[..., Array]]:
    """The result, and the compiled program."""
    program = compiled(model.function(attend, passes), arguments)
    return np.asarray(program.call(*arguments), np.float32), program.call


def _timings(
    calls: Mapping[str, Callable[..., Array]], arguments: tuple[Array, ...]
) -> dict[str, Timing]:
    """The median timing of each call, in turns: the host, which decides here, may be busy once."""
    rounds = [{name: clock(calls[name], arguments) for name in calls} for _ in range(_ROUNDS)]
    return {
        name: sorted((timings[name] for timings in rounds), key=lambda x: x.wall)[_ROUNDS // 2]
        for name in calls
    }


def _check(model: Model, result: np.ndarray, *, wanted: np.ndarray, error: float) -> None:
    """Compare a result with that in f32.

    Twelve layers magnify what is rounded: a gradient in bf16 is off by a tenth. So a result may be
    off by twice the `error` of a rival.
    """
    own = _distance(result, wanted)
    if not own <= max(2 * error, LIMITS[model.dtype] * model.layers**0.5):  # NaN is no less wrong
        raise WrongResultError(f"{model.name} is off by {own:.1%} of its norm")


def _distance(result: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(result - wanted) / np.linalg.norm(wanted))
