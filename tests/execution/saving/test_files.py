"""Damaged and foreign files are never run, and a crash leaves the old ones."""

import errno
import json
import os
import pickle
import threading
import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shapeexec as sx
from shapeexec import _compat
from shapeexec.execution.saving import _files
from tests.execution.saving.support import SPECS, W, attend, data, saved, told
from tests.tolerance import assert_close

X = data()


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The files of a directory with one graph, by name."""
    directory = tmp_path_factory.mktemp("original")
    saved(directory)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def never_deserialized(monkeypatch):
    """Fails where bytes would reach JAX."""

    def fail(*args, **kwargs):
        raise AssertionError("bytes that were damaged have reached JAX")

    monkeypatch.setattr(_compat, "deserialized", fail)


def written(directory, files):
    for path in directory.iterdir():
        path.unlink()
    for name, content in files.items():
        (directory / name).write_bytes(content)


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def a_zip(directory):
    path = directory / "x.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a", "b")
    return path.read_bytes()


DAMAGE = {
    "empty": lambda content, directory: b"",
    "cut": lambda content, directory: content[:-1],
    "longer": lambda content, directory: content + b"\0",
    "other bytes": lambda content, directory: bytes(len(content)),
    "a zip": lambda content, directory: a_zip(directory),
    "a pickle that runs code": lambda content, directory: pickle.dumps(Bomb(directory / "ran")),
    "json of another kind": lambda content, directory: b"[1, 2]",
    "deep json": lambda content, directory: b"[" * 100_000,
    "no text": lambda content, directory: b"\xff\xfe",
    "another format": lambda content, directory: json.dumps(
        {"format": 99, "content": {}, "sha256": ""}
    ).encode(),
}


@pytest.mark.parametrize("suffix", [".graph", ".json"])
@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_made_anew_with_a_warning(
    tmp_path, original, never_deserialized, suffix, name
):
    own = {
        file: DAMAGE[name](content, tmp_path) if is_graph(file, suffix) else content
        for file, content in original.items()
    }
    written(tmp_path, own)
    run = sx.load(tmp_path, attend, trusted=True)
    with told() as texts:
        assert_close(run(W, X), attend(W, X))
    assert (run.stats.loads, run.stats.compiles) == (0, 1)
    assert not (tmp_path / "ran").exists()
    (text,) = texts
    assert f"{suffix} is damaged" in text or f"{suffix} is of another format" in text


def is_graph(file, suffix):
    return file.endswith(suffix) and file != _files.MANIFEST


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_manifest_is_told_and_its_options_are_not_used(tmp_path, original, name):
    written(
        tmp_path, original | {_files.MANIFEST: DAMAGE[name](original[_files.MANIFEST], tmp_path)}
    )
    with told() as texts:
        run = sx.load(tmp_path, attend, SPECS, trusted=True)
    (text,) = texts
    assert text.startswith("shapeexec: saved options cannot be read: manifest.json is")
    assert "Fix:   pass the options to load()" in text
    run(W, X)
    assert run.stats.loads == 1


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_no_flipped_bit_and_no_truncation_is_run(tmp_path, original, never_deserialized, data):
    name = data.draw(st.sampled_from(sorted(original)))
    content = original[name]
    at = data.draw(st.integers(0, 8 * len(content) - 1))
    if data.draw(st.booleans()):
        damaged = content[: at // 8]
    else:
        changed = bytearray(content)
        changed[at // 8] ^= 1 << at % 8
        damaged = bytes(changed)
    written(tmp_path, original | {name: damaged})
    try:
        if name == _files.MANIFEST:
            _files.read_json(tmp_path / name)
        else:
            (stem,) = {path.stem for path in tmp_path.glob("*.graph")}
            _files.read_graph(tmp_path, _files.read_entry(tmp_path / f"{stem}.json"))
    except _files.DamagedError:
        return
    assert json.loads(damaged) == json.loads(content)  # such as one blank for another


def test_bytes_that_jax_refuses_are_made_anew(tmp_path, original, monkeypatch):
    written(tmp_path, original)

    def refuse(*args, **kwargs):
        raise RuntimeError("no such machine")

    monkeypatch.setattr(_compat, "deserialized", refuse)
    run = sx.load(tmp_path, attend, trusted=True)
    with told() as texts:
        run(W, X)
    assert run.stats.compiles == 1
    assert "shapeexec_attend_b4_s8: RuntimeError: no such machine" in texts[0]


def test_a_file_under_another_name_is_not_taken(tmp_path, original):
    other = {
        name.replace(name[:4], "0000") if name != _files.MANIFEST else name: content
        for name, content in original.items()
    }
    written(tmp_path, other)
    entries, reasons = _files.read_entries(tmp_path)
    assert not entries
    assert reasons[0].endswith(".json has the content of another file")


def test_without_trust_nothing_but_json_is_read(tmp_path, original, never_deserialized):
    written(tmp_path, original)
    for path in tmp_path.glob("*.graph"):
        path.write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with told() as texts:
        run = sx.load(tmp_path, attend)
        run(W, X)
    assert (run.stats.loads, run.stats.compiles) == (0, 1)
    assert not texts
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("fails_at", range(6))
def test_a_crash_while_writing_leaves_the_old_files(tmp_path, original, monkeypatch, fails_at):
    written(tmp_path, original)
    calls = iter(range(100))
    real = os.replace

    def crash(*args):
        if next(calls) == fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*args)

    run = sx.Exec(attend, SPECS)
    run(W, data(3, 9))
    run(W, data(3, 17))
    monkeypatch.setattr(os, "replace", crash)
    if fails_at < 5:
        with pytest.raises(sx.ConfigError, match="cannot be used") as caught:
            run.save(tmp_path)
        assert caught.value.option == "directory"
        assert "No space left on device" in str(caught.value)
    else:
        assert run.save(tmp_path) == 2
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    for name, content in original.items():
        if name != _files.MANIFEST or fails_at < 5:
            assert (tmp_path / name).read_bytes() == content
    monkeypatch.undo()
    again = sx.load(tmp_path, attend, trusted=True)
    with told() as texts:
        again(W, X)
    assert again.stats.loads == 1
    assert not texts


def test_a_graph_that_another_process_saves_in_between_is_whole(tmp_path, monkeypatch):
    def attended(w, x):
        return attend(w, x)

    runs = [sx.Exec(attended, SPECS) for _ in range(2)]
    for run in runs:
        run(W, X)
    real, calls = os.replace, iter(range(100))

    def replaced(*args):
        real(*args)
        if next(calls) == 0:  # its program is there, and its JSON is not
            runs[1].save(tmp_path)

    monkeypatch.setattr(os, "replace", replaced)
    assert runs[0].save(tmp_path) == 1
    monkeypatch.undo()
    again = sx.load(tmp_path, attended, trusted=True)
    again(W, X)
    assert (again.stats.loads, again.stats.compiles) == (1, 0)


def test_a_whole_file_that_jax_refuses_is_written_anew(tmp_path, original):
    written(tmp_path, original)
    (entry,) = _files.read_entries(tmp_path)[0].values()
    fields = {k: v for k, v in vars(entry).items() if k != "files"}
    payloads = {".graph": b"another"}
    _files.write_graph(tmp_path, _files.entry_of(payloads, **fields), payloads=payloads)
    run = sx.load(tmp_path, attend, trusted=True)
    with told():
        run(W, X)
    assert run.save(tmp_path) == 1
    again = sx.load(tmp_path, attend, trusted=True)
    again(W, X)
    assert (again.stats.loads, again.stats.compiles) == (1, 0)


def test_two_that_save_at_once_keep_the_graphs_of_both(tmp_path):
    runs = [sx.Exec(attend, SPECS) for _ in range(4)]
    for number, run in enumerate(runs):
        run(W, data(3, 5))
        run(W, data(3, 2 ** (3 + number) + 1))
    start = threading.Barrier(len(runs))

    def work(run):
        start.wait()
        run.save(tmp_path)

    threads = [threading.Thread(target=work, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries, reasons = _files.read_entries(tmp_path)
    assert len(entries) == 5
    assert not reasons


BAD = {
    "a file": lambda path: (path.write_text(""), path)[1],
    "no path": lambda path: 3,
    "below a file": lambda path: (path.write_text(""), path / "a")[1],
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_directory_is_an_error(tmp_path, name):
    bad = BAD[name](tmp_path / "x")
    run = sx.Exec(attend, SPECS)
    for use in (run.save, lambda directory: sx.load(directory, attend)):
        with pytest.raises(sx.ConfigError, match="directory=") as caught:
            use(bad)
        assert caught.value.option == "directory"
        assert "Fix:" in str(caught.value)


def test_a_directory_that_is_missing_or_empty_is_an_error(tmp_path):
    with pytest.raises(sx.ConfigError, match="is not a directory"):
        sx.load(tmp_path / "missing", attend)
    with pytest.raises(sx.ConfigError, match="cannot be used") as caught:
        sx.load(tmp_path, attend)
    assert "FileNotFoundError" in str(caught.value)


def test_a_relative_directory_is_found_after_the_process_moved(tmp_path, monkeypatch):
    saved(tmp_path / "graphs")
    monkeypatch.chdir(tmp_path)
    run = sx.load("graphs", attend, trusted=True)
    monkeypatch.chdir("/")
    assert_close(run(W, data()), attend(W, data()))
    assert run.stats.loads == 1
