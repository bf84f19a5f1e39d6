"""Hopper kernels whose text serves every batch: the right one for each call, called rightly."""

import dataclasses
import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec import _compat
from shapeexec.attention.backends import _device
from shapeexec.attention.masks import ALiBi
from tests.attention.lowering import lowered, lowered_for_each_batch

if jax.__version_info__ < (0, 11):
    pytest.skip("jax < 0.11 cannot lower these kernels", allow_module_level=True)

from shapeexec.attention.backends.mosaic_gpu import _any_batch


@dataclasses.dataclass(frozen=True)
class Call:
    """A call that is lowered: its result, or its gradient."""

    batch: int = 2
    length: int = 256
    heads: int = 2
    size: int = 64
    dtype: str = "bfloat16"
    gradient: bool = False
    documents: bool = False
    lengths: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = (("mask", sx.Causal()),)

    def result(self, x, lengths):
        options = {"implementation": "mosaic_gpu", **dict(self.options)}
        options |= dict.fromkeys(self.lengths, lengths)
        if self.documents:
            ids = jnp.broadcast_to(lengths[:, None], x.shape[:2])
            options["mask"] &= sx.Documents(ids)
        return sx.dot_product_attention(x, x, x, **options)

    def kernels(self):
        """The calls of the kernels, without those of lists, as text."""

        def loss(*operands):
            return self.result(*operands).sum()

        shape = (self.batch, self.length, self.heads, self.size)
        operands = (
            jax.ShapeDtypeStruct(shape, self.dtype),
            jax.ShapeDtypeStruct((self.batch,), jnp.int32),
        )
        function = jax.grad(loss) if self.gradient else self.result
        with _device.assumed(_device.HOPPER):
            text = lowered(function, *operands, platform="cuda")
        lines = [line for line in text.splitlines() if "@mosaic_gpu" in line]
        return [line for line in lines if "attention_lists" not in line]

    def hashes(self):
        """Those of the kernels."""
        return hashes_of(self.kernels())

    @property
    def rows(self):
        """The first axes of an operand, as text; see `_merged`."""
        is_merged = self.length % 128 == 0 and self.length >= 384
        first = self.batch * self.length if is_merged else f"{self.batch}x{self.length}"
        return f"tensor<{first}x{self.heads}x"

    def of_batch(self, batch):
        return dataclasses.replace(self, batch=batch)


def hashes_of(lines):
    """The hashes of the kernels that are called in lines of text."""
    return [re.search(r'kernel_hash = "([^"]*)"', line)[1] for line in lines]


LENGTHS = ("query_seq_lengths", "key_value_seq_lengths")
ANY_ORDER = (("mask", sx.Causal()), ("deterministic", False))
WINDOW = (("mask", sx.SlidingWindow(5, 0)),)
CALLS = {
    "two kernels": Call(length=512, gradient=True),
    "narrow": Call(gradient=True),
    "one tile": Call(length=128, gradient=True),
    "any order": Call(length=2048, gradient=True, options=ANY_ORDER),
    "by scores": Call(length=512, size=128, gradient=True),
    "valid lengths": Call(length=512, lengths=LENGTHS, gradient=True),
    "lists that examples share": Call(length=384, options=WINDOW, gradient=True),
    "as many examples as heads and tiles": Call(batch=4, length=512, heads=4, gradient=True),
}
OF_EACH_KIND = {
    **{name: CALLS[name] for name in ("narrow", "one tile", "any order", "by scores")},
    "lists": Call(length=512, documents=True, lengths=LENGTHS, gradient=True),
    "few queries": Call(length=16, documents=True, lengths=LENGTHS),
}
"""Calls that have all kernels between them."""


