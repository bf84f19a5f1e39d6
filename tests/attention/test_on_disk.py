"""Hopper kernels that another process has lowered: found in JAX's cache on disk, and right."""

import dataclasses
import inspect
import os
import subprocess
import sys
import types
from importlib import metadata

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.experimental.mosaic.gpu import core

import shapeexec as sx
from shapeexec import _compat, _identity
from shapeexec._compat import kernels
from shapeexec.attention.masks import Mask

if jax.__version_info__ < (0, 11):
    pytest.skip("jax < 0.11 cannot lower these kernels", allow_module_level=True)

from shapeexec.attention.backends.mosaic_gpu import _on_disk
from tests.attention.test_any_batch import CALLS, OF_EACH_KIND, VARIANTS, Call
from tests.attention.test_any_length import OWN_STEPS, STEPS

CALL = Call(length=512, gradient=True, documents=True, lengths=("key_value_seq_lengths",))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """JAX's cache on disk, empty."""
    monkeypatch.setattr(kernels, "_known", {})
    folder = tmp_path / "cache"
    set_folder(str(folder))
    yield folder
    set_folder(None)


def set_folder(path):
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", path)


def anew(call):
    """The hashes of a call's kernels as a new process would lower them."""
    jax.clear_caches()
    return call.hashes()


def entries(folder):
    return {path.name: path for path in folder.glob("shapeexec_kernel-*-cache")}


@pytest.fixture
def lowered(monkeypatch):
    """The kernels that are lowered, not found."""
    made = []
    original = _compat.mosaic_kernel
    monkeypatch.setattr(_compat, "mosaic_kernel", lambda *x: made.append(original(*x)) or made[-1])
    return made


def test_a_kernel_is_lowered_once_and_found_from_then_on(folder, lowered):
    first = anew(CALL)
    assert len(entries(folder)) == len(lowered) > 3  # the kernels that make lists are among them
    count = len(lowered)
    assert anew(CALL) == first
    assert len(lowered) == count


def test_what_is_found_can_be_compiled_early_as_what_is_lowered(folder, lowered, monkeypatch):
    anew(CALL)
    code = {kernel.digest: kernel.code for kernel in lowered}
    monkeypatch.setattr(core, "KNOWN_KERNELS", {})
    monkeypatch.setattr(kernels, "_known", {})
    anew(CALL)
    assert _compat.lowered_mosaic_kernels() == code


ALL = {
    **{name: [call] for name, call in CALLS.items()},
    **{f"calls of another {name}": calls for name, calls in VARIANTS.items()},
    **{f"a step, {name}": [step] for name, step in STEPS.items()},
    **{f"steps of other {name}": steps for name, steps in OWN_STEPS.items()},
}


@pytest.mark.parametrize("name", ALL)
def test_what_is_found_is_what_would_be_lowered(name, folder):
    set_folder(None)
    plain = [anew(call) for call in ALL[name]]
    set_folder(str(folder))
    for _ in range(2):
        assert [anew(call) for call in ALL[name]] == plain


def test_a_new_process_finds_what_another_one_has_lowered_and_imports_none_of_mosaic(folder):
    hashes = [anew(call) for call in OF_EACH_KIND.values()]
    before = set(entries(folder))
    code = f"""
import sys
from shapeexec import _compat
from tests.attention.test_any_batch import OF_EACH_KIND
_compat.mosaic_kernel = None
print([call.hashes() for call in OF_EACH_KIND.values()] == {hashes})
print([name for name in sys.modules if name.startswith("jax.experimental.mosaic")])
"""
    settings = {"JAX_COMPILATION_CACHE_DIR": str(folder), "PYTHONHASHSEED": "7"}
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.stdout, told.returncode) == ("True\n[]\n", 0), told.stderr
    assert set(entries(folder)) == before


