"""What goes around tests of libraries."""

import pytest


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind each operation of an `Exec` padding is NaN."""
    monkeypatch.setenv("SHAPEEXEC_POISON", "nan")
