"""Code shared by the kernels of the backward pass, and `Rows`, their numbers per query.

Two kernels are deterministic: one computes dq, the other dk and dv, or wide heads have one for each
of these. All recompute the scores, and each result is summed by one program in the order of a list;
no sum crosses programs. Without determinism the second one may compute dq too. Source of
the formulas: FlashAttention-2 (arXiv 2307.08691), algorithm 2.
"""

import dataclasses

import jax
from jax import Array

from shapeexec.attention.backends._base import Ref
from shapeexec.attention.backends.mosaic_gpu._config import Config
from shapeexec.attention.backends.mosaic_gpu._interpreted import InterpretedProducts
from shapeexec.attention.backends.mosaic_gpu._pallas import plgpu
from shapeexec.attention.backends.mosaic_gpu._products import Products, clear_rows

PIECE = 64  # rows of a piece in the ring
REGISTERS = (240, 24)  # for a thread that computes, and for one that moves memory


@dataclasses.dataclass(frozen=True)
class Rows:
    """The numbers per query of the backward pass, f32[B, N, whole tiles of queries].

    Attributes:
        of_weights: The arguments of `weigh`; see `Weights.of_gradient`.
        addend: The number added to each gradient of a weight: the gradient of the log-sum-exp, less
            the sum of the output times its gradient. The kernel for queries computes it.
    """

    of_weights: list[Array]
    addend: Array


jax.tree_util.register_dataclass(Rows)


def room(config: Config) -> tuple[int, int]:
    """The numbers of items, and of pieces of a stream, that fit into shared memory."""
    widest = max(config.columns)
    if widest <= 64:
        return 2, 4
    return (2 if widest <= 128 else 1), (2 if widest <= 192 else 1)


def store_sum(
    products: Products | InterpretedProducts,
    total: Array,
    valid: Array,
    shared: Ref,
    *,
    scale: float = 1.0,
) -> None:
    """Store a sum in shared memory, in the operands' dtype, with 0 in the rows from `valid` on."""
    products.meet()  # it may take the place of an operand
    products.store(shared, clear_rows(valid, total * scale).astype(shared.dtype))
    plgpu.commit_smem()
