"""Each fault of a soak is injected, and becomes what the library promises."""

import dataclasses
import threading

import pytest

import shapeexec as sx
from shapeexec.tools.soaking import _faults, _run, _traffic
from shapeexec.tools.soaking._compare import WrongAnswerError
from shapeexec.tools.soaking._faults import KINDS, CallbackError
from shapeexec.tools.soaking._report import SoakReport
from tests.tools.soaking import (
    BY_WAY,
    SIZES,
    at,
    by_name,
    drawn,
    served,
    soak,
)


@pytest.mark.parametrize("kind", KINDS, ids=by_name)
@pytest.mark.filterwarnings("ignore:shapeexec. saved graphs do not fit:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:shapeexec. saved options:RuntimeWarning")
def test_each_fault_is_injected_and_becomes_what_it_should(kind, monkeypatch, tmp_path):
    monkeypatch.setattr(_faults, "_SLOW", 0.01)
    service, traffic, faults = served(rates={kind.name: 1.0}, directory=tmp_path)
    operation = "restart" if kind.at == "files" else "call"
    call = drawn(service, operation, at(SIZES, s=3))
    if kind.becomes is None:
        traffic.do(call)
    else:
        with pytest.raises(kind.becomes, match="injected fault 0") as caught:
            traffic.do(call)
        assert faults.caused(caught.value) is kind
        assert faults.caused(CallbackError(str(caught.value))) is None  # of another type
        assert not _traffic.is_absorbed(call, caught.value)
    assert faults.injected[kind.name] > 0
    assert faults.came_out[kind.name] == (kind.becomes is not None)
    faults._rates = {}
    if kind.at != "run":  # a graph that fails once may fail again: it stays
        traffic.do(call)
    assert _run._books([service]) == []


@pytest.mark.parametrize("is_late", [False, True])
def test_a_restart_loads_its_graphs_and_keeps_its_counts(is_late, tmp_path):
    service, traffic, _ = served(directory=tmp_path)
    draw = dataclasses.replace(drawn(service, "restart", at(SIZES, s=3)), number=int(is_late))
    before = service.run
    traffic.do(drawn(service, "call", at(SIZES, s=3)))
    traffic.do(draw)
    traffic.do(draw)
    assert service.run is not before
    assert (service.total("compiles"), service.total("loads"), service.total("graphs")) == (1, 2, 1)
    assert _run._books([service]) == []


def test_a_loaded_graph_that_answers_wrongly_is_found(tmp_path, monkeypatch):
    service, traffic, _ = served(directory=tmp_path)
    load = sx.load
    wrong = lambda x: (x.sum(), x * 1.001)
    monkeypatch.setattr(sx, "load", lambda path, fn, **options: load(path, wrong, **options))
    with pytest.raises(WrongAnswerError):
        traffic.do(drawn(service, "restart", at(SIZES, s=3)))


@pytest.mark.filterwarnings("ignore:shapeexec. saved graphs do not fit:RuntimeWarning")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.at == "files"], ids=by_name)
def test_damage_after_the_load_is_absorbed(kind, tmp_path, monkeypatch):
    service, traffic, faults = served(rates={kind.name: 1.0}, directory=tmp_path)
    order, load, damage = [], sx.load, _faults.Fault.damage
    monkeypatch.setattr(sx, "load", lambda *a, **k: order.append("load") or load(*a, **k))
    monkeypatch.setattr(_faults.Fault, "damage", lambda *a: order.append("damage") or damage(*a))
    draw = dataclasses.replace(drawn(service, "restart", at(SIZES, s=3)), number=1)
    traffic.do(drawn(service, "call", at(SIZES, s=3)))
    traffic.do(draw)
    assert order == ["load", "damage"]
    assert (faults.injected, faults.came_out) == ({kind.name: 1}, {})
    assert _run._books([service]) == []


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.at == "files"], ids=by_name)
def test_damage_changes_a_directory(kind, seed, tmp_path):
    directory, other = tmp_path / "0" / "graphs", tmp_path / "1" / "graphs"
    for path in (directory, other):
        path.mkdir(parents=True)
        for name in ("a.graph", "a.json", "manifest.json"):
            (path / name).write_bytes(f"{path.parent.name} {name}".encode())
    before = contents(directory)
    _faults.Fault(kind, seed).damage(directory)
    assert contents(directory) != before
    assert contents(directory).get("manifest.json") or kind.name != "files: the saver dies"
    for path in tmp_path.rglob("*"):
        path.unlink() if path.is_file() else None
    _faults.Fault(kind, seed).damage(directory)  # another thread has taken the files away


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.glob("*")}


def test_memory_that_runs_out_is_absorbed_where_that_is_promised():
    rates = {"compile: no memory": 1.0}
    service, traffic, faults = served(way="exact memory", rates=rates)
    call = drawn(service, "call", at(SIZES, s=3))
    draw = faults.draw

    def once(place):
        fault = draw(place)
        if fault is not None:
            faults._rates = {}
        return fault

    faults.draw = once
    traffic.do(call)
    assert service.run.stats.exact == {"s": 1}
    padded = sx.OutOfMemoryError("", sizes={"s": 3}, buckets={"s": 16}, bytes=1, got="", fix="")
    whole = sx.OutOfMemoryError("", sizes={"s": 3}, buckets={}, bytes=1, got="", fix="")
    assert _traffic.is_absorbed(call, padded)
    assert not _traffic.is_absorbed(call, whole)


def test_a_worker_that_dies_leaves_the_quick_graph_and_a_warning():
    service, traffic, faults = served(way="quick", rates={"compile: the worker dies": 1.0})
    draw, drawn_places = faults.draw, []

    def second(place):
        drawn_places.append(place)
        return draw(place) if place == "compile" and drawn_places.count("compile") == 2 else None

    faults.draw = second
    outcome_of = drawn(service, "call", at(SIZES, s=3))
    traffic.do(outcome_of)
    for thread in threading.enumerate():
        if thread.name == "shapeexec":
            thread.join()
    traffic.do(outcome_of)
    assert (service.run.stats.swaps, faults.came_out) == (0, {})
    assert faults.injected == {"compile: the worker dies": 1}


def test_a_soak_with_faults_finds_nothing():
    often = {kind.name: 0.1 for kind in KINDS if kind.name != "compile: slow"}
    restarted = dataclasses.replace(BY_WAY["plain"], operations={"call": 1, "restart": 1})
    outcome = soak(models=[SIZES], ways=[restarted, BY_WAY["cleared"]], rates=often)
    assert (outcome.status, outcome.findings.faults, outcome.books) == (0, [], [])
    assert outcome.faults.injected
    assert "injected" in str(SoakReport({}, outcome))
