"""Kernels begin to compile when their program is lowered: each new one, once."""

import threading

import jax
import jax.monitoring
import jax.numpy as jnp
import pytest

import shapeexec as sx
from shapeexec import _compat
from shapeexec._compat import kernels
from shapeexec.attention import _early
from shapeexec.attention.backends import _device
from tests.attention.early import WAIT, Compiler, is_lowered, wait
from tests.attention.lowering import hopper_kernels, lowered


def test_each_new_kernel_is_compiled_once_in_another_thread(monkeypatch):
    compiler = Compiler(monkeypatch)
    compiler.lower(one="1", two="2")
    compiler.lower(two="2", three="3")
    assert sorted(compiler.asked) == [(b"one", b"1"), (b"three", b"3"), (b"two", b"2")]
    assert threading.current_thread() not in compiler.threads


def test_for_another_platform_or_without_its_gpu_nothing_happens(monkeypatch):
    compiler = Compiler(monkeypatch)
    compiler.lower("cpu", one="1")
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    compiler.lower("cuda", two="2")
    assert not compiler.asked


def test_a_kernel_that_cannot_be_compiled_leaves_the_error_to_the_program(monkeypatch):
    compiler = Compiler(monkeypatch, error=ValueError("no such instruction"))
    compiler.lower(one="1", two="2")
    assert len(compiler.asked) == 2


def test_an_error_of_lowering_is_raised(monkeypatch):
    compiler = Compiler(monkeypatch)
    with pytest.raises(TypeError):
        compiler.lower(one="1", two=2)
    is_lowered()
    assert not compiler.asked


def test_the_kernels_of_all_calls_begin_when_the_program_is_lowered(monkeypatch):
    compiler = Compiler(monkeypatch)
    for name in (b"one", b"two"):
        with _early.compiled_early("cuda"):
            compiler.known[name] = b"code"
    jax.monitoring.record_event_duration_secs("/jax/another", 0.1)
    wait()
    assert not compiler.asked
    is_lowered()
    assert sorted(compiler.asked) == [(b"one", b"code"), (b"two", b"code")]


def test_a_program_that_another_thread_lowers_is_its_own(monkeypatch):
    compiler = Compiler(monkeypatch)
    with _early.compiled_early("cuda"):
        compiler.known[b"one"] = b"1"
    other = threading.Thread(target=is_lowered)
    other.start()
    other.join(WAIT)
    assert not compiler.asked
    is_lowered()
    assert compiler.asked == [(b"one", b"1")]


def test_a_kernel_that_is_lowered_by_itself_is_no_program(monkeypatch):
    compiler = Compiler(monkeypatch)
    with _early.compiled_early("cuda"):
        compiler.known[b"one"] = b"1"
    with _early.compiled_early("cuda"):
        is_lowered()
    assert not compiler.asked
    with pytest.raises(TypeError):
        compiler.lower(two=2)
    is_lowered()
    assert compiler.asked == [(b"one", b"1")]


def test_kernels_that_are_held_back_are_compiled_with_the_next_program(monkeypatch):
    compiler = Compiler(monkeypatch)
    with pytest.raises(TypeError), _early.held_back():
        compiler.lower(three=3)
    with _early.held_back():
        compiler.lower(one="1")
        assert not compiler.asked
    compiler.lower(one="1", two="2")
    assert sorted(compiler.asked) == [(b"one", b"1"), (b"two", b"2")]


def test_calls_that_are_lowered_at_once_compile_a_kernel_once(monkeypatch):
    compiler = Compiler(monkeypatch)
    with _early.compiled_early("cuda"), _early.compiled_early("cuda"):
        compiler.known |= {b"one": b"1", b"two": b"2"}
    is_lowered()
    is_lowered()
    assert sorted(compiler.asked) == [(b"one", b"1"), (b"two", b"2")]


def test_without_jax_s_table_of_kernels_nothing_is_compiled_early(monkeypatch):
    core = pytest.importorskip("jax.experimental.mosaic.gpu.core")
    monkeypatch.delattr(core, "KNOWN_KERNELS")
    monkeypatch.setattr(kernels, "_known", {})
    monkeypatch.setattr(_early, "_has_gpu", lambda: True)
    with _early.compiled_early("cuda"):
        assert _compat.lowered_mosaic_kernels() == {}
    is_lowered()


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="jax < 0.11 has no such kernels")
def test_the_kernels_of_a_gradient_are_those_of_its_program(monkeypatch):
    asked = []
    monkeypatch.setattr(_compat, "compile_mosaic_kernel", lambda digest, code: asked.append(code))
    monkeypatch.setattr(_early, "_has_gpu", lambda: True)
    x = jnp.zeros((1, 384, 2, 64), jnp.bfloat16)

    def loss(x):
        out = sx.dot_product_attention(x, x, x, implementation="mosaic_gpu")
        return out.astype(jnp.float32).sum()

    with _device.assumed(_device.HOPPER):
        text = lowered(jax.grad(loss), x, platform="cuda")
    wait()
    assert len(asked) == hopper_kernels(text) == 3