def test_a_compiled_kernel_is_kept_however_fast_it_was(folder, monkeypatch):
    monkeypatch.setattr(kernels, "call_mosaic_kernel", lambda *_, **__: [jnp.zeros(1)])
    jax.jit(lambda: jnp.ones(1)).lower().compile()
    assert not [*folder.glob("*-cache")]
    _compat.compile_mosaic_kernel(b"hash", b"code")
    assert [path.name[:4] for path in folder.glob("*-cache")] == ["jit_"]
    jax.jit(lambda: jnp.ones(2)).lower().compile()
    assert len([*folder.glob("*-cache")]) == 1


def test_an_entry_holds_the_whole_kernel():
    kernel = _compat.MosaicKernel(b"\x00\xff", b"code\nand more", (("one", True), ("other", False)))
    assert _on_disk._read("name", _on_disk._written("name", kernel)) == kernel


def test_an_entry_of_another_name_is_like_none(folder):
    """Such as one that was copied there by mistake."""
    right, other = anew(CALLS["one tile"]), anew(CALLS["valid lengths"])
    assert set(right).isdisjoint(other)
    paths = list(entries(folder).values())
    whole = [path.read_bytes() for path in paths]
    for path, content in zip(paths, [*whole[1:], whole[0]], strict=True):
        path.write_bytes(content)
    assert anew(CALLS["one tile"]) == right
    assert anew(CALLS["valid lengths"]) == other


