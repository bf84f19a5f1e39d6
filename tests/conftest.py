"""Profiles and devices for all tests."""

import gc
import os
import pathlib
import re
import zlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Pallas' GPU interpreter keeps a thread of XLA's for each warpgroup that waits: with one for each
# of two cores, those that wait leave none to those who are waited for.
os.environ.setdefault("NPROC", "16")
os.environ["SHAPEEXEC_TUNING"] = ""  # tests have the tiles that are built in
# Kernels that a test has changed must not be found by anybody.
os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
if os.environ["JAX_PLATFORMS"] == "cpu" and os.environ.get("HYPOTHESIS_PROFILE") != "deep":
    # XLA's own passes run as ever; LLVM's behind them take a third of the time, and prove nothing.
    # Not --xla_cpu_use_fusion_emitters=false, which halves compiling: other results are NaN then.
    flags = """
        --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true
        --xla_cpu_parallel_codegen_split_count=1
    """
    os.environ.setdefault("XLA_FLAGS", " ".join(flags.split()))

import jax
import pytest
from hypothesis import HealthCheck, settings

from shapeexec.shape import _budget

# Traces are many small objects that stay: Python's default looks through them a tenth of the time.
gc.set_threshold(50_000, 20, 20)

# A first draw may wait for a compiler, and sizes that a ladder has no bucket for are filtered out.
_QUIET = (HealthCheck.too_slow, HealthCheck.filter_too_much)
settings.register_profile(
    "dev",
    max_examples=25,
    deadline=None,
    derandomize=True,  # a test that fails tells of the change; new examples are what `deep` is for
    suppress_health_check=_QUIET,
)
settings.register_profile("deep", max_examples=600, deadline=None, suppress_health_check=_QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

_budget.MOST_SECONDS = 600.0  # on a slow machine a search ends as on any other


SLOW_ROWS = pathlib.Path(__file__).parent / "slow_rows.txt"
"""The ids of table rows that `make test` leaves out, one a line: long, and much like other rows."""


def pytest_addoption(parser):
    parser.addoption("--part", default="0/1", help="K/N: of all tests each N-th one, by their ids")


def pytest_configure(config):
    """Refuse to skip the tests of a GPU where they are asked for."""
    expression = config.getoption("markexpr")
    if re.search(r"(?<!not )\bgpu\b", expression) and os.environ["JAX_PLATFORMS"] == "cpu":
        raise pytest.UsageError(
            f"-m {expression!r}: JAX_PLATFORMS is cpu, the tests' default, so tests of a GPU would"
            " be skipped; set JAX_PLATFORMS=cuda, where there is one"
        )


def pytest_collection_modifyitems(config, items):
    """Mark slow rows, and keep the tests of `--part`.

    Ids that hold an address are refused: pytest-xdist's workers would each collect other tests.
    """
    _mark_slow_rows(config, items)
    with_address = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if with_address:
        raise pytest.UsageError(f"test ids hold addresses, give ids=: {with_address[:3]}")
    part, parts = map(int, config.getoption("--part").split("/"))
    if not 0 <= part < parts:
        raise pytest.UsageError(f"--part={part}/{parts}: K is from 0 to {parts - 1}")
    items[:] = [item for item in items if zlib.crc32(item.nodeid.encode()) % parts == part]


def _mark_slow_rows(config, items):
    by_id = {item.nodeid: item for item in items}
    slow = SLOW_ROWS.read_text("utf-8").splitlines()
    collected = {node.partition("::")[0] for node in by_id}
    missing = [row for row in slow if row not in by_id and row.partition("::")[0] in collected]
    if missing and not any("::" in arg for arg in config.args):  # whole modules were collected
        raise pytest.UsageError(f"{SLOW_ROWS.name} names rows that no table has: {missing[:3]}")
    for row in by_id.keys() & set(slow):
        by_id[row].add_marker(pytest.mark.slow)


@pytest.fixture(scope="module", autouse=True)
def _no_graphs_of_other_modules():
    """JAX keeps compiled programs: without this a worker needs gigabytes, and slows down."""
    yield
    jax.clear_caches()
