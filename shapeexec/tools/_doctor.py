"""`python -m shapeexec doctor`: whether this machine runs shapeexec, and as fast as it could.

It looks, tries one small function, and changes nothing. What a back end refuses, it says itself.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import argparse
import collections
import dataclasses
import importlib.util
import os
import re
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec import attention
from shapeexec._errors import BackendError, ShapeExecError
from shapeexec.attention.backends._registry import IMPLEMENTATIONS
from shapeexec.bucketing import Linear
from shapeexec.execution import Exec
from shapeexec.tools import _output
from shapeexec.tools._machine import machine
from shapeexec.tools._validate import validate

State = Literal["ok", "note", "bad"]

_OPTIONAL = {
    "rich": "tables and progress bars",
    "matplotlib": "plots",
    "flatbuffers": "save(portable=True)",
    "prometheus_client": "metrics",
}
_VARIABLES = {
    "XLA_FLAGS": "XLA's flags name graphs, too: saved ones fit where they are the same",
    "SHAPEEXEC_POISON": "all padding is poisoned, which takes time; unset it outside of tests",
    "JAX_DISABLE_JIT": "nothing is compiled; unset it",
}
_SHOWN = {"ok": "ok  ", "note": "note", "bad": "BAD "}


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        about: The subject of the check: `jax`, `attention: triton`.
        state: `"ok"`; `"note"`, which is worth knowing; or `"bad"`, which should be mended.
        text: What was found.
        fix: What to do; empty: nothing.

    Example:
        >>> print(Finding("jax", "ok", "0.11.0"))
        ok    jax: 0.11.0
    """

    about: str
    state: State
    text: str
    fix: str = ""

    def __str__(self) -> str:
        fix = f"\n        Fix: {self.fix}" if self.fix else ""
        return f"{_SHOWN[self.state]}  {self.about}: {self.text}{fix}"


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """All that was found; `print` it.

    Attributes:
        findings: In the order in which they were looked for.

    Example:
        >>> Diagnosis((Finding("jax", "ok", "0.11.0"),)).is_well
        True
    """

    findings: tuple[Finding, ...]

    @property
    def is_well(self) -> bool:
        """Whether nothing is bad."""
        return all(finding.state != "bad" for finding in self.findings)

    def __str__(self) -> str:
        bad = sum(finding.state == "bad" for finding in self.findings)
        end = "all is well" if self.is_well else f"{bad} to be mended"
        return "\n".join((*map(str, self.findings), end))

    def to_dict(self) -> dict[str, Any]:
        """Return all findings, as JSON has them."""
        rows = [dataclasses.asdict(finding) for finding in self.findings]
        return {"is_well": self.is_well, "findings": rows}


def doctor() -> Diagnosis:
    """Check versions, devices, caches and back ends of attention, and run a test of ten seconds.

    The test validates a small function: values and gradients, at sizes that it chooses, with
    padding that holds NaN, infinities and garbage.

    Returns:
        The findings.

    Example:
        >>> diagnosis = doctor()  # doctest: +SKIP
        >>> diagnosis.is_well  # doctest: +SKIP
        True
    """
    looks = (_versions, _devices, _packages, _environment, _cache, _attention, _self_test)
    return Diagnosis(tuple(finding for look in looks for finding in look()))


def _versions() -> Iterator[Finding]:
    here = machine()
    yield Finding("shapeexec", "ok", f"{here['shapeexec']}, Python {here['python']}")
    wanted = next(filter(None, map(_bounds, metadata.requires("shapeexec") or ())), None)
    is_known = wanted is None or wanted[0] <= _number(here["jax"]) < wanted[1]
    text = f"{here['jax']}, jaxlib {here['jaxlib']}, NumPy {here['numpy']}"
    if is_known:
        yield Finding("jax", "ok", text)
        return
    least, end = (".".join(map(str, bound)) for bound in wanted or ())
    yield Finding("jax", "bad", f"{text} is not supported", f"pip install 'jax>={least},<{end}'")


