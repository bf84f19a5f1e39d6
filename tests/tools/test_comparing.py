"""`validate` on the command line, and `compare`: what differs is found, and told."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.__main__ import main
from shapeexec.masking import _registry
from shapeexec.tools import compare

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def summed(x):
    return x.sum(axis=1)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (lambda x: summed(x) * 1.01, "the array is 3.0"),
        (lambda x: summed(x)[None], "the array is float32[2] instead of float32[1, 2]"),
        (lambda x: summed(x).astype(jnp.int32), "the array is float32[2] instead of int32[2]"),
        (lambda x: (summed(x),), "PyTreeDef(*) instead of PyTreeDef((*,))"),
        (lambda x: summed(x).reshape(7), "the other alone fails: TypeError"),
    ],
)
@pytest.mark.parametrize("one", [summed, sx.Exec(summed, ("b, s",))], ids=["plain", "Exec"])
def test_what_differs_is_told(one, other, told):
    found = compare(one, other, calls={"b=2": (X,)}, gradients=False, rounds=1)
    assert not found.is_equal
    (row,) = found.rows
    assert row.difference.startswith(told)
    assert "1 of 1 differ" in str(found)


def test_gradients_differ_where_values_do_not():
    def steep(x):
        return summed(x) + (x - jax.lax.stop_gradient(x)).sum(axis=1)

    values, gradients = compare(steep, summed, calls={"x": (X + 1,)}, rounds=1).rows
    assert values.difference is None
    assert gradients.difference.startswith("[0] is ")


def test_rounding_that_the_function_amplifies_is_no_difference():
    def one(x):
        return jnp.sin(1e5 * (x / 3))

    def other(x):
        return jnp.sin(1e5 / 3 * x)

    found = compare(one, other, calls={"x": (X * 1.37,)}, gradients=False, rounds=1)
    assert found.is_equal
    assert found.rows[0].note.startswith("rounding that the function amplifies: ")


def test_integers_have_no_gradients_and_nothing_compared_is_not_equal():
    calls = {"x": (X.astype(np.int32),)}
    values, gradients = compare(summed, summed, calls=calls, rounds=1).rows
    assert values.difference is None
    assert values.speed_up == values.seconds[1] / values.seconds[0]
    assert gradients.note == "not compared: no argument is a float"
    broken = compare(jnp.linalg.inv, jnp.linalg.inv, calls=calls, gradients=False)
    assert broken.rows[0].note.startswith("not compared, for both fail: ValueError")
    assert not broken.is_equal


@pytest.mark.parametrize(
    ("names", "status"),
    [
        ("run", 0),
        ("mean", 0),
        ("other mean", 0),
        ("run other", 0),
        ("wrong run", 1),
        ("narrow mean", 1),
    ],
)
def test_the_command_ends_with_1_where_something_differs(names, status, model, tmp_path, capsys):
    file = tmp_path / "found.json"
    targets = [f"{model}:{name}" for name in names.split()]
    call = ["validate", *targets, "--quick", "--shapes", "s=5,9", "--json", str(file)]
    assert main(call) == status
    told = json.loads(file.read_text())
    assert told["is_equal"] == (status == 0)
    assert [row["sizes"] for row in told["rows"]] == ["b=2, s=5", "b=2, s=9"]
    out = capsys.readouterr().out
    assert out.endswith("all equal\n" if status == 0 else "2 of 2 differ\n")
    assert ("padding changes nothing: " in out) == (len(targets) == 1)


def test_a_mask_that_is_missing_ends_with_1(model, capsys, monkeypatch):
    rule = _registry.RULES["reduce_sum"]
    bare = dataclasses.replace(rule, apply=lambda ctx, x, **how: ctx.bind(x, **how))
    monkeypatch.setitem(_registry.RULES, "reduce_sum", bare)
    assert main(["validate", f"{model}:run", "--quick"]) == 1
    assert "padding changes the result at b=2, s=5" in capsys.readouterr().out


def test_what_fails_by_itself_is_not_told_as_equal(model, capsys):
    text = model.read_text() + "\ndef failing(w, x):\n    raise RuntimeError('no luck')\n"
    model.write_text(text)
    assert main(["validate", f"{model}:failing", "--quick"]) == 1
    out = capsys.readouterr().out
    assert "padding: nothing was compared" in out
    assert "not compared, for both fail: RuntimeError: no luck\n" in out
    assert out.endswith("\nnothing was compared\n")
    assert "all equal" not in out


def test_rounds_are_checked(model, capsys):
    assert main(["validate", f"{model}:run", "--rounds", "0"]) == 2
    assert "--rounds 0 is not >= 1." in capsys.readouterr().err
