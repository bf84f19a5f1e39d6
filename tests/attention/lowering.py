"""Lowering for a device that is not there, and programs to be lowered."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh

import shapeexec as sx
from shapeexec import _compat
from shapeexec.attention._blocks import BlockMask
from shapeexec.attention.masks.scores import ScoreModifier

_KINDS = {"cuda": ("NVIDIA A100-SXM4-40GB", None, "gpu"), "tpu": ("TPU v5 lite", 1, "tpu")}


@dataclasses.dataclass(frozen=True, eq=False)
class Bucketed(ScoreModifier):
    """A user's bias that looks up a table of four numbers per head."""

    table: Any
    axes: ClassVar = {"table": "BN-"}

    def modify(self, at: Any, scores: Any) -> Any:
        return scores + at.of_table(self.table, abs(at.key - at.query) % 4)


def lowered(function: Callable[..., Any], *args: Any, platform: str) -> str:
    """The program for "cuda" or "tpu"."""
    kind, cores, family = _KINDS[platform]
    device = jax.sharding.AbstractDevice(device_kind=kind, num_cores=cores, platform=family)
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        return jax.jit(function).trace(*args).lower(lowering_platforms=(platform,)).as_text()


def hopper_kernels(text: str) -> int:
    """How many Hopper kernels a program calls, without those that make lists of tiles."""
    calls = [line for line in text.splitlines() if "@mosaic_gpu" in line]
    return sum("attention_lists" not in line for line in calls)


def layers(count: int, implementation: Any, *, deterministic: bool = True) -> Callable[[Any], Any]:
    """The gradient of as many layers of attention, by their first input."""

    def model(x: Any) -> Any:
        for _ in range(count):
            x = sx.dot_product_attention(
                *(x, x, x),
                is_causal=True,
                implementation=implementation,
                deterministic=deterministic,
            )
        return x.sum()

    return jax.grad(model)


def all_in_one(implementation: Any, *, of_bias: bool) -> Callable[..., Any]:
    """The gradient by query, and bias maybe, under a mask that reads arrays in every way."""
    length = 300
    kinds = np.random.default_rng(0).integers(0, 3, (1, 4, 3, 3)).astype(np.uint8)
    blocks = BlockMask(kinds, (128, 128), (length, length), elements=sx.Causal(align="end"))

    def loss(query: Any, bias: Any, rest: tuple[Any, ...]) -> Any:
        key, ids, window, array = rest
        mask = blocks & sx.Documents(ids) & sx.SlidingWindow(window) & array
        return sx.dot_product_attention(
            query,
            key,
            key,
            bias,
            mask,
            key_value_seq_lengths=window,
            implementation=implementation,
        ).sum()

    return jax.grad(loss, argnums=(0, 1) if of_bias else 0)


def arguments() -> tuple[Any, ...]:
    """Those of `all_in_one`."""
    query, key = (jnp.zeros((2, 300, heads, 64), jnp.bfloat16) for heads in (4, 2))
    bias = jnp.zeros((1, 4, 300, 300), jnp.float32)
    ids, window = jnp.zeros((2, 300), jnp.int32), jnp.zeros((2,), jnp.int32)
    return query, bias, (key, ids, window, jnp.zeros((2, 1, 300, 300), bool))


def lowered_for_each_batch(function, operands, lower=_compat.mosaic_kernel):
    """`_compat.mosaic_kernel`, which is not called again for a kernel that serves every batch."""
    assert "_Kernel" not in function.func.__qualname__
    return lower(function, operands)
