"""Every Hopper kernel lowers without a GPU."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec import _compat
from shapeexec.attention.backends import _device
from shapeexec.attention.masks import ALiBi
from tests.attention.lowering import hopper_kernels, lowered

if jax.__version_info__ < (0, 11):
    pytest.skip("jax < 0.11 cannot lower these kernels", allow_module_level=True)

from shapeexec.attention.backends.mosaic_gpu import _any_batch

IDS = np.arange(512, dtype=np.int32)[None] // 100


def gradient(size, value_size=None, *, bias=None, **options):
    """A gradient at heads of this size: the kernels of both passes."""

    def loss(x, value):
        return sx.dot_product_attention(
            *(x, x, value, bias, sx.Causal() & sx.Documents(IDS)),
            implementation="mosaic_gpu",
            **options,
        ).sum()

    sizes = size, size if value_size is None else value_size
    operands = (jax.ShapeDtypeStruct((1, 512, 2, n), jnp.bfloat16) for n in sizes)
    return jax.grad(loss, (0, 1)), (*operands,)


def at_once(size):
    """All gradients in one kernel, where rows are long."""

    def loss(x):
        options = {"implementation": "mosaic_gpu", "deterministic": False}
        return sx.dot_product_attention(x, x, x, **options).sum()

    return jax.grad(loss), (jax.ShapeDtypeStruct((1, 2048, 1, size), jnp.bfloat16),)


def few(page_rows=None, *, size=64):
    """Few queries against a cache, in pages maybe."""

    def attend(q, k, v, lengths, pages):
        return sx.dot_product_attention(
            *(q, k, v),
            mask=sx.Causal(align="end"),
            key_value_seq_lengths=lengths,
            pages=pages,
            implementation="mosaic_gpu",
        )

    cache = (2, 1024) if page_rows is None else (32, page_rows)
    q, k = (jax.ShapeDtypeStruct((*lead, 2, size), jnp.bfloat16) for lead in ((2, 4), cache))
    numbers = jax.ShapeDtypeStruct((2, 1024 // (page_rows or 1)), jnp.int32)
    lengths = jax.ShapeDtypeStruct((2,), jnp.int32)
    return attend, (q, k, k, lengths, None if page_rows is None else numbers)


@pytest.mark.parametrize(
    ("program", "kernels"),
    [
        pytest.param(gradient(64), 3, id="heads of 64"),
        pytest.param(at_once(128), 2, id="at once"),
        pytest.param(at_once(64), 2, id="at once, heads of 64"),
        pytest.param(few(), 1, id="few queries"),
        pytest.param(few(64), 1, id="pages"),
        pytest.param(few(size=40), 1, id="few queries, narrow heads"),
        pytest.param(gradient(200, 192), 3, id="wide heads, others of values"),
        pytest.param(
            gradient(128, bias=ALiBi.for_heads(2)), 4, id="a bias", marks=pytest.mark.slow
        ),
        pytest.param(gradient(256), 3, id="heads of 256", marks=pytest.mark.slow),
    ],
)
def test_each_kernel_lowers(program, kernels):
    function, arguments = program
    with _device.assumed(_device.HOPPER):
        text = lowered(function, *arguments, platform="cuda")
    assert hopper_kernels(text) == kernels


def of_batch(batch, *, length=512, size=64, ragged=False, documents=False, **options):
    """The gradient of as many examples."""

    def loss(x, lengths):
        call = {"implementation": "mosaic_gpu", "mask": sx.Causal(), **options}
        if ragged:
            call["query_seq_lengths"] = call["key_value_seq_lengths"] = lengths
        if documents:
            call["mask"] &= sx.Documents(jnp.broadcast_to(lengths[:, None], x.shape[:2]))
        return sx.dot_product_attention(x, x, x, **call).sum()

    x = jax.ShapeDtypeStruct((batch, length, 2, size), jnp.bfloat16)
    lengths = jax.ShapeDtypeStruct((batch,), jnp.int32)
    return jax.grad(loss), (x, lengths)


def kernels_of(program):
    """The hashes of the kernels, but for those of lists; and their operands' shapes."""
    jax.clear_caches()
    function, arguments = program
    with _device.assumed(_device.HOPPER):
        text = lowered(function, *arguments, platform="cuda")
    calls = [line for line in text.splitlines() if "@mosaic_gpu" in line]
    calls = [line for line in calls if "attention_lists" not in line]
    hashes = [re.search(r'kernel_hash = "([^"]*)"', line)[1] for line in calls]
    return hashes, [re.search(r": (\(tensor.*)", line)[1] for line in calls]