def _bounds(requirement: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The versions of jax that a requirement allows, from one to below another."""
    name, *_ = re.split(r"[\s<>=!~;\[(]", requirement, maxsplit=1)
    least, end = (re.search(rf"{op}\s*([\d.]+)", requirement) for op in (">=", "<(?!=)"))
    if name != "jax" or least is None or end is None:
        return None
    return _number(least[1]), _number(end[1])


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def _devices() -> Iterator[Finding]:
    devices = cast(list[Any], jax.devices())
    kinds = collections.Counter[str](device.device_kind for device in devices)
    counted = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    text = f"{counted} ({jax.default_backend()}), {machine()['cores']} cores"
    yield Finding("devices", "ok", text)


def _packages() -> Iterator[Finding]:
    missing = {name: for_ for name, for_ in _OPTIONAL.items() if not importlib.util.find_spec(name)}
    if not missing:
        yield Finding("optional packages", "ok", ", ".join(_OPTIONAL))
    for name, for_ in missing.items():
        yield Finding(name, "note", f"not installed: no {for_}", f"pip install {name}")


def _environment() -> Iterator[Finding]:
    for name, why in _VARIABLES.items():
        if os.environ.get(name):
            yield Finding(name, "note", f"{os.environ[name]}: {why}")
    if bool(_setting("jax_enable_x64")):
        yield Finding("jax_enable_x64", "note", "64-bit dtypes are on")


def _cache() -> Iterator[Finding]:
    directory: str | None = _setting("jax_compilation_cache_dir")
    if not directory:
        yield Finding(
            "JAX's compilation cache",
            "note",
            "off: each process compiles anew",
            "run.save(directory) and sx.load, or JAX_COMPILATION_CACHE_DIR=directory",
        )
        return
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        yield Finding("JAX's compilation cache", "bad", str(error), "a directory to write to")
    else:
        yield Finding("JAX's compilation cache", "ok", directory)


def _setting(name: str) -> Any:
    return getattr(cast(Any, jax.config), name)


def _attention() -> Iterator[Finding]:
    x = jax.ShapeDtypeStruct((1, 256, 2, 64), jnp.bfloat16)
    for name in IMPLEMENTATIONS:

        def attend(x: Any, name: Any = name) -> Any:
            return attention.dot_product_attention(x, x, x, is_causal=True, implementation=name)

        try:
            jax.jit(attend).lower(x)
        except BackendError as error:
            why = error.reasons.get(name, str(error))
            yield Finding(f"attention: {name}", "note", f"not here: {why}")
        else:
            yield Finding(f"attention: {name}", "ok", "runs")


def _self_test() -> Iterator[Finding]:
    def attend(w: Any, x: Any) -> Any:
        return (jax.nn.softmax(x @ w, axis=1)[..., None] * x).sum(axis=1)

    run = Exec(attend, (None, "b, s, 4"), buckets={"b": 2, "s": Linear(8)})
    x = np.random.default_rng(0).normal(size=(3, 11, 4)).astype(np.float32)
    start = time.perf_counter()
    try:
        report = str(validate(run, np.ones(4, np.float32), x, rounds=1))
    except ShapeExecError as error:
        text, fix = str(error), "please report it: this is a bug, of shapeexec, jax or XLA"
        yield Finding("self-test", "bad", text, fix)
    else:
        yield Finding("self-test", "ok", f"{report}, in {time.perf_counter() - start:.1f} s")


def add_command(tools: Any) -> None:
    """Add `doctor` to the tools of the command line.

    Args:
        tools: What `argparse.ArgumentParser.add_subparsers` returns.
    """
    text = "Check versions, devices, caches and attention's back ends, and run a short test."
    parser = tools.add_parser("doctor", help="whether all is well here", description=text)
    _output.add_json(parser, "all findings")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    _output.check(options)
    diagnosis = doctor()
    print(diagnosis)
    _output.write(options, diagnosis.to_dict())
    return 0 if diagnosis.is_well else 1