DAMAGE = {
    "nothing": lambda content: b"",
    "no code": lambda content: content.partition(b"\n")[0],
    "half": lambda content: content[: len(content) // 2],
    "a changed byte": lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    "no JSON": lambda content: b"{" + content,
    "JSON of something else": lambda content: b"[1]\n" + content,
    "another hash": lambda content: content.replace(b'"digest": "', b'"digest": "0', 1),
    "no text": lambda content: b"\xff\xfe" + content,
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_entry_is_like_none(name, folder, lowered):
    call = CALLS["one tile"]
    first = anew(call)
    count = len(lowered)
    for path in entries(folder).values():
        content = path.read_bytes()
        path.write_bytes(DAMAGE[name](content))
        assert path.read_bytes() != content
    assert anew(call) == first
    assert len(lowered) == 2 * count
    assert anew(call) == first  # which is kept beside the damaged one
    assert len(lowered) == 2 * count


@dataclasses.dataclass(frozen=True)
class Own(Mask):
    """A user's mask, whose code another process may have otherwise."""

    def allows(self, at):
        return at.key <= at.query

    def bounds(self, tiles):
        return sx.Causal().bounds(tiles)


UNKNOWN = {
    "a function": sx.MaskFunction(lambda b, h, q, k: k <= q),
    "a function of arguments": VARIANTS["function"][0].options[0][1],
    "a class": Own(),
    "a class in another mask": Own() & sx.SlidingWindow(3),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_code_of_the_user_s_is_not_kept(name, folder, lowered):
    call = Call(options=(("mask", UNKNOWN[name]),))
    assert anew(call) == anew(call)
    assert not entries(folder)
    assert len(lowered) == 2


def set_x64(monkeypatch):
    monkeypatch.setattr(_compat, "config_fingerprint", with_x64(_compat.config_fingerprint))


def with_x64(original):
    def fingerprint():
        with jax.enable_x64(True):
            return original()

    return fingerprint


def of_another_backend(monkeypatch):
    device = types.SimpleNamespace(client=types.SimpleNamespace(platform_version="other"))
    monkeypatch.setattr(_compat, "default_device", lambda: device)


def set_version(monkeypatch, package):
    original = metadata.version
    changed = {package: "other"}
    monkeypatch.setattr(metadata, "version", lambda name: changed.get(name) or original(name))


CHANGES = {
    "a setting of the thread": set_x64,
    "a setting": lambda m: m.setattr(_compat, "compile_settings", lambda: {"jax_scan3": "True"}),
    "the back end": of_another_backend,
    "jax": lambda m: m.setattr(jax, "__version__", "other"),
    "jaxlib": lambda m: set_version(m, "jaxlib"),
    "NumPy": lambda m: m.setattr(np, "__version__", "other"),
    "ml_dtypes": lambda m: set_version(m, "ml_dtypes"),
    "the sources": lambda m: m.setattr(_identity, "sources", lambda: "other"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_setting_and_version_is_part_of_the_name(name, monkeypatch):
    before = _on_disk._name(("key", 1))
    with monkeypatch.context() as changed:
        CHANGES[name](changed)
        _on_disk._versions.cache_clear()
        assert _on_disk._name(("key", 1)) not in (before, None)
    _on_disk._versions.cache_clear()
    assert _on_disk._name(("key", 1)) == before != _on_disk._name(("key", 2))


def of_itself():
    value = []
    value.append(value)
    return value


def test_what_cannot_be_encoded_has_no_name(monkeypatch):
    assert _on_disk._name(of_itself()) is None

    def unknown():
        raise _identity.UnsaveableError("sources")

    monkeypatch.setattr(_identity, "sources", unknown)
    _on_disk._versions.cache_clear()
    assert _on_disk._name(1) is None


def test_without_a_cache_nothing_is_named(monkeypatch, lowered):
    monkeypatch.setattr(_on_disk, "_name", None)
    anew(CALLS["one tile"])
    assert lowered


def broken(monkeypatch, method):
    calls = []

    def fails(*_, **__):
        calls.append(method)
        raise PermissionError(method)

    monkeypatch.setattr(type(_compat.compilation_cache()), method, fails)
    return calls


@pytest.mark.parametrize("method", ["get", "put"])
def test_a_cache_that_fails_is_not_asked_again(method, folder, lowered, monkeypatch):
    failed = broken(monkeypatch, method)
    call = CALLS["one tile"]
    assert anew(call) == anew(call)
    assert len(lowered) == 4  # a call has two
    assert failed == [method]  # which may have waited for a lock


def test_a_folder_that_cannot_be_is_like_none(tmp_path, lowered):
    (tmp_path / "file").write_text("")
    set_folder(str(tmp_path / "file" / "cache"))
    try:
        assert _compat.compilation_cache() is None
        assert anew(CALLS["one tile"])
    finally:
        set_folder(None)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("jax_compilation_cache_check_contents", True), ("jax_enable_compilation_cache", False)],
)
def test_jax_s_switches_of_the_cache_are_heard(setting, value, folder):
    before = getattr(jax.config, setting)
    jax.config.update(setting, value)
    compilation_cache.reset_cache()
    try:
        anew(CALLS["one tile"])
    finally:
        jax.config.update(setting, before)
    assert not entries(folder)


def test_jax_s_own_use_of_the_cache_is_not_settled_by_ours(folder):
    set_folder(None)
    anew(CALLS["one tile"])
    jax.config.update("jax_compilation_cache_dir", str(folder))
    least = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    try:
        jax.jit(lambda x: x * 3 + 1)(1.0)
    finally:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", least)
    assert list(folder.glob("jit__lambda*"))


def test_a_kernel_that_cannot_be_kept_is_not(folder, monkeypatch):
    monkeypatch.setattr(_compat, "mosaic_kernel", lambda *_: None)
    assert anew(CALLS["one tile"])
    assert not entries(folder)


AT_EXIT = """
import atexit
import jax
from shapeexec import _compat

def lower():
    with _compat.without_caller():
        print(jax.jit(lambda x: x + 1).lower(1.0) is not None)

atexit.register(lower)
"""


def test_kernels_are_lowered_as_the_interpreter_ends():
    told = subprocess.run(
        [sys.executable, "-c", AT_EXIT], capture_output=True, text=True, check=False
    )
    assert (told.stdout, told.returncode) == ("True\n", 0), told.stderr


def test_an_error_of_lowering_is_as_it_was_raised():
    with pytest.raises(ZeroDivisionError) as raised, _compat.without_caller():
        raise ZeroDivisionError
    assert raised.value.__cause__ is None
    line = inspect.currentframe().f_lineno + 1
    traced = jax.make_jaxpr(lambda x: x + 1)(1.0)
    assert f"test_on_disk.py:{line}" in (_compat.eqn_line(traced.eqns[0]) or "")
