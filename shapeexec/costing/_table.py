"""What each primitive costs: one row of facts for each.

To support a primitive, add a row to `ROWS`. A primitive without a row is counted by its bytes
alone, and the model has a note of it. Pointwise primitives get their rows from the table of
masking. `_count` handles jaxprs inside of equations.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from shapeexec._errors import ConfigError
from shapeexec.costing._polynomial import NOTHING, Polynomial, constant, make_factor
from shapeexec.masking._facts import FACTS

Dims = tuple[Polynomial, ...]


@dataclasses.dataclass(frozen=True)
class Use:
    """One equation, with its dims in the symbols of calls.

    Attributes:
        params: Its parameters.
        operands: The dims of each operand.
        results: The dims of each result.
    """

    params: Mapping[str, Any]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]

    @property
    def read(self) -> Polynomial:
        """The elements of the first operand."""
        return product(self.operands[0])

    @property
    def made(self) -> Polynomial:
        """The elements of the first result."""
        return product(self.results[0])


Amount = Callable[[Use], Polynomial]


def _nothing(_: Use) -> Polynomial:
    return NOTHING


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """What one primitive costs.

    Attributes:
        flops: See `Work`; without the FLOPs of convolutions.
        convolved: See `Work`.
        transcendentals: See `Work`.
        fusion: `"fused"`: XLA computes it in the loop of its reader, so it moves no bytes unless
            several loops read it. `"last"`: it ends such a loop, and writes its result. `"none"`:
            it reads and writes memory.
    """

    flops: Amount = _nothing
    convolved: Amount = _nothing
    transcendentals: Amount = _nothing
    fusion: Literal["fused", "last", "none"] = "none"


def add_row(name: str, row: Row) -> None:
    """Add the costs of a primitive of another room.

    Raises:
        ConfigError: The primitive has a row already.
    """
    if name in ROWS:
        raise ConfigError(
            f"add_row: the primitive `{name}` has a row already.",
            option="name",
            got=f"{row!r:.80}",
            fix="one row for each primitive; change the row in costing/_table.py",
        )
    ROWS[name] = row


def product(dims: Sequence[Polynomial]) -> Polynomial:
    """The elements of an array."""
    return functools.reduce(Polynomial.__mul__, dims, constant(1))


def _dot(use: Use) -> Polynomial:
    axes: Sequence[int] = use.params["dimension_numbers"][0][0]
    return use.made * product([use.operands[0][axis] for axis in axes]) * 2


def _convolution(kernel: Dims, out: Dims, *, params: Mapping[str, Any]) -> Polynomial:
    """2 x out elements x kernel taps / lhs dilation."""
    axes: Sequence[int] = params["dimension_numbers"].rhs_spec[1:]
    taps = product([kernel[axis] for axis in axes])
    return product(out) * taps * (2 / math.prod(params["lhs_dilation"]))


def _conv(use: Use) -> Polynomial:
    return _convolution(use.operands[1], use.results[0], params=use.params)


def _conv_by_data(use: Use) -> Polynomial:
    """The gradient by the data, of (cotangent, kernel): the FLOPs of the convolution."""
    return _convolution(use.operands[1], use.operands[0], params=use.params)


def _conv_by_kernel(use: Use) -> Polynomial:
    """The gradient by the kernel, of (cotangent, data): the FLOPs of the convolution."""
    return _convolution(use.results[0], use.operands[0], params=use.params)


def _window(use: Use) -> Polynomial:
    taps = math.prod(n for n in use.params["window_dimensions"] if isinstance(n, int))
    return use.made * taps


def _compared(use: Use) -> Polynomial:
    """Comparisons of a sort along one axis: n log2(n)."""
    dims = use.operands[0]
    axis: int = use.params.get("dimension", len(dims) - 1)
    length = dims[axis]
    log = make_factor(f"log2({length})", lambda sizes: np.log2(np.maximum(length(sizes), 2)))
    return product(dims) * log


def _transformed(use: Use) -> Polynomial:
    """A fast Fourier transform: 5 n log2(n), as benchmarks of FFTs count it."""
    count = len(use.params["fft_lengths"])
    lengths = product((use.operands[0] if use.params["fft_type"] else use.results[0])[-count:])
    log = make_factor(f"log2({lengths})", lambda sizes: np.log2(np.maximum(lengths(sizes), 2)))
    return use.read * log * 5


def _cubic(factor: float) -> Amount:
    """`factor * m * n * n` for each matrix [m, n], as LAPACK's working notes count."""

    def amount(use: Use) -> Polynomial:
        return use.read * use.operands[0][-1] * factor

    return amount


