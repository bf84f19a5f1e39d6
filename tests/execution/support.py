"""What tests of Exec share: counting compilations, and comparing with the plain function."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import shapeexec as sx
from shapeexec import _compat
from tests.tolerance import FEW, assert_close

_events: list[str] = []
jax.monitoring.register_event_duration_secs_listener(lambda name, _, **__: _events.append(name))


class Count:
    """How many compilations a block took, known when it is over."""

    compilations = -1


@contextlib.contextmanager
def counted() -> Iterator[Count]:
    """Count XLA compilations, whoever asks for them."""
    count = Count()
    before = _events.count(_compat.COMPILE_EVENT)
    yield count
    count.compilations = _events.count(_compat.COMPILE_EVENT) - before


def ones(*shape: int) -> np.ndarray:
    """NumPy data that tells positions apart: 1, 2, 3, ..."""
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


def batch(size: int, width: int = 3) -> np.ndarray:
    return np.random.default_rng(size).normal(size=(size, width)).astype(np.float32)


def identity(x: Any) -> Any:
    return x


def assert_same(actual: Any, expected: Any) -> None:
    """Equal trees of arrays of equal shapes, dtypes, weak types and values, and of other leaves."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for got, want in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        if hasattr(want, "dtype"):
            assert getattr(got, "weak_type", False) == getattr(want, "weak_type", False)
            assert_close(got, want, loose=FEW)
        else:
            assert type(got) is type(want)
            assert got == want


def assert_runs_as(fn: Callable[..., Any], ex: sx.Exec, *args: Any, **kwargs: Any) -> Any:
    """`ex` gives what the unpadded function gives; returns it."""
    actual = ex(*args, **kwargs)
    numbers, names = ex.settings.static_argnums, ex.settings.static_argnames
    plain = jax.jit(fn, static_argnums=numbers or None, static_argnames=names or None)
    assert_same(actual, plain(*args, **kwargs))
    return actual


def wait_for(event: threading.Event) -> None:
    """Wait until another thread has come somewhere."""
    if not event.wait(60):
        pytest.fail("no thread came here within a minute")


def until(is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds that other threads bring about; a test that hangs fails."""
    last = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < last, "this did not happen in 120 s"
        time.sleep(0.001)


@contextlib.contextmanager
def refused(kind: type[sx.ShapeExecError], what: str, fix: str) -> Iterator[Any]:
    """An error of this kind, whose first line and Fix line hold these strings."""
    with pytest.raises(kind) as caught:
        yield caught
    first, *_, last = str(caught.value).splitlines()
    assert what in first
    assert last.startswith("  Fix:")
    assert fix in last
