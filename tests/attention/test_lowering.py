"""Every Hopper kernel lowers without a GPU."""

import concurrent.futures
import functools
import operator
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.attention.backends import _device
from shapeexec.attention.masks import ALiBi
from tests.attention.lowering import hopper_kernels, lowered

if jax.__version_info__ < (0, 11):
    pytest.skip("jax < 0.11 cannot lower these kernels", allow_module_level=True)

from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import core

from tests.attention.modules import text_of

IDS = np.arange(512, dtype=np.int32)[None] // 100


def gradient(size, value_size=None, *, length=512, bias=None, **options):
    """A gradient at heads of this size: the kernels of both passes."""

    def loss(x, value):
        return sx.dot_product_attention(
            *(x, x, value, bias, sx.Causal() & sx.Documents(IDS[:, :length])),
            implementation="mosaic_gpu",
            **options,
        ).sum()

    sizes = size, size if value_size is None else value_size
    operands = (jax.ShapeDtypeStruct((1, length, 2, n), jnp.bfloat16) for n in sizes)
    return jax.grad(loss, (0, 1)), (*operands,)


def at_once(size, value_size=None, *, length=2048, arrays=0):
    """All gradients in one kernel, where rows are long or so few that one program adds them up."""
    ids = np.zeros((1, length), np.int32)
    masks = [sx.Documents(ids + i) for i in range(arrays)] or [sx.Causal()]

    def loss(x, value):
        return sx.dot_product_attention(
            *(x, x, value),
            mask=functools.reduce(operator.and_, masks),
            implementation="mosaic_gpu",
            deterministic=False,
            expected_density=1.0,
        ).sum()

    sizes = size, size if value_size is None else value_size
    operands = (jax.ShapeDtypeStruct((1, length, 1, n), jnp.bfloat16) for n in sizes)
    return jax.grad(loss, (0, 1)), (*operands,)


def many_arrays():
    """More arrays with a number per key than long rings of narrow heads leave room for."""
    mask = functools.reduce(operator.and_, [sx.Documents(IDS + i) for i in range(34)])
    attend = functools.partial(sx.dot_product_attention, implementation="mosaic_gpu", mask=mask)
    return attend, (jax.ShapeDtypeStruct((1, 512, 2, 64), jnp.bfloat16),) * 3


def for_hopper(program):
    """The text of a program, lowered for a Hopper."""
    function, arguments = program
    with _device.assumed(_device.HOPPER):
        return lowered(function, *arguments, platform="cuda")


PAIRS = np.ones((1, 1, 4, 1024), bool)


