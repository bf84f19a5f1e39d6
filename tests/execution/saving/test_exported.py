"""On another kind of machine XLA compiles what was exported; no mask is put in."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from tests.execution.saving.exporting import OWN, SAME_PROGRAM, X, exported, on_another, unmasked
from tests.execution.saving.support import SPECS, W, attend, data, told
from tests.processes import on_devices
from tests.tolerance import assert_close

pytest.importorskip("flatbuffers")

__all__ = ["on_another", "unmasked"]


@pytest.mark.parametrize("name", OWN)
def test_what_only_xla_reads_may_differ(tmp_path, on_another, name):
    exported(tmp_path)
    on_another(name)
    run = sx.load(tmp_path, attend, trusted=True)
    with told() as texts:
        run(W, X)
    may_differ = name in SAME_PROGRAM
    assert (run.stats.loads, run.stats.compiles, run.stats.exports) == (0, 1, int(may_differ))
    assert run.graphs[0].origin == ("exported" if may_differ else "made")
    assert bool(texts) is not may_differ


def test_flags_and_options_of_xla_may_differ(tmp_path, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    exported(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math")
    with told() as texts:
        compiling = sx.Compiling(options={"xla_cpu_enable_fast_math": False})
        run = sx.load(tmp_path, attend, trusted=True, compiling=compiling)
        run(W, X)
    assert run.stats.exports == 1
    assert len(texts) == 1
    assert "options differ from the saved ones: compiling" in texts[0]


@pytest.mark.parametrize(
    ("fn", "options"),
    [(lambda w, x: attend(w, x) + 1, {}), (attend, {"poison": "nan"})],
    ids=["function", "poison"],
)
def test_another_program_is_made_anew(tmp_path, on_another, fn, options):
    exported(tmp_path)
    on_another()
    with told():
        run = sx.load(tmp_path, fn, trusted=True, **options)
        assert_close(run(W, X), fn(W, X))
    assert (run.stats.exports, run.graphs[0].origin) == (0, "made")


def test_a_graph_tells_that_it_was_exported(tmp_path, on_another, unmasked):
    expected = exported(tmp_path)
    on_another()
    unmasked()
    run = sx.load(tmp_path, attend, trusted=True)
    seen = []
    run.on_event(seen.append)
    np.testing.assert_array_equal(run(W, X), expected)
    np.testing.assert_array_equal(run(W, X), expected)
    (row,) = run.graphs
    assert row.seconds.load > 0
    assert row.seconds.mask == 0
    assert [(event.kind, event.graph.origin) for event in seen] == [
        ("compiling", "exported"),
        ("compiled", "exported"),
        ("call", "exported"),
        ("call", "exported"),
    ]
    stats = run.stats
    assert (stats.exports, stats.compiles, stats.misses, stats.hits) == (1, 1, 1, 1)
    assert stats.load_seconds == row.seconds.load
    assert "exported" in str(row)
    jax.clear_caches()
    np.testing.assert_array_equal(run(W, X), expected)


class Pair(NamedTuple):
    one: jax.Array
    other: jax.Array


class Node:
    """A node of trees that `jax.export` cannot write."""

    def __init__(self, x):
        self.x = x


jax.tree_util.register_pytree_node(Node, lambda node: ((node.x,), None), lambda _, xs: Node(*xs))


def ragged(node, x):
    n = x.shape[0]
    return Node(Pair(node.x * (n * (n - 1) / 2), x.astype(jnp.bfloat16)))


def branching(w, x):
    return attend(w, x) * (2 if x.shape[1] > 4 else 3)


def sorted_rows(w, x):
    return jnp.cumsum(x, axis=1)[:, ::-1] * w


def draw(key, x):
    return jax.random.split(key)[0], x + jax.random.normal(key, x.shape)


CASES = {
    "typed keys": (draw, (jax.random.key(3), X[0]), (None, "s, 4")),
    "own nodes and host numbers": (ragged, (Node(W), X[0]), (None, "s, 4")),
    "guards": (branching, (W, X), SPECS),
    "ragged results": (sorted_rows, (W, X), SPECS),
    "a gradient": (
        jax.value_and_grad(lambda w, x: attend(w, x).std()),
        (W, X),
        SPECS,
    ),
    "integers": (lambda x: (x.argmax(0), x.sum(0)), ((9 * X[0]).astype(np.int8),), ("s, 4",)),
}


def bits(x):
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("returns", ["device", "padded"])
def test_results_are_those_of_the_graph_that_was_saved(
    tmp_path, on_another, unmasked, name, returns
):
    fn, args, specs = CASES[name]
    expected = exported(tmp_path, fn, args, specs, returns=returns)
    on_another()
    unmasked()
    run = sx.load(tmp_path, fn, trusted=True)
    for _ in range(2):
        result = run(*args)
        assert jax.tree.structure(result) == jax.tree.structure(expected)
        for one, other in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
            assert (one.dtype, one.committed) == (other.dtype, other.committed)
            np.testing.assert_array_equal(bits(one), bits(other))
    assert (run.stats.exports, run.stats.compiles, run.stats.hits) == (1, 1, 1)


def test_donated_arguments_are_taken(tmp_path, on_another):
    def add(x, y):
        return x + y

    ones = np.ones((8, 4), np.float32)
    exported(tmp_path, add, (jnp.ones((8, 4)), ones), ("s, 4", "s, 4"), donate_argnums=0)
    on_another()
    run = sx.load(tmp_path, add, trusted=True)
    for _ in range(2):
        given = jnp.ones((8, 4))
        np.testing.assert_array_equal(run(given, jnp.ones((8, 4))), 2 * ones)
        assert given.is_deleted()
    assert run.stats.exports == 1


@pytest.mark.parametrize("reduce", [None, "sum"])
def test_maps_are_exported(tmp_path, on_another, reduce):
    def score(w, x):
        return (jax.nn.softmax(x @ w)[:, None] * x).sum()

    examples = [data(1, s)[0] for s in (3, 7, 5)]
    run = sx.Exec(score, (None, "s, 4"))
    expected = run.map(W, examples, reduce=reduce)
    assert run.save(tmp_path, portable=True) == 1
    on_another()
    again = sx.load(tmp_path, score, trusted=True)
    jax.tree.map(np.testing.assert_array_equal, again.map(W, examples, reduce=reduce), expected)
    assert again.stats.exports == 1


def test_constants_may_change(tmp_path, on_another):
    def fn(w, x):
        return attend(w, x) * scale

    scale = 2 * np.ones(4, np.float32)
    exported(tmp_path, fn)
    scale = 3 * np.ones(4, np.float32)
    on_another()
    run = sx.load(tmp_path, fn, trusted=True)
    assert_close(run(W, X), 3 * attend(W, X))
    assert run.stats.exports == 1


def test_each_kind_of_machine_saves_its_own_graph(tmp_path, on_another):
    expected = exported(tmp_path)
    for number in range(3):
        on_another(text=f"machine {number}")
        run = sx.load(tmp_path, attend, trusted=True)
        np.testing.assert_array_equal(run(W, X), expected)
        assert run.graphs[0].origin == "exported"
        assert run.save(tmp_path, portable=True) == 1
        again = sx.load(tmp_path, attend, trusted=True)
        again(W, X)
        assert again.graphs[0].origin == "loaded"
    assert len([*tmp_path.glob("*.exported")]) == 4


def test_saving_anew_for_one_machine_keeps_the_program_for_others(tmp_path, on_another):
    expected = exported(tmp_path)
    (file,) = tmp_path.glob("*.graph")
    file.write_bytes(b"damaged")
    run = sx.load(tmp_path, attend, trusted=True)
    with told():
        run(W, X)
    assert run.save(tmp_path) == 1
    on_another()
    again = sx.load(tmp_path, attend, trusted=True)
    np.testing.assert_array_equal(again(W, X), expected)
    assert again.stats.exports == 1


def test_what_a_loaded_exec_saves_is_portable(tmp_path, on_another):
    exported(tmp_path / "one")
    run = sx.load(tmp_path / "one", attend, trusted=True)
    run(W, X)
    assert run.save(tmp_path / "two", portable=True) == 1
    on_another()
    again = sx.load(tmp_path / "two", attend, trusted=True)
    again(W, X)
    assert again.stats.exports == 1


def test_a_graph_that_was_saved_for_one_machine_is_made_portable(tmp_path, on_another):
    run = sx.Exec(attend, SPECS)
    run(W, X)
    assert run.save(tmp_path) == run.save(tmp_path, portable=True) == 1
    on_another()
    again = sx.load(tmp_path, attend, trusted=True)
    again(W, X)
    assert again.stats.exports == 1


def test_a_quick_graph_is_exported_and_tuned(tmp_path, on_another):
    exported(tmp_path)
    on_another()
    with told():
        run = sx.load(tmp_path, attend, trusted=True, compiling=sx.Compiling(first="quick"))
    run(W, X)
    assert run.stats.exports == 1
    while run.graphs[0].origin != "tuned":
        run(W, X)


def test_a_frozen_exec_compiles_none(tmp_path, on_another):
    exported(tmp_path)
    on_another()
    run = sx.load(tmp_path, attend, trusted=True)
    run.freeze()
    with pytest.raises(sx.FrozenError):
        run(W, X)


SEVERAL = """
import sys
import jax
import numpy as np
import shapeexec as sx
from shapeexec.execution.saving import _fingerprint
from tests.execution.saving.support import SPECS, W, attend, data, told
mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("d",))
places = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d")), jax.devices()[3], None
run = sx.Exec(attend, SPECS)
xs = [data(4, 8) if place is None else jax.device_put(data(4, 8), place) for place in places]
expected = [run(W, x) for x in xs]
with told() as texts:
    assert run.save(sys.argv[1], portable=True) == 3
assert "b=4, s=8: it runs on several devices" in texts[0]
own = {**_fingerprint.environment(jax.devices()[0])}
_fingerprint.environment = lambda device: {**own, "processor": "another"}
again = sx.load(sys.argv[1], attend, trusted=True)
with told():
    for x, wanted in zip(xs, expected, strict=True):
        result = again(W, x)
        np.testing.assert_array_equal(result, wanted)
        assert result.sharding == wanted.sharding
        assert result.committed == wanted.committed
assert [row.origin for row in again.graphs] == ["made", "exported", "exported"]
"""


def test_where_arguments_stand_is_kept(tmp_path):
    on_devices(4, "-c", SEVERAL, str(tmp_path))
