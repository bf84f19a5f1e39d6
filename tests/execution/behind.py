"""What tests of graphs that are made in workers share: holding a worker, and waiting for it."""

import threading

import pytest

from shapeexec.execution import _making
from tests.execution.support import wait_for

NAME = "shapeexec"


class Gate:
    """Compilations in workers wait until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.compiled_in: list[str] = []

    def compile(self, prepared, row, **given):
        thread = threading.current_thread().name
        self.compiled_in.append(thread)
        if thread == NAME:
            self.reached.set()
            wait_for(self.opened)
        return _compile(prepared, row, **given)

    def settle(self) -> None:
        """Open it, and wait until no worker is left."""
        self.opened.set()
        join_workers()


_compile = _making.compile_graph


def join_workers() -> None:
    """Wait until no worker is left."""
    while workers := [t for t in threading.enumerate() if t.name == NAME]:
        for thread in workers:
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture
def gate(monkeypatch):
    made = Gate()
    monkeypatch.setattr(_making, "compile_graph", made.compile)
    yield made
    made.settle()