def few(page_rows=None, *, size=64, queries=4, heads=2, mask=None):
    """Few queries against a cache, in pages maybe; some heads on two of keys."""

    def attend(q, k, v, lengths, pages):
        return sx.dot_product_attention(
            *(q, k, v),
            mask=sx.Causal(align="end") if mask is None else mask,
            key_value_seq_lengths=lengths,
            pages=pages,
            implementation="mosaic_gpu",
        )

    cache = (2, 1024) if page_rows is None else (32, page_rows)
    shapes = (2, queries, heads, size), (*cache, 2, size)
    q, k = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    numbers = jax.ShapeDtypeStruct((2, 1024 // (page_rows or 1)), jnp.int32)
    lengths = jax.ShapeDtypeStruct((2,), jnp.int32)
    return attend, (q, k, k, lengths, None if page_rows is None else numbers)


@pytest.mark.parametrize(
    ("program", "kernels"),
    [
        pytest.param(gradient(64), 3, id="heads of 64"),
        pytest.param(at_once(128), 3, id="by scores"),
        pytest.param(at_once(128, arrays=4), 3, id="by scores, arrays"),
        pytest.param(at_once(128, arrays=5), 2, id="at once"),
        pytest.param(at_once(64), 2, id="at once, heads of 64"),
        pytest.param(at_once(64, 128), 2, id="at once, wider values"),
        pytest.param(at_once(128, length=2056), 2, id="at once, no whole pieces"),
        pytest.param(at_once(64, arrays=8), 2, id="at once, arrays"),
        pytest.param(at_once(64, arrays=9), 3, id="more arrays than the rings have room for"),
        pytest.param(at_once(64, length=256), 2, id="two tiles, heads of 64"),
        pytest.param(many_arrays(), 1, id="many arrays"),
        pytest.param(few(), 2, id="few queries"),
        pytest.param(few(64), 2, id="pages"),
        pytest.param(few(size=40), 2, id="few queries, narrow heads"),
        # 3, 9, 12, 12, 36 and 142 rows: TMA copies whole eights of rows, or fewer.
        pytest.param(few(queries=1, heads=6), 2, id="one query of three heads"),
        pytest.param(few(queries=9), 2, id="nine queries"),
        pytest.param(few(queries=1, heads=24), 2, id="one query of twelve heads"),
        pytest.param(few(queries=4, heads=6, mask=PAIRS), 2, id="few queries, an array"),
        pytest.param(few(queries=9, heads=8), 2, id="nine queries of four heads"),
        pytest.param(few(queries=1, heads=142), 2, id="one query of 71 heads"),
        pytest.param(gradient(200, 192), 4, id="wide heads, others of values"),
        pytest.param(gradient(192, 128), 4, id="wide keys", marks=pytest.mark.slow),
        pytest.param(gradient(192, 64), 3, id="wide keys, narrow values", marks=pytest.mark.slow),
        pytest.param(
            gradient(128, bias=ALiBi.for_heads(2)), 4, id="a bias", marks=pytest.mark.slow
        ),
        pytest.param(gradient(256), 4, id="heads of 256", marks=pytest.mark.slow),
    ],
)
def test_each_kernel_lowers(program, kernels):
    assert hopper_kernels(for_hopper(program)) == kernels


@pytest.mark.parametrize(
    ("program", "kernels"),
    [
        pytest.param(few(), 2, id="few queries"),
        pytest.param(few(64, queries=1, heads=6), 2, id="pages"),
        pytest.param(gradient(64), 3, id="heads of 64", marks=pytest.mark.slow),
        pytest.param(at_once(64), 2, id="at once", marks=pytest.mark.slow),
    ],
)
def test_kernels_lower_where_python_s_numbers_have_64_bits(program, kernels):
    with jax.enable_x64(True):
        test_each_kernel_lowers(program, kernels)


def hashes(program):
    """The hashes of a program's kernels."""
    return re.findall(r'kernel_hash = "([^"]*)"', for_hopper(program))


@pytest.mark.parametrize("program", [gradient(64), few()], ids=["many queries", "few queries"])
def test_no_bool_is_made_a_number_for_which_mosaic_starts_ptxas(program, monkeypatch):
    made, cast = [], mgpu.FragmentedArray.astype

    def astype(self, dtype, **options):
        made.append((str(self.mlir_dtype), str(dtype)))
        return cast(self, dtype, **options)

    monkeypatch.setattr(mgpu.FragmentedArray, "astype", astype)
    jax.clear_caches()
    for_hopper(program)
    assert ("f32", "bf16") in made
    assert not [pair for pair in made if pair[0] in {"i1", "i8"}]


def test_no_operand_of_a_causal_gradient_is_0_1_2_which_xla_would_make_by_a_kernel():
    operand = jax.ShapeDtypeStruct((1, 512, 2, 64), jnp.bfloat16)
    loss = lambda x: sx.dot_product_attention(x, x, x, is_causal=True).sum()
    text = for_hopper((jax.grad(loss), (operand,)))
    assert "[[[4, 3, 2, 1]]]" in text  # of other lists
    assert "0, 1, 2, 3" not in text


def test_a_kernel_that_is_lowered_again_has_the_same_hash_so_it_is_found_compiled():
    jax.clear_caches()  # what another test lowered has its line in the text
    first = hashes(gradient(64))
    assert len(set(first)) == 5  # with those of the lists, which both passes make
    jax.clear_caches()
    assert hashes(gradient(64)) == first


def forward(queries, keys=None, *, size=64, **options):
    """The forward pass of two heads that share keys."""

    def attend(q, k):
        return sx.dot_product_attention(q, k, k, implementation="mosaic_gpu", **options)

    shapes = (2, queries, 2, size), (2, keys or queries, 1, size)
    return attend, tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)


def texts(lower_all, programs):
    """The texts of the kernels of programs, lowered by lower_all(hashes, programs)."""
    jax.clear_caches()
    core.KNOWN_KERNELS.clear()
    list(lower_all(hashes, programs))
    jax.clear_caches()
    return {text_of(code) for code in core.KNOWN_KERNELS.values()}


@pytest.mark.parametrize("program", [gradient(64), few()], ids=["many queries", "few queries"])
def test_descriptors_of_copies_are_passed_as_few_large_numbers(program):
    for text in texts(map, [program]):
        descriptors = text.count("call @mosaic_gpu_init_tma_desc")
        numbers = r"!llvm\.array<([1-9]\d*) x i(\d+)>"
        room = r"llvm\.alloca %\S+ x " + numbers + r" {mosaic_gpu_smem_alloc, alignment = 64 "
        expected = [(str(2 * descriptors), "512")] if descriptors else []
        assert re.findall(room, text) == expected  # less would be written beyond its end
        assert re.findall(r"= llvm\.load .* -> " + numbers, text) == expected


def products_of(program):
    """How many products the text of a program's forward kernel has."""
    (text,) = (text for text in texts(map, [program]) if "wgmma.mma_async" in text)
    return text.count("wgmma.mma_async")


def test_a_mask_of_the_last_tile_alone_needs_no_loop_of_its_own():
    full = products_of(forward(512))
    assert products_of(forward(512, is_causal=True)) == full
    assert products_of(forward(512, mask=sx.Causal(128))) == full
    lengths = {"key_value_seq_lengths": jnp.array([3, 2000])}
    assert products_of(forward(2048, **lengths)) == full
    two_loops = products_of(forward(512, mask=sx.SlidingWindow(100)))
    assert two_loops > full
    assert products_of(forward(512, mask=sx.Causal(align="end"))) == two_loops


def held_everywhere(program):
    """Of each kernel with products, whether they all read their left operand from registers."""
    of_kernels = (text for text in texts(map, [program]) if "wgmma.mma_async" in text)
    products = [re.findall(r"wgmma\.mma_async\S* {[\d$,]*}, *({?)", text) for text in of_kernels]
    assert all(products)
    return [all(of_one) for of_one in products]


def test_operands_that_stay_are_read_from_registers_where_that_was_faster():
    assert held_everywhere(forward(512)) == [True]
    assert held_everywhere(forward(512, is_causal=True)) == [False]
    assert held_everywhere(forward(512, size=128)) == [False]
    assert held_everywhere(gradient(64)) == [True] * 3
    assert sum(held_everywhere(gradient(128, length=500))) == 1  # the kernel for queries
    assert not any(held_everywhere(gradient(128)))


def test_kernels_that_are_lowered_by_several_threads_at_once_are_those_of_one_thread():
    lengths = jnp.array([3, 500])
    ragged = {"query_seq_lengths": lengths, "key_value_seq_lengths": lengths}
    programs = [
        *(gradient(64), at_once(128), few()),
        *(forward(128, is_causal=True), forward(300, 700, size=256)),
        *(forward(512, **ragged), forward(40, **ragged)),
    ]
    alone, interval = texts(map, programs), sys.getswitchinterval()
    assert len(alone) > 9
    sys.setswitchinterval(1e-5)
    try:
        with concurrent.futures.ThreadPoolExecutor(len(programs)) as pool:
            assert texts(pool.map, programs) == alone
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("program", [gradient(64), few()], ids=["many queries", "few queries"])
def test_kernels_do_not_depend_on_what_another_thread_is_lowering(program, monkeypatch):
    # By Mosaic's `single_thread` they lost a condition, as if it were in another thread's block:
    # counts went up by 128, and results were what memory held.
    alone = texts(map, [program])
    monkeypatch.setattr(mgpu.utils, "_ONCE_PER", mgpu.utils.ThreadSubset.BLOCK)
    assert texts(map, [program]) == alone
