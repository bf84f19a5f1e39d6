"""Tilings that were measured and kept are used where they fit, and change no result."""

import dataclasses
import functools
import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.attention.backends import _kept, _tuning, xla
from shapeexec.attention.backends._base import Tiling
from shapeexec.attention.backends._kept import KeptRow, Place
from shapeexec.attention.backends._tuning import Observer, Tuning
from tests.attention.test_choose import CALL
from tests.tolerance import assert_close

X = np.random.default_rng(0).normal(size=(1, 300, 2, 8)).astype(np.float32)
HERE = Place("xla", False, "causal", 8, 8, "float32", 512, 512)
SMALL = Tiling((64, 64))
FORMAT = _kept._FORMAT


def attend(x):
    return sx.dot_product_attention(x, x, x, is_causal=True)


def lowered(fn=attend):
    return jax.jit(functools.partial(fn)).lower(X).as_text()  # another function each time


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "tuning.json"
    monkeypatch.setenv(_kept.VARIABLE, str(path))
    _tuning.forget()
    yield path
    _tuning.forget()


def kept(file, *rows):
    _kept.keep(file, "cpu", rows=rows, measured=[row.place for row in rows])
    _tuning.forget()


@pytest.mark.parametrize(
    ("mask", "sizes", "kind", "most"),
    [
        (sx.Full(), (512, 512), "full", (512, 512)),
        (sx.Causal(), (513, 4), "causal", (1024, 4)),
        (sx.SlidingWindow(9), (64, 3000), "band", (64, 4096)),
        (sx.SlidingWindow(9000, 9000), (2048, 1025), "full", (2048, 2048)),
        (sx.Documents(np.zeros(512, np.int32)), (512, 512), "other", (512, 512)),
    ],
)
def test_a_place_is_a_kind_of_mask_and_a_range_of_sizes(mask, sizes, kind, most):
    call = dataclasses.replace(CALL, query_size=sizes[0], key_size=sizes[1])
    place = _tuning.place_of("xla", call, mask=mask)
    assert (place.mask, place.most_queries, place.most_keys) == (kind, *most)


def test_a_kept_tiling_is_used_where_it_was_measured_and_nowhere_else(file):
    plain, of_others = lowered(), lowered(lambda x: sx.dot_product_attention(x, x, x))
    kept(file, KeptRow(HERE, SMALL, 1.2))
    assert _tuning.tuning("cpu") == Tuning(((HERE, SMALL),))
    assert lowered() != plain
    assert lowered(lambda x: sx.dot_product_attention(x, x, x)) == of_others
    file.unlink()
    _tuning.forget()
    assert lowered() == plain


def test_a_kept_tiling_changes_no_result_but_for_rounding(file):
    def both(x):
        out, transpose = jax.vjp(attend, x)
        return out, transpose(out)

    want = jax.jit(both)(X)
    rows = [KeptRow(dataclasses.replace(HERE, is_backward=b), SMALL, 1.2) for b in (False, True)]
    kept(file, *rows)
    got = jax.jit(functools.partial(both))(X)
    assert_close(got, want)
    again = jax.jit(functools.partial(both))(X)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_graph_of_an_exec_is_made_with_a_kept_tiling_and_is_exact(file):
    kept(file, KeptRow(HERE, SMALL, 1.2))
    run = sx.Exec(attend, ("b, s, 2, 8",), buckets={"b": "pow2", "s": "pow2"})
    assert_close(run(X), attend(X))


@pytest.mark.parametrize(
    ("machine", "tiling"),
    [
        ({"jax": "0.0"}, SMALL),
        ({"device": "NVIDIA H100"}, SMALL),
        ({"shapeexec": "9"}, SMALL),
        ({}, Tiling((7, 64))),
        ({}, Tiling((64, 64), 3)),
        ({}, Tiling((0, -1))),
    ],
)
def test_what_is_of_another_machine_or_no_tiling_of_the_back_end_is_not_used(file, machine, tiling):
    plain = lowered()
    kept(file, KeptRow(HERE, tiling, 1.2))
    content = json.loads(file.read_text())
    content["rows"][0]["machine"] |= machine
    file.write_text(json.dumps(content))
    assert lowered() == plain


ROW = {"machine": {}, "gain": 1.1, "tiling": {"tile": [64, 64], "piece": None}}
PLACE = dataclasses.asdict(HERE)


