"""On a GPU: cuDNN, and passes of a call that different back ends make, against formulas in f64."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.attention._blocks import BlockMask, to_dense
from shapeexec.attention.backends import _device
from shapeexec.attention.backends._base import Work
from shapeexec.attention.backends._registry import load
from shapeexec.attention.masks import Lengths
from tests.attention.reference import Reference
from tests.attention.test_choose import CALL
from tests.tolerance import ITERATED, epsilon, tolerance

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU"),
]
on_hopper = pytest.mark.skipif(
    jax.default_backend() != "gpu"
    or _device.compute_capability() != (9, 0)
    or jax.__version_info__ < (0, 11),
    reason="needs a Hopper GPU and jax 0.11",
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A call, which on a Hopper our own kernels run where nobody is named."""

    name: str
    mask: object
    dtype: str = "bfloat16"
    size: int = 128
    queries: int = 256
    keys: int = 256
    shift: float = 0.0

    @property
    def operands(self) -> tuple[jax.Array, ...]:
        """q, k, v, of 4 heads on 2, and the gradient of the output."""
        shapes = ((self.queries, 4), (self.keys, 2), (self.keys, 2), (self.queries, 4))
        random = np.random.default_rng(0)
        q, k, v, d_out = (random.normal(size=(2, t, n, self.size)) for t, n in shapes)
        arrays = (q + self.shift, k - self.shift, v, d_out)
        return tuple(jnp.asarray(x, self.dtype) for x in arrays)

    def expected(self) -> list[np.ndarray]:
        """The output, and the gradients of q, k and v."""
        q, k, v, d_out = (np.asarray(x, np.float64) for x in self.operands)
        allowed = to_dense(self.mask, (self.queries, self.keys))
        truth = Reference(q, k, v, np.zeros((1, 1, 1, 1)), allowed, self.size**-0.5)
        return [truth.out, *truth.gradients(d_out)[:3]]


LONG = {"queries": 2048, "keys": 2048}
WINDOW = sx.Causal() & sx.SlidingWindow(70)
CASES = [
    Case("causal", sx.Causal()),
    Case("full, more keys", sx.Full(), keys=384),
    Case("fp16", sx.Causal(), "float16"),
    Case("small heads", sx.Causal(), size=64),
    Case("small heads, fp16", sx.Full(), "float16", size=64),
    Case("window", WINDOW),
    Case("long", sx.Causal(), **LONG),
    Case("long, small heads", sx.Full(), size=64, **LONG),
    # Its log-sum-exp is below -ln of the largest float: where padding is scored 0, that is NaN.
    Case("scores far below 0", sx.Causal(), size=64, shift=6.0),
]
ODD = [
    Case("odd", sx.Causal(), queries=255, keys=255),
    # Forward needs no whole 128s.
    Case("odd and long", sx.Causal(), size=64, queries=2050, keys=2049),
    Case("odd, 64", sx.Full(), size=64, queries=191, keys=177),
]


def compiled(mask, operands, **options):
    """The output and the gradients in one program; and who makes them: forward, and backward."""

    def run(q, k, v, d_out):
        def attend(*x):
            return sx.dot_product_attention(*x, mask=mask, **options)

        out, pull = jax.vjp(attend, q, k, v)
        return [out, *pull(d_out)]

    program = jax.jit(run).lower(*operands)
    text = program.as_text()
    passes = [
        re.search(rf"func private @{name}\b.*?^  }}", text, re.DOTALL | re.MULTILINE)[0]
        for name in ("_attention_forward", "_attention_gradient")
    ]
    told = tuple(
        "cudnn" if "__cudnn" in body else "mosaic_gpu" if "mosaic_gpu" in text else "other"
        for body in passes
    )
    return program.compile(), told


def assert_right(case: Case, actual) -> None:
    limit = epsilon(case.dtype)
    limit *= 2 if case.shift else 1  # there cuDNN's own gradient is off by 1.1 % of the largest
    names = ("out", "d_q", "d_k", "d_v")
    for name, mine, want in zip(names, actual, case.expected(), strict=True):
        error = np.abs(np.asarray(mine, np.float64) - want).max()
        assert error <= limit * max(1, np.abs(want).max()), (name, error, np.abs(want).max())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cudnn_by_name_gives_what_the_formulas_give(case):
    program, told = compiled(case.mask, case.operands, implementation="cudnn", deterministic=False)
    assert told == ("cudnn", "cudnn")
    assert_right(case, program(*case.operands))


@on_hopper
@pytest.mark.parametrize("case", CASES + ODD, ids=lambda case: case.name)
def test_passes_of_different_back_ends_give_what_the_formulas_give(case):
    program, told = compiled(case.mask, case.operands, deterministic=False)
    assert told == ("mosaic_gpu", "mosaic_gpu")
    assert_right(case, program(*case.operands))


def test_at_odd_lengths_cudnn_makes_the_output_but_refuses_the_gradient():
    case = ODD[-1]
    q, k, v, _ = case.operands
    out = sx.dot_product_attention(q, k, v, implementation="cudnn")
    want = case.expected()[0]
    np.testing.assert_allclose(np.asarray(out, np.float64), want, atol=epsilon(out.dtype))
    with pytest.raises(sx.BackendError, match="cannot make the gradient"):
        compiled(case.mask, case.operands, implementation="cudnn", deterministic=False)


def test_the_log_sum_exp_of_cudnn_is_natural_and_in_f32():
    case = CASES[0]
    q, k, v, _ = case.operands
    signature = dataclasses.replace(CALL, query_size=256, key_size=256)
    work = Work(case.mask & Lengths(), *[None] * 4)
    forward = functools.partial(load("cudnn").forward, signature, work, bias=None)
    _, logsumexp = jax.jit(forward)(q=q, k=k, v=v)
    wide = (np.asarray(x, np.float64) for x in (q, k, v))
    allowed = to_dense(case.mask, (256, 256))
    truth = Reference(*wide, np.zeros((1, 1, 1, 1)), allowed, 128**-0.5)
    np.testing.assert_allclose(
        logsumexp.transpose(0, 2, 1), truth.logsumexp, atol=tolerance(np.float32, loose=ITERATED)
    )


@pytest.mark.parametrize("size", [64, 128])
def test_deterministic_calls_give_the_same_bits_20_times(size):
    case = Case("", sx.Causal(), size=size, queries=2048, keys=2048)
    program, (_, backward) = compiled(case.mask, case.operands)
    assert backward != "cudnn"
    first = program(*case.operands)
    for _ in range(20):
        for mine, want in zip(program(*case.operands), first, strict=True):
            np.testing.assert_array_equal(mine.view(np.uint16), want.view(np.uint16))


@on_hopper
def test_a_mask_of_nearly_all_tiles_stays_with_our_kernel():
    kinds = np.full((1, 1, 4, 4), 2, np.uint8)
    kinds[..., 1, 2:] = 0  # 88 % of the tiles
    mask = BlockMask(kinds, (128, 128), (512, 512))
    case = Case("", mask, queries=512, keys=512)
    program, told = compiled(mask, case.operands, deterministic=False)
    assert told == ("mosaic_gpu", "mosaic_gpu")
    assert_right(case, program(*case.operands))
