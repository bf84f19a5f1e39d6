"""Where XLA finds what Hopper kernels need, in a process that has imported no Pallas.

On a GPU: `JAX_PLATFORMS=cuda XLA_PYTHON_CLIENT_PREALLOCATE=false pytest -m gpu` on this file.
"""

import copy
import importlib
import os
import pickle
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec import _compat
from shapeexec._compat import executables, kernels
from shapeexec.attention.backends.mosaic_gpu import _pallas, _support
from tests.attention import restarted

VARIABLE = "MOSAIC_GPU_RUNTIME_LIB_PATH"
PLUGIN = "a_plugin_of_cuda"
WHY_NOT = _support.of_device("cuda" if jax.default_backend() == "gpu" else "cpu")


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """The only plugin of CUDA, yet without the library; returns the path of that."""
    monkeypatch.setenv(VARIABLE, "of a parent")  # so that it is gone again afterwards
    monkeypatch.delenv(VARIABLE)
    kernels.find_mosaic_runtime.cache_clear()
    monkeypatch.setattr(kernels, "_PLUGINS", (f"{PLUGIN}_of_another_version", PLUGIN))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / PLUGIN).mkdir()
    (tmp_path / PLUGIN / "__init__.py").touch()
    yield tmp_path / PLUGIN / "libmosaic_gpu_runtime.so"
    kernels.find_mosaic_runtime.cache_clear()


def test_the_library_is_in_jax_s_plugin(plugin):
    plugin.touch()
    kernels.find_mosaic_runtime()
    assert os.environ[VARIABLE] == str(plugin)
    assert PLUGIN not in sys.modules


def test_a_library_that_a_parent_has_named_is_not_taken(plugin, monkeypatch):
    plugin.touch()
    monkeypatch.setenv(VARIABLE, "of another environment")
    kernels.find_mosaic_runtime()
    assert os.environ[VARIABLE] == str(plugin)


@pytest.mark.parametrize(
    ("platform", "imported"), [("gpu", ["jax.experimental.mosaic.gpu.core"]), ("cpu", [])]
)
def test_jax_looks_for_what_is_not_where_it_was_and_only_for_a_gpu(
    plugin, monkeypatch, platform, imported
):
    assert not plugin.exists()
    names = []
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr(importlib, "import_module", names.append)
    kernels.find_mosaic_runtime()
    assert names == imported
    assert VARIABLE not in os.environ


def test_whoever_calls_a_kernel_has_looked_for_it(plugin):
    plugin.touch()
    kernel = _compat.MosaicKernel(b"hash", b"code", ())

    def call(x):
        return _compat.call_mosaic_kernel(kernel, [x], results=[x], aliases={})

    jax.make_jaxpr(call)(jnp.zeros(1))
    assert os.environ[VARIABLE] == str(plugin)


@pytest.mark.parametrize(("platform", "is_found"), [("gpu", True), ("cpu", False)])
def test_whoever_loads_a_program_for_a_gpu_has_looked_for_it(
    plugin, monkeypatch, platform, is_found
):
    plugin.touch()

    def load(*_, **__):
        assert (VARIABLE in os.environ) == is_found
        raise ValueError("as far as here")

    monkeypatch.setattr(executables, "_load", load)
    devices = [SimpleNamespace(platform=platform, client=None)]
    with pytest.raises(ValueError, match="as far as here"):
        executables.deserialized(b"", (None, None), devices=devices, check=print)


def test_a_module_that_is_imported_later_is_copied_and_inspected_as_it_is():
    later = _pallas._Later("no.such.module")
    assert copy.copy(later)._name == pickle.loads(pickle.dumps(later))._name == "no.such.module"
    assert not hasattr(later, "__wrapped__")
    with pytest.raises(ModuleNotFoundError, match="no"):
        _ = later.attribute


@pytest.mark.gpu
@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_a_new_process_loads_graphs_with_kernels(tmp_path):
    run = sx.Exec(restarted.FUNCTION, ("b, s, ...",))
    first = restarted.answer(run)
    run.save(tmp_path / "graphs")
    names = str(tmp_path / "graphs"), str(tmp_path / "answer.npy")
    code = f"from tests.attention import restarted; restarted.load(*{names})"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.stdout == "0 1 False\n", told.stderr
    assert np.array_equal(np.load(names[1]), first)
