"""`python -m shapeexec doctor`: what it finds is so, and what is bad is told with a way out."""

import json
import os

import jax
import pytest

import shapeexec as sx
from shapeexec.__main__ import main
from shapeexec.tools import _doctor
from shapeexec.tools._doctor import Diagnosis, Finding


def about(look, name):
    """What a look finds of one thing; None: nothing."""
    found = {finding.about: finding for finding in look()}
    return found.get(name)


def test_the_command_prints_and_writes_all_findings(tmp_path, capsys, monkeypatch):
    looks = ("_attention", "_self_test")
    for look in looks:  # which take seconds, and have tests of their own
        monkeypatch.setattr(_doctor, look, lambda: [])
    file = tmp_path / "new" / "found.json"
    assert main(["doctor", "--json", str(file)]) == 0
    text = capsys.readouterr().out
    assert f"ok    jax: {jax.__version__}, jaxlib" in text
    assert text.endswith("all is well\n")
    told = json.loads(file.read_text())
    assert told["is_well"]
    assert {"about": "jax", "state": "ok"}.items() <= told["findings"][1].items()


def test_what_is_bad_is_counted_and_ends_with_1(capsys, monkeypatch):
    bad = Finding("jax", "bad", "0.1 is not supported", "pip install jax")
    monkeypatch.setattr(_doctor, "doctor", lambda: Diagnosis((bad, Finding("x", "note", "so"))))
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out == (
        "BAD   jax: 0.1 is not supported\n        Fix: pip install jax\n"
        "note  x: so\n1 to be mended\n"
    )


@pytest.mark.parametrize(
    ("version", "state"),
    [("0.10.1", "bad"), ("0.10.2", "ok"), ("0.12.9", "ok"), ("0.13.0", "bad"), ("1.0", "bad")],
)
def test_versions_of_jax_are_those_that_the_package_asks_for(monkeypatch, version, state):
    here = {"shapeexec": "1", "python": "3.11", "jax": version, "jaxlib": "1", "numpy": "2"}
    monkeypatch.setattr(_doctor, "machine", lambda: here)
    found = about(_doctor._versions, "jax")
    assert found.state == state
    assert found.fix == ("" if state == "ok" else "pip install 'jax>=0.10.2,<0.13'")


def test_devices_are_counted():
    found = about(_doctor._devices, "devices")
    assert f"{len(jax.devices())} x {jax.devices()[0].device_kind}" in found.text


def test_a_package_that_is_missing_is_told(monkeypatch):
    monkeypatch.setitem(_doctor._OPTIONAL, "no_such_package", "pictures")
    assert str(about(_doctor._packages, "no_such_package")) == (
        "note  no_such_package: not installed: no pictures\n"
        "        Fix: pip install no_such_package"
    )


def test_variables_that_change_programs_are_told(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setenv("SHAPEEXEC_POISON", "nan")
    assert about(_doctor._environment, "XLA_FLAGS") is None
    assert about(_doctor._environment, "SHAPEEXEC_POISON").text.startswith("nan: all padding is")
    with jax.enable_x64(True):
        assert about(_doctor._environment, "jax_enable_x64").state == "note"


@pytest.fixture
def cached_in():
    """Sets the directory of JAX's compilation cache; it is set back afterwards."""
    before = jax.config.jax_compilation_cache_dir
    yield lambda directory: jax.config.update("jax_compilation_cache_dir", directory)
    jax.config.update("jax_compilation_cache_dir", before)


def test_the_cache_is_looked_at(tmp_path, cached_in):
    name = "JAX's compilation cache"
    cached_in(None)
    assert about(_doctor._cache, name).text == "off: each process compiles anew"
    cached_in(str(tmp_path / "new"))
    assert about(_doctor._cache, name) == Finding(name, "ok", str(tmp_path / "new"))
    assert os.listdir(tmp_path / "new") == []
    (tmp_path / "file").touch()
    cached_in(str(tmp_path / "file"))
    found = about(_doctor._cache, name)
    assert (found.state, found.fix) == ("bad", "a directory to write to")


def test_each_back_end_of_attention_runs_or_says_why_not():
    found = {finding.about.partition(": ")[2]: finding for finding in _doctor._attention()}
    assert list(found) == ["mosaic_gpu", "triton", "mosaic_tpu", "cudnn", "xla"]
    assert found["xla"].state == "ok"
    if jax.default_backend() == "cpu":
        assert found["triton"].text == "not here: it is made for GPUs, not for cpu"


def test_the_self_test_compares():
    (found,) = _doctor._self_test()
    assert found.state == "ok"
    assert found.text.startswith("10 comparisons at 1 sets of sizes: all equal, in ")


def test_a_wrong_result_is_bad(monkeypatch):
    def wrong(run, *args, rounds):
        raise sx.ConfigError("wrong by 1", option="x", fix="y")

    monkeypatch.setattr(_doctor, "validate", wrong)
    (found,) = _doctor._self_test()
    assert (found.state, found.text) == ("bad", "wrong by 1\n  Fix:   y")
    assert found.fix.startswith("please report it")