BATCHES = {
    "two kernels": {},
    "narrow": {"length": 256},
    "one tile": {"length": 128},
    "any order": {"length": 2048, "size": 128, "deterministic": False},
    "valid lengths": {"ragged": True},
    "documents": {"documents": True},
}


@pytest.mark.parametrize("name", BATCHES)
def test_all_batches_have_the_same_kernels(name, monkeypatch):
    batches = (2, 3, 8) if {"ragged", "documents"} & BATCHES[name].keys() else (2, 3, 8, 1)
    first, shapes = kernels_of(of_batch(batches[0], **BATCHES[name]))
    made = _compat.lowered_mosaic_kernels()
    if name != "documents":  # whose ids are operands that may have another first axis
        monkeypatch.setattr(_compat, "mosaic_kernel", None)
    for batch in batches[1:]:
        hashes, own = kernels_of(of_batch(batch, **BATCHES[name]))
        assert (hashes == first) == (name != "documents")
        lead = f"tensor<{batch}x{BATCHES[name].get('length', 512)}x"
        assert lead in own[0]
        assert lead not in shapes[0]
    kept = [kernel for kernel in _any_batch._kernels.values() if kernel.digest in made]
    assert len(kept) >= len(first)
    assert all(kernel.code == made[kernel.digest] for kernel in kept)


def test_where_jax_writes_kernels_in_another_way_each_batch_has_its_own(monkeypatch):
    monkeypatch.setattr(_any_batch, "_kernels", {})
    shared = [kernels_of(of_batch(batch))[0] for batch in (2, 3)]
    monkeypatch.setattr(_any_batch, "_kernels", {})
    monkeypatch.setattr(_compat, "mosaic_kernel", lambda *_: None)
    own = [kernels_of(of_batch(batch))[0] for batch in (2, 3)]
    assert shared[0] == shared[1]
    assert len({*own[0], *own[1], *shared[0]}) == 9


def test_batches_are_lowered_for_themselves_if_they_have_more_examples_than_kernels(monkeypatch):
    monkeypatch.setattr(_any_batch, "_EXAMPLES", 2)
    monkeypatch.setattr(_any_batch, "_kernels", {})
    one, two, three = (kernels_of(of_batch(batch))[0] for batch in (1, 2, 3))
    assert one == two
    assert not {*two} & {*three}


def test_few_kernels_are_kept(monkeypatch):
    monkeypatch.setattr(_any_batch, "_MOST", 2)
    monkeypatch.setattr(_any_batch, "_kernels", {})
    first, _ = kernels_of(of_batch(2))
    assert len(first) == 3
    assert len(_any_batch._kernels) == 2
    assert kernels_of(of_batch(2))[0] == first


def test_what_is_more_than_a_kernel_is_none():
    x = jax.ShapeDtypeStruct((4,), jnp.float32)
    assert _compat.mosaic_kernel(lambda x: [jnp.sin(x)], [x]) is None
    assert _compat.mosaic_kernel(lambda x: [x], [x]) is None


def test_a_kernel_that_is_lowered_again_has_the_same_hash_so_it_is_found_compiled():
    function, arguments = gradient(64)

    def hashes():
        jax.clear_caches()
        with _device.assumed(_device.HOPPER):
            text = lowered(function, *arguments, platform="cuda")
        return re.findall(r'kernel_hash = "([^"]*)"', text)

    first = hashes()
    assert len(set(first)) == 5  # with those of the lists, which both passes make
    assert hashes() == first
