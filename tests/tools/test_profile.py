"""`profile`: each bucket's calls, times and operations, and a page that tells them."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.__main__ import main
from shapeexec.execution._row import GraphSeconds
from shapeexec.tools import Profile, ProfileRow, profile
from shapeexec.tools.profiling import _plot
from shapeexec.tools.profiling._traces import sources


def test_calls_are_grouped_by_bucket_and_operations_are_named(tmp_path):
    run = sx.Exec(lambda x: jnp.sort(x, axis=1).sum(axis=1), ("b, s",), buckets={"b": 2, "s": 8})
    calls = [(np.ones((2, size), np.float32),) for size in (5, 9, 6)]
    found = profile(run, calls, directory=tmp_path, rounds=2)
    assert [(row.bucket, row.calls) for row in found.rows] == [("b=2, s=8", 2), ("b=2, s=16", 1)]
    first = found.rows[0]
    assert first.waste == pytest.approx(1 - 11 / 16)
    assert first.making.compile > 0
    assert first.seconds > 0
    assert any("sort" in name for name, _ in first.operations)
    assert list((tmp_path / first.trace).rglob("*.xplane.pb"))
    assert run.cache_size == 0


def test_what_is_slow_is_told():
    making = GraphSeconds(trace=0.5, compile=3.0)
    rows = (
        ProfileRow("s=8", 3, 0.5, making, 0.1, (("sort.0 (sort)", 0.25),), "x"),
        ProfileRow("s=16", 1, 0.5, GraphSeconds(mask=0.1), 0.45, (), "y"),
    )
    found = Profile(rows, "folder")
    assert found.slow == (
        "calls: 75% of their time in s=8, 500 ms each",
        "operations: in s=8 sort.0 (sort) takes most, 250 ms a call",
        "making graphs: 3.5 s for s=8, the time of 7 of its calls; compile took 3 s of it",
        "padding: 45% of what runs in s=16",
    )
    page = found.to_markdown()
    assert "| s=16 | 1 | 100 ms |" in page
    assert "- `sort.0 (sort)`: 250 ms" in page


def test_the_parts_that_are_drawn_add_up_to_the_whole():
    made = [GraphSeconds(trace=0.5, check=4.0, compile=3.0), GraphSeconds(mask=0.1, compile=2.0)]
    parts = _plot.making(made)
    assert list(parts) == ["trace", "mask", "compile", "check, after that"]
    assert sum(parts.values()).tolist() == [one.total for one in made] == [4.5, 2.1]
    assert all(took.tolist() == [0.0] for took in _plot.making([GraphSeconds()]).values())


def test_operations_are_named_by_the_primitives_that_they_are_for():
    hlo = """
      ROOT %sort.3 = f32[8] sort(%x), metadata={op_name="jit(f)/jit(main)/sort" id=7}
      add.1 = f32[] add(a, b), metadata={op_name="reduce_sum"}
      %bare = f32[] negate(%x)
    """
    assert sources(hlo) == {"sort.3": "sort", "add.1": "reduce_sum"}


def test_the_command_writes_a_page_and_traces(model, tmp_path, capsys):
    folder, file = tmp_path / "out", tmp_path / "profile.json"
    call = ["profile", f"{model}:run", "--shapes", "s=5,9", "--quick", "--json", str(file)]
    plot = tmp_path / "profile.png"
    assert main([*call, "--directory", str(folder), "--plot", str(plot)]) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert f"page: {folder / 'profile.md'}" in capsys.readouterr().out
    assert (folder / "profile.md").read_text().startswith("# Profile\n\n| bucket | calls |")
    rows = json.loads(file.read_text())["rows"]
    assert [row["bucket"] for row in rows] == ["b=2, s=8", "b=2, s=16"]


def test_what_cannot_be_profiled_is_refused(model, tmp_path, capsys):
    with pytest.raises(sx.ConfigError, match="calls=0, rounds=5: nothing would run"):
        profile(sx.Exec(jnp.sum), [], directory=tmp_path)
    (tmp_path / "file").touch()
    assert main(["profile", f"{model}:run", "--directory", str(tmp_path / "file")]) == 2
    assert "cannot be made: " in capsys.readouterr().err
