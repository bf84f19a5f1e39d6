"""Where arguments stand is part of a graph's name: devices and shardings have graphs of their own.

A process of four devices runs all cases, and tells what it saw.
"""

import functools
import json
from typing import Any

import pytest

from tests.processes import on_devices

PROGRAM = """
import json

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from shapeexec import _compat
from shapeexec.execution import _transfer
from shapeexec.execution._bind import Binder
from shapeexec.execution._placement import placement_of

P, Auto = jax.P, jax.sharding.AxisType.Auto
devices = jax.devices()
meshes = {
    "auto": jax.make_mesh((4,), ("d",), axis_types=(Auto,)),
    "explicit": jax.make_mesh((4,), ("d",)),
    "two": jax.make_mesh((2,), ("d",), axis_types=(Auto,), devices=devices[:2]),
    "other two": jax.make_mesh((2,), ("d",), axis_types=(Auto,), devices=devices[2:]),
}
PLACES = {
    "cpu:0": devices[0],
    "cpu:1": devices[1],
    "cut by four": jax.NamedSharding(meshes["auto"], P("d")),
    "cut along s": jax.NamedSharding(meshes["auto"], P(None, "d")),
    "whole": jax.NamedSharding(meshes["auto"], P()),
    "explicit": jax.NamedSharding(meshes["explicit"], P("d")),
    "cut by two": jax.NamedSharding(meshes["two"], P("d")),
    "cut by others": jax.NamedSharding(meshes["other two"], P("d")),
}
X = np.arange(12 * 8, dtype=np.float32).reshape(12, 8)
W = np.arange(8, dtype=np.float32)


def fn(w, x):
    return x.sum(axis=0) * w["w"].max(), x * 2


def at(place, moved):
    if place is None:
        return {"w": W}, X
    sharding = PLACES[place]
    whole = P() if "cut" in place or place == "explicit" else None
    alike = sharding if whole is None else jax.NamedSharding(sharding.mesh, whole)
    w = jax.device_put(W, sharding if moved == "w" and place != "cut along s" else alike)
    if moved == "w":
        return {"w": w}, X
    return {"w": w if moved == "both" else W}, jax.device_put(X, sharding)


def is_right(got, want):
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(got, want))


bound, bind = [], Binder.bind
Binder.bind = lambda self, call, **seen: bound.append(call) or bind(self, call, **seen)


def seen(moved):
    ex = sx.Exec(fn, (None, "b, s"), buckets={"b": sx.Linear(16), "s": sx.Linear(10)})
    told = {}
    for place in (None, *PLACES):
        args = at(place, moved)
        before = ex.stats.compiles
        why = str(ex.why_new(*args))
        got = ex(*args)
        first = ex.stats.compiles - before
        again = ex(*args)
        told[place or "nowhere"] = {
            "is_right": is_right(got, fn(*at(None, moved))) and is_right(again, got),
            "devices": sorted(str(d) for d in got[0].devices()),
            "wanted": sorted(str(d) for d in jax.jit(fn)(*args)[0].devices()),
            "first": first,
            "again": ex.stats.compiles - before - first,
            "graphs": len(ex.graphs),
            "shardings": ex.graphs[-1].shardings,
            "why": why,
        }
    before, hits = ex.stats.compiles, ex.stats.hits
    bound.clear()
    for place in (None, *PLACES):
        ex(*at(place, moved))
    told["in turns"] = {
        "compiles": ex.stats.compiles - before,
        "hits": ex.stats.hits - hits,
        "bound": len(bound),
    }
    return told


def frozen(moved, warm):
    ran = []

    def watched(w, x):
        jax.debug.callback(lambda: ran.append(1))
        return fn(w, x)

    ex = sx.Exec(watched, (None, "b, s"), buckets={"b": sx.Linear(16), "s": sx.Linear(10)})
    if warm == "call":
        ex(*at(None, moved))
    else:
        ex.warmup(*at("cpu:1", moved), b=12, s=8)
    ex.freeze()
    jax.effects_barrier()
    ran.clear()
    told = {}
    for place in (None, *PLACES):
        before = ex.stats.compiles
        try:
            ex(*at(place, moved))
            error = None
        except sx.FrozenError as caught:
            error = str(caught)
        jax.effects_barrier()
        told[place or "nowhere"] = [error, len(ran), ex.stats.compiles - before]
        ran.clear()
    return told


def padded():
    told = {}
    for place in ("cut by four", "cut along s", "whole", "explicit", "cpu:1"):
        x = jax.device_put(X, PLACES[place])
        for capacity in ((16, 10), (12, 16), (14, 10), (12, 10)):
            made = _transfer.pad(x, capacity)
            zeros = np.zeros(capacity, np.float32)
            zeros[:12, :8] = X
            struct = _transfer.struct_like(x, capacity)
            told[f"{place} {capacity}"] = [
                str(getattr(made.sharding, "spec", made.sharding.device_set)),
                made.sharding == struct.sharding,
                np.array_equal(np.asarray(made), zeros),
            ]
    return told


def mapped():
    ex = sx.Exec(lambda w, x: (x * w.min()).sum(), (None, "s"), buckets=sx.Pow2())
    told = {}
    for place in (None, devices[1], devices[2], None):
        put = (lambda x: x) if place is None else (lambda x: jax.device_put(x, place))
        for name, w, xs in (
            ("examples", W + 1, [put(X[0, :n]) for n in (3, 8, 5)]),
            ("shared", put(W + 1), [X[0, :n] for n in (3, 8, 5)]),
        ):
            before = ex.stats.compiles
            got = ex.map(w, xs)
            first = ex.stats.compiles - before
            again = ex.map(w, xs)
            told.setdefault(name, []).append([
                first,
                ex.stats.compiles - before - first,
                [float(x) for x in got] == [float(X[0, :n].sum()) for n in (3, 8, 5)],
                sorted(map(str, got[0].devices())),
                len(ex.graphs),
            ])
    return told


def shared_is_moved():
    ex = sx.Exec(lambda w, x: jnp.tanh(x @ w).sum(), (None, "b, 4"), buckets=sx.Pow2())
    x = jax.device_put(X[:4, :4], jax.NamedSharding(meshes["auto"], P(None, "d")))
    w = X[:4, :3]
    want = ex(w, x)
    ex.freeze()
    before = ex.stats
    got = ex(jnp.asarray(w), x)  # XLA has cut the rows of w over the devices, and JAX does that
    now = ex.stats
    return [
        bool(got == want),
        now.compiles - before.compiles,
        now.copy_compiles - before.copy_compiles,
    ]


def resident():
    puts, put = [], _compat.device_put
    _compat.device_put = lambda *args: puts.append(args) or put(*args)
    operand, told = np.ones(2, np.int32), {}
    for place, default in ((None, 1), ("cpu:0", 0), ("cpu:1", 0), ("cpu:1", 1), ("cut by four", 0)):
        placement = placement_of([at(place, "x")[1]])
        puts.clear()
        with jax.default_device(devices[default]):
            got = _transfer.resident(operand, placement)
        where = "host" if got is operand else [d.id for d in got.devices()]
        told[f"{place}, by default cpu:{default}"] = [where, len(puts)]
    _compat.device_put = put
    return told


print(json.dumps({
    "resident": resident(),
    "shared is moved": shared_is_moved(),
    "x": seen("x"),
    "w": seen("w"),
    "both": seen("both"),
    "frozen x": frozen("x", "call"),
    "frozen w": frozen("w", "call"),
    "warm w": frozen("w", "warmup"),
    "padded": padded(),
    "mapped": mapped(),
}))
"""


