"""The name of a saved graph: a digest of everything that determines the program XLA makes.

It is computed before any mask is put in, because masks follow from the trace and the buckets.
`_content` encodes traces; this module adds the rest.
"""

import dataclasses
import functools
import hashlib
import json
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from shapeexec import _compat
from shapeexec._identity import versions
from shapeexec.execution._compile import Outline
from shapeexec.execution._weak_table import WeakTable
from shapeexec.execution.saving._content import digest, digest_of_program
from shapeexec.shape import _trees
from shapeexec.shape._trace import Trace

_SHOWN = bool | int | str | None  # types whose strings a reader knows

Parts = Mapping[str, Mapping[str, str]]
"""By group (`environment`, `settings`, `graph`) the parts of a fingerprint, by name, as strings."""

_OF_XLA: Mapping[str, frozenset[str]] = {
    "environment": frozenset(("jaxlib", "back end", "device kind", "processor")),
    "settings": frozenset(_compat.XLA_VARIABLES),
    "graph": frozenset(("options",)),
}
"""The parts that change what XLA makes of a program, and not the program.

The version of jaxlib is among them, because a version of JAX accepts only those that read what it
exports. The version of JAX is not, because the digest of a trace has functions of JAX by name.
"""


def parts_of(
    outline: Outline, options: Mapping[str, Any], *, constraints: tuple[Any, ...]
) -> Parts:
    """Everything that determines the program XLA makes, by name, so that differences can be named.

    Args:
        outline: What the graph is made from.
        options: XLA's options.
        constraints: The constraints on the sizes; a trace may rely on them.

    Raises:
        UnsaveableError: A part cannot be identified in another process.
    """
    deviating = _compat.deviating_settings(outline.config)
    settings = {name: _setting_text(held) for name, held in deviating.items()}
    return {
        "environment": environment(device_of(outline)),
        "settings": {**outline.settings, **{f"{name} here": x for name, x in settings.items()}},
        "graph": {
            "function": _function(outline.recipe.trace),
            "guards": _guards(outline.recipe.trace),
            "constraints": digest(sorted(map(str, constraints))),
            "arguments": _arguments(outline),
            **_recipe(outline.recipe),
            "options": digest(dict(options)),
        },
    }


def _setting_text(setting: Any) -> str:
    """A setting of JAX as a unique text, readable if a warning can show it."""
    return repr(setting) if isinstance(setting, _SHOWN) else digest(setting)


def fingerprint(parts: Parts) -> str:
    """The name of a graph: 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def exported_name(parts: Parts) -> str:
    """The name of a graph before XLA compiles it: the parts that determine its program."""
    return fingerprint(
        {
            group: {
                name: text for name, text in named.items() if name not in _OF_XLA.get(group, ())
            }
            for group, named in parts.items()
        }
    )


@WeakTable
def _function(trace: Trace) -> str:
    """The digest of a traced function, computed once for all its buckets."""
    # The arrays that it closes over are arguments of the graph.
    return digest_of_program(trace.jaxpr.jaxpr, [array_type(x) for x in trace.jaxpr.consts])


def _guards(trace: Trace) -> str:
    """The digest of the assumptions of a trace about the sizes."""
    replaced = (trace.substitution.inner, trace.substitution.outer)
    dims = [{name: dim.text for name, dim in each.items()} for each in replaced]
    guards = [(str(guard), bool(getattr(guard, "splits", False))) for guard in trace.guards]
    return digest((dims, guards, sorted(trace.symbols)))


def array_type(array: Any) -> tuple[Any, ...]:
    """The type of an array: everything but its values."""
    aval = jax.typeof(array)
    weak = bool(getattr(aval, "weak_type", False))
    return aval.shape, aval.dtype, weak, _compat.committed_sharding(array)


def _arguments(outline: Outline) -> str:
    leaves = _trees.leaves((outline.sizes, outline.kwargs, outline.args))
    types = [(x.shape, x.dtype, bool(x.weak_type), x.sharding) for x in leaves]
    each = [len(_trees.leaves(arg)) for arg in outline.args]
    return digest((types, each, outline.donated))


def _recipe(recipe: Any) -> dict[str, str]:
    """The digests of all fields of a recipe, except its trace."""
    own = {field.name: getattr(recipe, field.name) for field in dataclasses.fields(recipe)}
    del own["trace"], own["trace_seconds"]
    own["kind"] = type(recipe).__name__
    own["numbers"] = [(x.dtype, x.shape, x.via, str(x)) for x in recipe.numbers.operands]
    del own["donate"]  # it stands with the arguments
    return {name: digest(value) for name, value in own.items()}


def device_of(outline: Outline) -> Any:
    """The first device of a graph."""
    leaves = _trees.leaves((outline.kwargs, outline.args))
    placed = [leaf.sharding for leaf in leaves if leaf.sharding is not None]
    devices = sorted(placed[0].device_set, key=lambda device: device.id) if placed else []
    return devices[0] if devices else _compat.default_device()


@functools.cache
def environment(device: Any) -> Mapping[str, str]:
    """The versions, the sources of this library, and the machine of a device."""
    return {
        **versions(),
        "Python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "platform": device.platform,
        "back end": device.client.platform_version,
        "device kind": device.device_kind,
        "processor": _processor() if device.platform == "cpu" else "",
    }


def _processor() -> str:
    """A digest of the CPU that code is compiled for: its model and its instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:  # no Linux
        lines = []
    named = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    text = "\n".join([platform.machine(), platform.processor(), *sorted(named)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