def _solved(use: Use) -> Polynomial:
    """Each right-hand side takes n * n."""
    return product(use.operands[1]) * use.operands[0][-1]


def _random(use: Use) -> Polynomial:
    return use.made * _THREEFRY


_THREEFRY = 60.0  # of 20 rounds with 3 operations, for two numbers of 32 bits at once
_BY_ELEMENT = Row(flops=lambda use: use.made, fusion="fused")
_TRANSCENDENTAL = Row(transcendentals=lambda use: use.made, fusion="fused")
_VIEW = Row(fusion="fused")
_REDUCTION = Row(flops=lambda use: use.read, fusion="last")
_ALONG = Row(flops=lambda use: use.read)
_WINDOW = Row(flops=_window)
_MOVE = Row()
_SCATTER = Row(flops=lambda use: product(use.operands[2]))

_OF_TABLES = """
    acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt cos cosh digamma erf erf_inv
    erfc exp exp2 expm1 igamma igamma_grad_a igammac lgamma log log1p log2 logistic polygamma pow
    regularized_incomplete_beta rsqrt sin sinh sqrt tan tanh zeta
"""
_VIEWS = """
    after_all bitcast_convert_type broadcast_in_dim broadcast_to copy copy_p create_token dce_sink
    device_put dim_as_value empty expand_dims host_value iota iota_2x32_shape name
    optimization_barrier pad platform_index random_unwrap random_wrap reshape rev
    sharding_constraint shapeexec_row_major slice split squeeze stop_gradient tile transpose unstack
"""
_REDUCTIONS = """
    argmax argmin reduce reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum
    reduce_xor
"""
_MOVES = """
    concatenate dynamic_slice dynamic_update_slice gather lu_pivots_to_permutation pad_transpose
    slice_transpose stack
"""
_SCATTERS = "scatter scatter-add scatter-max scatter-min scatter-mul scatter-sub"
_WINDOWS = """
    reduce_window reduce_window_max reduce_window_min reduce_window_sum
    reduce_window_sum_transpose select_and_gather_add select_and_gather_add_transpose
    select_and_scatter_add
"""

ROWS: dict[str, Row] = {
    **dict.fromkeys(FACTS, _BY_ELEMENT),
    **dict.fromkeys(_OF_TABLES.split(), _TRANSCENDENTAL),
    **dict.fromkeys(_VIEWS.split(), _VIEW),
    **dict.fromkeys(_REDUCTIONS.split(), _REDUCTION),
    **dict.fromkeys(_MOVES.split(), _MOVE),
    **dict.fromkeys(_SCATTERS.split(), _SCATTER),
    **dict.fromkeys(_WINDOWS.split(), _WINDOW),
    **dict.fromkeys("cummax cummin cumprod cumsum".split(), _ALONG),
    "cholesky": Row(flops=_cubic(1 / 3)),
    "clamp": _BY_ELEMENT,
    "conv_general_dilated": Row(convolved=_conv),
    "conv_general_dilated_transpose_lhs": Row(convolved=_conv_by_data),
    "conv_general_dilated_transpose_rhs": Row(convolved=_conv_by_kernel),
    "cumlogsumexp": Row(transcendentals=lambda use: use.read),
    "dot_general": Row(flops=_dot),
    "eigh": Row(flops=_cubic(9)),
    "fft": Row(flops=_transformed),
    "geqrf": Row(flops=_cubic(4 / 3)),
    "householder_product": Row(flops=_cubic(4 / 3)),
    "lu": Row(flops=_cubic(2 / 3)),
    "random_bits": Row(flops=_random, fusion="fused"),
    "sort": Row(flops=_compared),
    "svd": Row(flops=_cubic(22)),
    "threefry2x32": Row(flops=_random, fusion="fused"),
    "top_k": Row(flops=_compared),
    "triangular_solve": Row(flops=_solved),
}
"""By name the costs of each primitive, except wrappers of a jaxpr."""