@functools.cache
def seen() -> Any:
    return json.loads(on_devices(4, "-c", PROGRAM).splitlines()[-1])


PLACES = ("nowhere", "cpu:0", "cpu:1", "cut by four", "cut along s", "whole", "explicit")
PLACES += ("cut by two", "cut by others")
MOVED = ("x", "w", "both")  # which arguments stand there: the ragged one, that of spec None
SAME = {("w", "whole")}  # as "cut along s", which only the ragged argument can be


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("moved", MOVED)
def test_results_are_right_and_stand_where_those_of_jit_do(moved, place):
    told = seen()[moved][place]
    assert told["is_right"]
    assert told["devices"] == told["wanted"]


@pytest.mark.parametrize("moved", MOVED)
def test_each_place_has_a_graph_of_its_own_and_is_compiled_once(moved):
    graphs = 0
    for place in PLACES:
        told = seen()[moved][place]
        is_new = (moved, place) not in SAME
        graphs += is_new
        assert (told["first"], told["again"], told["graphs"]) == (is_new, 0, graphs), place
    assert seen()[moved]["in turns"] == {"compiles": 0, "hits": len(PLACES), "bound": 0}


TEXTS = {
    "cpu:1": "cpu:1",
    "cut by four": "P('d',) on d=4 (cpu:0,1,2,3)",
    "cut by two": "P('d',) on d=2 (cpu:0,1)",
    "cut by others": "P('d',) on d=2 (cpu:2,3)",
}


