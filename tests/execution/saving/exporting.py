"""What tests of exported graphs share: another kind of machine, and graphs saved for it."""

import jax
import pytest

import shapeexec as sx
from shapeexec.execution import _compile
from shapeexec.execution.saving import _fingerprint
from tests.execution.saving.support import SPECS, W, attend, data

pytest.importorskip("flatbuffers")

X = data()
OWN = {**_fingerprint.environment(jax.devices()[0])}
SAME_PROGRAM = {"jaxlib", "back end", "device kind", "processor"}


@pytest.fixture
def on_another(monkeypatch):
    """Makes this machine another one, by the part of the environment that differs."""

    def move(part="processor", text="another"):
        monkeypatch.setattr(_fingerprint, "environment", lambda device: {**OWN, part: text})

    return move


@pytest.fixture
def unmasked(monkeypatch):
    """Fails from then on where a mask is put in."""

    def fail(*args, **kwargs):
        raise AssertionError("a mask was put in")

    return lambda: monkeypatch.setattr(_compile.Recipe, "body", fail)


def exported(directory, fn=attend, args=(W, X), specs=SPECS, **options):
    """Save the graph of a call with its program; the result of the call."""
    run = sx.Exec(fn, specs, **options)
    result = run(*args)
    assert run.save(directory, portable=True) == 1
    return result
