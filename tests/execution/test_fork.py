"""A process that is forked waits for no thread of its parent."""

import os
import subprocess
import sys
import textwrap

import pytest

HEAD = """
import os
import sys
import threading
import warnings

import numpy as np

import shapeexec as sx

warnings.filterwarnings("ignore", "os.fork")  # JAX's own, where it runs already


def in_child(check):
    child = os.fork()
    if child == 0:
        os._exit(0 if check() else 3)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status))


ones = lambda size: np.ones(size, np.float32)
"""

UNUSED = """
run = sx.Exec(lambda x: x.sum(), ("s",))
in_child(lambda: run(ones(5)) == 5 and run.stats.compiles == 1)
print(int(run(ones(6))), run.stats.compiles)
"""

TRACING = """
begun, may_end = threading.Event(), threading.Event()


def slow(x):
    if threading.current_thread() is not threading.main_thread() and not begun.is_set():
        begun.set()
        assert may_end.wait(60)
    return x.sum()


run = sx.Exec(slow, ("s",), check="off")
other = threading.Thread(target=lambda: print(int(run(ones(6)))))
other.start()
assert begun.wait(60)
in_child(lambda: run.plan(ones(5)).buckets == {"s": 8})
may_end.set()
other.join()
print(int(run(ones(7))), run.stats.compiles)
"""

CALLED = """
run = sx.Exec(lambda x: x.sum(), ("s",))
run(ones(5))


def check():
    try:
        run(ones(9))
    except sx.ConfigError as error:
        print(error.what, error.fix, sep="; ", flush=True)
        return run.plan(ones(9)).buckets == {"s": 16} and run.cache_size == 1


in_child(check)
print(int(run(ones(9))), run.stats.compiles)
"""

SAVED = """
import tempfile

import jax.numpy as jnp

run = sx.Exec(jnp.sum, ("s",))
run(ones(5))
directory = tempfile.mkdtemp()
print(run.save(directory), flush=True)


def refused(use):
    try:
        use()
    except sx.ConfigError as error:
        print(error.what, flush=True)
        return True
    return False


again = sx.load(directory, jnp.sum, trusted=True)
in_child(lambda: refused(lambda: again(ones(6))))
in_child(lambda: refused(lambda: run.save(tempfile.mkdtemp())))
in_child(lambda: run.save(directory) == 1)
print(int(again(ones(6))), again.stats.loads)
"""

MAKING = """
from shapeexec.execution._behind import Behind
from shapeexec.execution._cache import CacheLimits, GraphCache


class Entry:
    device_bytes = 0


def make():
    begun.set()
    assert may_end.wait(60)
    return Entry()


begun, may_end = threading.Event(), threading.Event()
cache, behind = GraphCache(CacheLimits()), Behind()
behind.begin("k", lambda: cache.get("k", make), drop=lambda: None, what="it", fix="none")
behind.begin("waits", make, drop=lambda: None, what="it", fix="none")
assert begun.wait(60)


def check():
    assert not behind.makes("k") and not behind.makes("waits")
    done = threading.Event()
    behind.begin("new", done.set, drop=lambda: None, what="it", fix="none")
    assert done.wait(60)
    return isinstance(cache.get("k", Entry), Entry)


in_child(check)
may_end.set()
print(isinstance(cache.get("k", Entry), Entry), len(cache))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.parametrize(
    ("program", "printed"),
    [
        pytest.param(UNUSED, "0 6 1", id="an Exec that was made and not called"),
        pytest.param(TRACING, "0 6 7 1", id="while another thread traces"),
        pytest.param(
            CALLED,
            "a graph for s=16 cannot be made in a process that was forked after JAX had "
            'started.; multiprocessing.get_context("spawn"), or fork before the first call of JAX '
            "0 9 2",
            id="that needs a graph after JAX has started",
        ),
        pytest.param(
            SAVED,
            "1 a graph for s=8 cannot be made in a process that was forked after JAX had started. "
            "0 what is saved of s=8 cannot be made in a process that was forked after JAX had "
            "started. 0 0 6 1",
            id="that loads or saves a graph after JAX has started",
        ),
        pytest.param(MAKING, "0 True 1", id="while a worker makes a graph"),
    ],
)
def test_a_child_makes_what_threads_of_its_parent_were_making(program, printed):
    done = subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stdout.split()) == (0, printed.split()), done.stderr
