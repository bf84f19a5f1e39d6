"""What cannot be exported, and exported programs that are damaged, foreign or not trusted."""

import dataclasses
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.execution._compile import compile_graph
from shapeexec.execution.saving import _files
from tests.execution.saving.exporting import X, exported, on_another
from tests.execution.saving.support import SPECS, W, attend, data, told
from tests.execution.saving.test_files import DAMAGE, written
from tests.tolerance import assert_close

pytest.importorskip("flatbuffers")

__all__ = ["on_another"]


@pytest.mark.parametrize("refuses", [True, False], ids=["refused", "a weak type"])
def test_what_jax_cannot_export_is_saved_for_this_machine(
    tmp_path, on_another, monkeypatch, refuses
):
    def fn(w, x):
        return x.sum() * w if refuses else 2.0

    def refuse(*args):
        raise ValueError("cannot export custom calls")

    if refuses:
        monkeypatch.setattr(jax.export, "export", lambda jitted: refuse)
    why = "JAX cannot export it: ValueError: cannot" if refuses else "a result has a weak type"
    run = sx.Exec(fn, (None, "s, 4"))
    expected = run(W, X[0])
    with told() as texts:
        assert run.save(tmp_path, portable=True) == 1
    (text,) = texts
    assert text.startswith(
        f"shapeexec: 1 graphs are saved for this kind of machine alone: s=8: {why}"
    )
    assert "Fix:   nothing is wrong with them: on another kind they are made anew" in text
    again = sx.load(tmp_path, fn, trusted=True)
    np.testing.assert_array_equal(again(W, X[0]), expected)
    assert again.stats.loads == 1
    on_another()
    again = sx.load(tmp_path, fn, trusted=True)
    with told() as texts:
        np.testing.assert_array_equal(again(W, X[0]), expected)
    assert (again.stats.exports, again.graphs[0].origin) == (0, "made")
    assert "processor was" in texts[0]


def test_a_kernel_of_one_kind_of_device_is_not_exported(tmp_path, monkeypatch):
    real = jax.export.export

    def with_kernel(jitted):
        def export(*arguments):
            program = real(jitted)(*arguments)
            held = program.mlir_module_serialized + b"mosaic_gpu_v2"
            return dataclasses.replace(program, mlir_module_serialized=held)

        return export

    monkeypatch.setattr(jax.export, "export", with_kernel)
    run = sx.Exec(attend, SPECS)
    run(W, X)
    with told() as texts:
        assert run.save(tmp_path, portable=True) == 1
    assert "it holds a kernel that was written for one kind of device" in texts[0]


def test_no_graph_is_exported_under_other_settings_than_it_was_made_in(tmp_path):
    run = sx.Exec(attend, SPECS)
    run(W, X)
    with jax.default_matmul_precision("highest"), told() as texts:
        run.save(tmp_path, portable=True)
    assert "JAX's settings have changed since it was made" in texts[0]
    assert not [*tmp_path.glob("*.exported")]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The files of a directory with one graph and its program, by name."""
    directory = tmp_path_factory.mktemp("original")
    exported(directory)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_program_is_made_anew_with_a_warning(
    tmp_path, original, monkeypatch, on_another, name
):
    def fail(*args):
        raise AssertionError("bytes that were damaged have reached JAX")

    monkeypatch.setattr(jax.export, "deserialize", fail)
    written(
        tmp_path,
        {
            file: DAMAGE[name](content, tmp_path) if file.endswith(".exported") else content
            for file, content in original.items()
        },
    )
    on_another()
    run = sx.load(tmp_path, attend, trusted=True)
    with told() as texts:
        assert_close(run(W, X), attend(W, X))
    assert (run.stats.exports, run.stats.compiles) == (0, 1)
    assert not (tmp_path / "ran").exists()
    (text,) = texts
    assert ".exported is damaged" in text


def test_a_damaged_program_leaves_that_of_another_machine(tmp_path, original, on_another):
    written(tmp_path, original)
    on_another(text="a second")
    exported(tmp_path)
    on_another(text="a third")
    first, second = sorted(tmp_path.glob("*.exported"))
    first.write_bytes(b"damaged")
    run = sx.load(tmp_path, attend, trusted=True)
    with told() as texts:
        assert_close(run(W, X), attend(W, X))
    assert run.stats.exports == 1
    assert f"{first.name} is damaged" in texts[0]
    second.write_bytes(b"damaged")
    run = sx.load(tmp_path, attend, trusted=True)
    with told() as texts:
        assert_close(run(W, X), attend(W, X))
    assert (run.stats.exports, run.graphs[0].origin) == (0, "made")


FOREIGN = {
    "no program": lambda: b"another",
    "another function's": lambda: program_of(lambda w, x: (x, x, x)),
    "another shape's": lambda: program_of(attend, x=data(3, 9)),
    "another platform's": lambda: program_of(attend, platform="tpu"),
}


def program_of(fn, x=X, platform=None):
    def flat(sizes, *leaves):
        return jax.tree.leaves(fn(*leaves))

    arguments = (jnp.zeros(2, jnp.int32), W, np.zeros((4, 8, 4), np.float32) if x is X else x)
    platforms = None if platform is None else [platform]
    return jax.export.export(jax.jit(flat), platforms=platforms)(*arguments).serialize()


@pytest.mark.parametrize("name", FOREIGN)
def test_a_whole_program_that_does_not_fit_is_made_anew(tmp_path, original, on_another, name):
    written(tmp_path, original)
    (entry,) = _files.read_entries(tmp_path)[0].values()
    fields = {key: held for key, held in vars(entry).items() if key != "files"}
    payloads = {".graph": b"", ".exported": bytes(FOREIGN[name]())}
    _files.write_graph(tmp_path, _files.entry_of(payloads, **fields), payloads=payloads)
    on_another()
    run = sx.load(tmp_path, attend, trusted=True)
    with told() as texts:
        assert_close(run(W, X), attend(W, X))
    assert (run.stats.exports, run.graphs[0].origin) == (0, "made")
    assert texts[0].startswith(
        "shapeexec: saved graphs do not fit, and are compiled again: shapeexec_attend_b4_s8: "
    )


def test_without_trust_no_program_is_read(tmp_path, original, monkeypatch, on_another):
    def fail(*args):
        raise AssertionError("a program was read")

    monkeypatch.setattr(jax.export, "deserialize", fail)
    written(tmp_path, original)
    on_another()
    run = sx.load(tmp_path, attend)
    run(W, X)
    assert run.stats.exports == 0


def test_without_flatbuffers_it_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    run = sx.Exec(attend, SPECS)
    run(W, X)
    with pytest.raises(sx.ConfigError, match="save: flatbuffers is not installed") as caught:
        run.save(tmp_path / "new", portable=True)
    assert caught.value.option == "portable"
    assert "Fix:   pip install flatbuffers, or leave portable=True out" in str(caught.value)
    assert not (tmp_path / "new").exists()
    assert run.save(tmp_path / "new") == 1


def test_a_program_that_xla_refuses_is_made_anew(tmp_path, on_another):
    exported(tmp_path)
    on_another()
    run = sx.load(tmp_path, attend, trusted=True)

    def refusing(made, row, **options):
        if made.is_exported:
            raise jax.errors.JaxRuntimeError("INTERNAL: no such custom call")
        return compile_graph(made, row, **options)

    run._runner.store.making.compile_with(refusing)
    with told() as texts:
        assert_close(run(W, X), attend(W, X))
    assert (run.stats.exports, run.stats.compiles) == (0, 1)
    assert [graph.origin for graph in run.graphs] == ["made"]
    assert "INTERNAL: no such custom call" in texts[0]
