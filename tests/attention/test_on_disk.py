"""Hopper kernels that another process has lowered: found in JAX's cache on disk, and right."""

import dataclasses
import os
import subprocess
import sys

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jaxlib.mlir.ir import Context, StringAttr

import shapeexec as sx
from shapeexec import _compat, _identity
from shapeexec.attention.masks import Mask

if jax.__version_info__ < (0, 11):
    pytest.skip("jax < 0.11 cannot lower these kernels", allow_module_level=True)

from shapeexec.attention.backends.mosaic_gpu import _on_disk
from tests.attention.test_any_batch import CALLS, VARIANTS, Call
from tests.attention.test_any_length import OWN_STEPS, STEPS

CALL = Call(length=512, gradient=True, documents=True, lengths=("key_value_seq_lengths",))


@pytest.fixture
def folder(tmp_path):
    """JAX's cache on disk, empty."""
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
    assert set(lowered_here(first)) <= set(_compat.lowered_mosaic_kernels())


def lowered_here(hashes):
    """The digests of kernels that a text shows; it escapes bytes that are no letters."""
    with Context():
        known = _compat.lowered_mosaic_kernels()
        shown = {str(StringAttr.get(digest)): digest for digest in known}
    return [shown[f'"{one}"'] for one in hashes]


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


def test_a_new_process_finds_what_another_one_has_lowered(folder):
    names = "one tile", "valid lengths"
    hashes = [anew(CALLS[name]) for name in names]
    before = set(entries(folder))
    code = f"""
from shapeexec import _compat
from tests.attention.test_any_batch import CALLS
_compat.mosaic_kernel = None
print([CALLS[name].hashes() for name in {names}] == {hashes})
"""
    settings = {"JAX_COMPILATION_CACHE_DIR": str(folder), "PYTHONHASHSEED": "7"}
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.stdout, told.returncode) == ("True\n", 0), told.stderr
    assert set(entries(folder)) == before


DAMAGE = {
    "nothing": lambda content: b"",
    "no code": lambda content: content.partition(b"\n")[0],
    "half": lambda content: content[: len(content) // 2],
    "a changed byte": lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    "another format": lambda content: content.replace(b"kernel, 1", b"kernel, 0", 1),
    "no JSON": lambda content: b"{" + content,
    "JSON of something else": lambda content: b"[1]\n" + content,
    "other options": lambda content: content.replace(b'"options": [', b'"options": [1, ', 1),
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


def test_settings_and_sources_have_entries_of_their_own(folder, lowered, monkeypatch):
    call = CALLS["one tile"]
    anew(call)
    kept = [len(entries(folder))]
    with jax.enable_x64(True):
        anew(call)
    kept.append(len(entries(folder)))
    monkeypatch.setattr(_identity, "sources", lambda: "an edited rule")
    _on_disk._environment.cache_clear()
    anew(call)
    _on_disk._environment.cache_clear()
    assert [*kept, len(entries(folder))] == [2, 4, 6]  # a call has two kernels


def test_without_a_cache_nothing_is_named(monkeypatch, lowered):
    monkeypatch.setattr(_on_disk, "_name", None)
    anew(CALLS["one tile"])
    assert lowered


def broken(monkeypatch, method):
    def fails(*_, **__):
        raise PermissionError(method)

    monkeypatch.setattr(type(_compat.compilation_cache()), method, fails)


@pytest.mark.parametrize("method", ["get", "put"])
def test_a_cache_that_fails_is_like_none(method, folder, lowered, monkeypatch):
    broken(monkeypatch, method)
    call = CALLS["one tile"]
    assert anew(call) == anew(call)
    assert len(lowered) == 4  # a call has two


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


def test_a_kernel_that_cannot_be_kept_is_not(folder, monkeypatch):
    monkeypatch.setattr(_compat, "mosaic_kernel", lambda *_: None)
    assert anew(CALLS["one tile"])
    assert not entries(folder)