@pytest.mark.parametrize("place", TEXTS)
def test_rows_and_why_new_tell_the_sharding(place):
    for moved, path in (("x", "args[1]"), ("w", "args[0]['w']")):
        told, text = seen()[moved][place], TEXTS[place]
        assert told["shardings"] == {path: text}
        assert told["why"].startswith(f"no graph has {text} as the sharding of {path}; the nearest")


def test_why_new_tells_what_was_not_put_anywhere():
    text = "the sharding of args[1]: not committed, here cpu:0"
    assert seen()["x"]["cpu:0"]["why"].endswith(text)


WARM = {"frozen x": "nowhere", "frozen w": "nowhere", "warm w": "cpu:1"}


@pytest.mark.parametrize(("case", "warm"), WARM.items(), ids=WARM)
def test_frozen_another_place_is_an_error_before_anything_runs(case, warm):
    told = seen()[case]
    for place, (error, runs, compiles) in told.items():
        assert (runs, compiles) == ((1, 0) if place == warm else (0, 0)), place
        assert (error is None) == (place == warm)
        if error is not None:
            assert error.startswith("frozen, and no graph is compiled for b=12 in bucket 16")
            assert "with args such as these; or do not freeze" in error
        if place == "cpu:0":
            assert f"; args[{int(case == 'frozen x')}]" in error
            assert " on cpu:0" in error


def test_frozen_a_program_that_moves_what_is_shared_is_a_copy_and_no_graph():
    is_equal, graphs, copies = seen()["shared is moved"]
    assert is_equal
    assert (graphs, copies > 0) == (0, True)


def test_padding_keeps_the_sharding_along_each_axis_that_its_mesh_divides():
    told = seen()["padded"]
    assert all(is_as_foretold and is_right for _, is_as_foretold, is_right in told.values())
    specs = {case: spec for case, (spec, *_) in told.items()}
    assert specs["cut by four (16, 10)"] == specs["explicit (16, 10)"] == "P('d',)"
    assert specs["cut by four (14, 10)"] == specs["explicit (14, 10)"] == "P(None,)"
    assert specs["cut along s (12, 16)"] == "P(None, 'd')"
    assert specs["cut along s (12, 10)"] == "P(None, None)"
    assert specs["whole (14, 10)"] == "P()"


RESIDENT = {
    "None, by default cpu:1": [[1], 1],
    "cpu:0, by default cpu:0": [[0], 1],
    "cpu:1, by default cpu:0": ["host", 0],
    "cpu:1, by default cpu:1": [[1], 1],
    "cut by four, by default cpu:0": ["host", 0],
}


def test_an_operand_is_put_on_a_device_only_where_the_arguments_stand_on_the_default_one():
    assert seen()["resident"] == RESIDENT


@pytest.mark.parametrize("what", ["examples", "shared"])
def test_a_map_has_graphs_by_place_too(what):
    for first, again, is_right, devices, _ in seen()["mapped"][what]:
        assert again == 0
        assert is_right
        assert first <= 1
        assert len(devices) == 1
    places = [row[3] for row in seen()["mapped"][what]]
    assert places == [["cpu:0"], ["cpu:1"], ["cpu:2"], ["cpu:0"]]
    assert [row[4] for row in seen()["mapped"]["shared"]] == [1, 3, 5, 5]