def of_format(rows):
    return json.dumps({"format": FORMAT, "rows": rows})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it holds something else"),
        ("\0\x01", "it holds something else"),
        ("[" * 100_000, "it holds something else"),
        ("[]", "it holds something else"),
        (json.dumps({"format": "another", "rows": []}), "it is of the format 'another'"),
        (of_format(7), "it holds something else"),
        (of_format([{}]), "it holds something else"),
        (of_format([ROW | {"place": PLACE | {"most_keys": "1"}}]), "most_keys is '1'"),
        (of_format([ROW | {"place": PLACE, "tiling": {"tile": [1]}}]), "not enough values"),
        (of_format([ROW | {"place": PLACE | {"more": 1}}]), "it holds something else"),
        (of_format([ROW | {"place": PLACE, "gain": 10**400}]), "it holds something else"),
        (of_format([ROW | {"place": PLACE, "tiling": {"tile": [1e999, 64]}}]), "tile is [inf, 64]"),
        (of_format([ROW | {"place": PLACE, "tiling": {"tile": [64.5, 64]}}]), "tile is [64.5, 64]"),
        (None, "Is a directory"),
    ],
)
def test_a_damaged_file_is_told_once_and_costs_speed_alone(file, text, told):
    plain = lowered()
    _tuning.forget()
    file.mkdir() if text is None else file.write_text(text)
    with pytest.warns(RuntimeWarning, match="cannot be read") as caught:
        assert lowered() == plain
    assert told in str(caught[0].message)
    assert "Fix:   delete the file, or make it anew" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lowered() == plain


def test_a_name_that_no_file_can_have_costs_speed_alone(monkeypatch, tmp_path):
    plain = lowered()
    monkeypatch.setenv(_kept.VARIABLE, str(tmp_path / ("a" * 300)))
    with pytest.warns(RuntimeWarning, match="cannot be read: .*too long"):
        assert lowered() == plain


def test_a_kept_file_is_for_all_whom_the_folder_is_for(file):
    kept(file, KeptRow(HERE, SMALL, 1.2))
    plain = file.with_name("plain")
    plain.touch()
    assert file.stat().st_mode == plain.stat().st_mode


def test_a_file_that_cannot_be_written_leaves_nothing_behind(file, monkeypatch):
    kept(file, KeptRow(HERE, SMALL, 1.2))
    before = file.read_text()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_kept.Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        kept(file, KeptRow(HERE, Tiling((64, 128)), 1.2))
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert file.read_text() == before


def test_a_new_measurement_replaces_the_one_of_its_place_and_no_other(file):
    places = [dataclasses.replace(HERE, mask=mask) for mask in ("full", "causal", "other")]
    kept(file, *(KeptRow(place, SMALL, 1.1) for place in places))
    again = KeptRow(places[1], Tiling((64, 128)), 1.5)
    _kept.keep(file, "cpu", rows=[again], measured=places[1:])
    found = [row for _, row in _kept._read(file)]
    assert found == [KeptRow(places[0], SMALL, 1.1), again]


def test_a_damaged_file_is_replaced(file):
    file.write_text("{")
    kept(file, KeptRow(HERE, SMALL, 1.2))
    assert _tuning.tuning("cpu").rows == ((HERE, SMALL),)
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("variables", "want"),
    [
        ({_kept.VARIABLE: "/a/b.json", "XDG_CACHE_HOME": "/c"}, "/a/b.json"),
        ({_kept.VARIABLE: ""}, "None"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/shapeexec/tuning.json"),
        ({"HOME": "/h"}, "/h/.cache/shapeexec/tuning.json"),
    ],
)
def test_the_file_is_where_variables_say(variables, want, monkeypatch):
    for name in (_kept.VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(_kept.path()) == want


def test_for_a_platform_that_is_not_here_nothing_is_kept(file):
    kept(file, KeptRow(HERE, SMALL, 1.2))
    assert _kept.machine("cuda") is None
    assert _tuning.tuning("cuda") == Tuning()


@pytest.mark.parametrize("sizes", [(300, 300), (4, 700), (130, 64)])
def test_every_tiling_of_xla_gives_what_its_own_gives(sizes):
    query, key = (jnp.asarray(np.resize(X, (1, size, 2, 8))) for size in sizes)
    mask = sx.Causal(align="end") & sx.SlidingWindow(90)
    call = dataclasses.replace(CALL, query_size=sizes[0], key_size=sizes[1])
    tilings = xla.backend.tilings(call, mask)
    assert tilings[0] == Tiling(xla.backend.tile(call, mask))
    assert len(set(tilings)) == len(tilings) > 1

    def run(tiling):
        observer = Observer()

        def fn(query, key):
            return sx.dot_product_attention(query, key, key, mask=mask, implementation="xla")

        with _tuning.using(Tuning(observer=observer)):
            jax.jit(fn).lower(query, key)
        ((place, able),) = observer.asked
        assert able == tilings
        with _tuning.using(Tuning(((place, tiling),))):
            return jax.jit(lambda *x: jax.vjp(fn, *x)[0])(query, key)

    want = run(tilings[0])
    for tiling in tilings[1:]:
        assert_close(run(tiling), want)


def test_pages_keep_the_tiling_that_fits_them():
    call = dataclasses.replace(CALL, query_size=64, key_size=512, page_size=48)
    assert xla.backend.tilings(call, sx.Full()) == (Tiling(xla.backend.tile(call, sx.Full())),)
