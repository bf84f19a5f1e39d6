"""What tests of attention share: a GPU that is not there, and races that fail."""

import pytest

from shapeexec.attention.backends import _device
from shapeexec.attention.backends.mosaic_gpu import _support


@pytest.fixture
def device(monkeypatch):
    """Have a GPU of a compute capability here, and jax 0.11 at least."""

    def put(capability):
        monkeypatch.setattr(_device, "compute_capability", lambda: capability)
        monkeypatch.setattr(_support, "_OLDEST_JAX", (0, 10))

    return put


@pytest.fixture
def no_races(capsys):
    """Fail if Pallas' interpreter found a race (`detect_races=True`): jax 0.11 only prints that."""
    yield
    assert "RACE DETECTED" not in capsys.readouterr().out