@pytest.mark.parametrize("name", CALLS)
def test_all_batches_have_the_same_kernels(name, monkeypatch):
    jax.clear_caches()
    call = CALLS[name]
    first = call.hashes()
    monkeypatch.setattr(_compat, "mosaic_kernel", lowered_for_each_batch)
    for batch in (3, 8) if call.lengths else (3, 8, 1):
        lines = call.of_batch(batch).kernels()
        assert hashes_of(lines) == first
        assert all(call.of_batch(batch).rows in line for line in lines)


def attributes(line):
    """A call's text without the kernel and the names of values."""
    line = re.sub(r'(kernel_hash|module) = "[^"]*"', r"\1", line)
    return re.sub(r"%[\w#:]+", "%", line)


@pytest.mark.parametrize(
    "name", ["two kernels", "any order", "by scores", "valid lengths", "one tile"]
)
def test_shared_kernels_are_called_as_jax_calls_its_own(name, monkeypatch):
    jax.clear_caches()
    mine = CALLS[name].kernels()
    monkeypatch.setattr(_any_batch, "_LARGEST", 0)
    jax.clear_caches()
    plain = CALLS[name].kernels()
    assert list(map(attributes, mine)) == list(map(attributes, plain))
    assert "output_operand_aliases" in mine[0] or name == "one tile"


def test_masks_with_a_row_for_each_example_have_kernels_of_their_own():
    call = Call(documents=True)
    assert call.hashes() != call.of_batch(3).hashes()


def up_to_times(factor):
    return functools.partial(lambda by, b, h, q, k: k <= q * by, factor)


KINDS = np.tril(np.ones((2, 2), np.uint8))
VARIANTS = {
    "scale": [Call(options=(("scale", scale),)) for scale in (0.5, 0.25)],
    "window": [
        Call(options=(("mask", sx.SlidingWindow(*sides)),)) for sides in ((1, 0), (2, 0), (0, 1))
    ],
    "causal": [
        Call(options=(("mask", mask),))
        for mask in (sx.Causal(), sx.Causal(1), sx.Causal(align="end"), sx.Full())
    ],
    "function": [Call(options=(("mask", sx.MaskFunction(up_to_times(by))),)) for by in (1, 2)],
    "bias": [
        Call(options=(("bias", np.zeros(shape, np.float32)),))
        for shape in ((2, 1, 256, 1), (2, 1, 1, 256), (1, 1, 256, 1))
    ],
    "modifier": [Call(options=(("bias", bias),)) for bias in (None, ALiBi.for_heads(2))],
    "lengths": [Call(lengths=lengths) for lengths in ((), LENGTHS[:1], LENGTHS[1:], LENGTHS)],
    "lists": [
        Call(options=(("mask", sx.BlockMask(kinds, (128, 128), (256, 256))),))
        for kinds in (KINDS, np.stack([KINDS, KINDS.T])[None])
    ],
    "dtype": [Call(dtype=dtype) for dtype in ("bfloat16", "float16")],
    "sizes": [Call(), Call(length=384), Call(heads=3), Call(size=128)],
}


@pytest.mark.parametrize("name", VARIANTS)
def test_calls_that_differ_have_kernels_that_differ_each_its_own(name):
    jax.clear_caches()
    together = [call.hashes() for call in VARIANTS[name]]
    assert len({tuple(hashes) for hashes in together}) == len(together)
    for call, hashes in zip(VARIANTS[name], together, strict=True):
        jax.clear_caches()
        assert call.hashes() == hashes


def test_a_kernel_is_for_a_number_of_multiprocessors_and_for_settings_of_jax(monkeypatch):
    jax.clear_caches()
    of_many = Call().hashes()
    with jax.enable_x64(True):
        wide = Call().hashes()
        jax.clear_caches()
        assert Call().hashes() == wide
    assert wide != of_many
    monkeypatch.setattr(_device, "multiprocessors", lambda: 78)
    assert Call(batch=5).hashes() != of_many


