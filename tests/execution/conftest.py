"""Fixtures that tests of Exec share."""

import pytest

from shapeexec.execution import _transfer


@pytest.fixture(params=["host", "device"])
def place(request, monkeypatch):
    """Where data is: in memory that NumPy sees, or as on an accelerator."""
    if request.param == "device":
        monkeypatch.setattr(_transfer, "_is_on_host", lambda x: False)
    return request.param
