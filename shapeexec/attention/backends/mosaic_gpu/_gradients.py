"""What the kernels of the backward pass share, and `Rows`, which they start from.

Two together give the same bits in each run: one makes dq, one dk and dv. Both compute the scores
and their gradients anew, and each result is summed by one program in the order of a list; nothing
is added across programs. Where bits need not be the same, the second may make dq too. Source of
the formulas: FlashAttention-2 (arXiv 2307.08691), algorithm 2.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends.mosaic_gpu._launch import Block, Config
from shapeexec.attention.backends.mosaic_gpu._ring import Stream
from shapeexec.attention.backends.mosaic_gpu._tiles import WARPGROUPS

Array = Any
Ref = Any

PIECE = 64  # rows of a piece in the ring
_REGISTERS = (240, 24)  # of a thread that computes, and of one that moves memory


@dataclasses.dataclass(frozen=True)
class Rows:
    """What the backward pass needs of each query, f32[B, N, whole tiles of queries].

    Attributes:
        of_weights: What its weights are made with; see `Weights.of_gradient`.
        delta: What is taken from each gradient of a weight.
    """

    of_weights: list[Array]
    delta: Array


jax.tree_util.register_dataclass(Rows)


def room(config: Config) -> tuple[int, int]:
    """How many items, and pieces of a stream, fit into shared memory."""
    widest = max(config.columns)
    return (2 if widest <= 128 else 1), (2 if widest <= 192 else 1)


def run(
    block: Block,
    streams: tuple[Stream, ...],
    *,
    attend: Callable[..., Array],
    begin: Callable[..., None],
    stream: Callable[..., Array],
) -> None:
    """Let each warpgroup do its part; see `Programs`."""

    @pl.when(block.warpgroup < WARPGROUPS)
    def _compute() -> None:
        plgpu.set_max_registers(_REGISTERS[0], action="increase")
        block.queue.consume(attend)
        plgpu.wait_smem_to_gmem(0)

    @pl.when(block.warpgroup == WARPGROUPS)
    def _memory() -> None:
        plgpu.set_max_registers(_REGISTERS[1], action="decrease")
        end = block.queue.produce(begin, stream)
        for one in streams:
            one.drain(end)


def hand_out(total: Array, valid: Array, shared: Ref, *, scale: float = 1.0) -> None:
    """A sum into shared memory, in the operands' dtype; 0 in the rows from `valid` on."""
    row = plgpu.broadcasted_iota(jnp.int32, total.shape, 0, layout=plgpu.Layout.WGMMA)
    shared[...] = jnp.where(row < valid, total * scale, 0.0).astype(shared.dtype)
    plgpu.commit_smem()