def test_what_jax_forgets_is_forgotten():
    seen = [3]
    call = Call(options=(("mask", sx.MaskFunction(lambda b, h, q, k: k <= q - seen[0])),))
    before = call.hashes()
    seen[0] = 64
    jax.clear_caches()
    assert call.hashes() != before


def test_where_jax_writes_kernels_in_another_way_each_batch_has_its_own(monkeypatch):
    jax.clear_caches()
    monkeypatch.setattr(_compat, "mosaic_kernel", lambda *_: None)
    own = [Call().of_batch(batch).hashes() for batch in (2, 3)]
    assert own[0] != own[1]


def test_batches_are_lowered_for_themselves_if_they_have_more_examples_than_kernels(monkeypatch):
    monkeypatch.setattr(_any_batch, "_LARGEST", 2)
    jax.clear_caches()
    one, two, three = (Call(batch=batch).hashes() for batch in (1, 2, 3))
    assert one == two
    assert two != three


LONG = (
    Call(length=4096, heads=16, size=128, gradient=True),
    Call(length=4096, heads=16, size=128, gradient=True, options=ANY_ORDER),
    Call(batch=1, length=1 << 17, heads=64, size=256),
    Call(batch=60_000, length=128, heads=1),
)


@pytest.mark.parametrize("call", LONG, ids=str)
def test_no_kernel_is_lowered_for_arrays_too_large_to_be_copied(call, monkeypatch):
    jax.clear_caches()
    shapes = []
    original = _compat.mosaic_kernel

    def recorded(function, operands):
        shapes.extend([*operands, *jax.eval_shape(function, *operands)])
        return original(function, operands)

    monkeypatch.setattr(_compat, "mosaic_kernel", recorded)
    assert call.kernels()
    sizes = [math.prod(x.shape) * x.dtype.itemsize for x in shapes]
    assert max(sizes) < 2**40
    assert max(sizes) == 2**38 or max(x.shape[0] for x in shapes) == 2**16  # as many as fit


DOCUMENTS = "sx.dot_product_attention(x, x, x, mask=sx.Documents(ids)).sum()"
LINES = {  # what a user writes, and how many kernels it has
    "documents": (f"jax.grad(lambda x: {DOCUMENTS})(x)", 5),
    "few queries": ("sx.dot_product_attention(x[:, :1], x, x, key_value_seq_lengths=ids[:, 0])", 2),
}


@pytest.mark.parametrize("name", LINES)
def test_the_line_of_a_call_is_not_part_of_its_kernels(name):
    code, count = LINES[name]

    def kernels(line):
        jax.clear_caches()
        names = {"sx": sx, "jax": jax}
        source = "\n" * line + f"def function(x, ids): return {code}"
        exec(compile(source, "user.py", "exec"), names)
        x = jax.ShapeDtypeStruct((2, 512, 2, 64), jnp.bfloat16)
        ids = jax.ShapeDtypeStruct((2, 512), jnp.int32)
        with _device.assumed(_device.HOPPER):
            text = lowered(names["function"], x, ids, platform="cuda")
        return hashes_of([line for line in text.splitlines() if "@mosaic_gpu" in line])

    first = kernels(0)
    assert kernels(7) == first
    assert len(set(first)) == count


def test_what_is_more_than_a_kernel_is_none():
    x = jax.ShapeDtypeStruct((4,), jnp.float32)
    assert _compat.mosaic_kernel(lambda x: [jnp.sin(x)], [x]) is None
    assert _compat.mosaic_kernel(lambda x: [x], [x]) is None


def test_a_kernel_s_code_is_that_of_jax_s_table():
    jax.clear_caches()
    kept = []
    original = _compat.mosaic_kernel
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_compat, "mosaic_kernel", lambda *x: kept.append(original(*x)) or kept[-1])
        Call(gradient=True).kernels()
    table = _compat.lowered_mosaic_kernels()
    assert len(kept) == 2
    assert all(table[kernel.digest] == kernel.code for kernel in kept)
