"""What the kernels of the backward pass share, and `Rows`, which they start from.

Two together give the same bits in each run: one makes dq, one dk and dv. Both compute the scores
and their gradients anew, and each result is summed by one program in the order of a list; nothing
is added across programs. Where bits need not be the same, the second may make dq too. Source of
the formulas: FlashAttention-2 (arXiv 2307.08691), algorithm 2.
"""

import dataclasses

import jax
from jax import Array
from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends._base import Ref
from shapeexec.attention.backends.mosaic_gpu._launch import Config
from shapeexec.attention.backends.mosaic_gpu._products import clear_rows

PIECE = 64  # rows of a piece in the ring
REGISTERS = (240, 24)  # of a thread that computes, and of one that moves memory


@dataclasses.dataclass(frozen=True)
class Rows:
    """What the backward pass needs of each query, f32[B, N, whole tiles of queries].

    Attributes:
        of_weights: What its weights are made with; see `Weights.of_gradient`.
        delta: What is taken from each gradient of a weight: the sum of output times gradient,
            less the gradient of the log-sum-exp. The kernel for queries makes it.
    """

    of_weights: list[Array]
    delta: Array


jax.tree_util.register_dataclass(Rows)


def room(config: Config) -> tuple[int, int]:
    """How many items, and pieces of a stream, fit into shared memory."""
    widest = max(config.columns)
    return (2 if widest <= 128 else 1), (2 if widest <= 192 else 1)


def store_sum(total: Array, valid: Array, shared: Ref, *, scale: float = 1.0) -> None:
    """A sum into shared memory, in the operands' dtype; 0 in the rows from `valid` on."""
    shared[...] = clear_rows(valid, total * scale).astype(shared.dtype)
    plgpu.commit_smem()
