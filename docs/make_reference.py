"""Write docs/reference.md from the docstrings, and docs/primitives.md from the registry of rules.

    python docs/make_reference.py

A test compares both with what is committed.
"""

import dataclasses
import functools
import importlib
import inspect
import pathlib
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import shapeexec as sx
from shapeexec.masking import _registry

DOCS = pathlib.Path(__file__).parent
PROPERTY = property | functools.cached_property
MADE = "<!-- Made by docs/make_reference.py: edit the docstrings. -->"
GROUPS = (
    (
        "Running",
        "",
        (
            "Exec",
            "bucketed",
            "Compiling",
            "CacheLimits",
            "Specs",
            "Padded",
            "Plan",
            "Explanation",
            "Stats",
        ),
    ),
    (
        "Restarts",
        "",
        ("load",),
    ),
    (
        "Watching",
        "",
        ("Event", "prometheus_metrics"),
    ),
    ("Maps", "", ("MapMethod", "MapPlan", "MapExplanation")),
    ("The cache", "", ("Graphs", "GraphRow", "WhyNew")),
    (
        "Analysis and advice",
        "",
        (
            "Analysis",
            "BucketUse",
            "TrafficWindow",
            "Advice",
            "AdviceLine",
            "optimize",
            "Optimized",
            "BucketChange",
        ),
    ),
    (
        "Strategies",
        "",
        (
            "Strategy",
            "Exact",
            "Pow2",
            "Linear",
            "Geometric",
            "Hybrid",
            "Ladder",
            "Aligned",
            "MemoryOptimal",
            "HardwareAware",
            "Adaptive",
        ),
    ),
    (
        "Buckets by cost",
        "",
        ("fit", "Fitted", "FitRow", "CostModel", "Cost", "CostLine", "Speed"),
    ),
    ("By hand", "", ("pad_to_bucket", "unpad", "Sizes")),
    ("Looking at programs", "", ("trace", "Program", "Equation")),
    ("Checking", "", ("validate", "Validation")),
    ("Shapes", "", ("Shape", "Dim", "BATCH", "SEQ_LEN", "UNKNOWN", "eval_shape")),
    (
        "Attention",
        "",
        (
            "dot_product_attention",
            "Full",
            "Causal",
            "SlidingWindow",
            "Global",
            "Dilated",
            "PrefixLM",
            "Documents",
            "MaskFunction",
            "BlockMask",
            "ALiBi",
            "RelativeBias",
        ),
    ),
    ("Attention in Flax", "attention", ("flax_attention_fn", "replace_attention")),
    ("Bucketing, further", "bucketing", ("as_strategy", "check_laws", "checked_bucket", "Custom")),
    (
        "Masking",
        "masking",
        (
            "pad_safe",
            "register",
            "register_nested",
            "register_knowledge",
            "RuleContext",
            "MaskNote",
            "fill",
            "zero",
            "one",
            "lowest",
            "highest",
            "POISONS",
        ),
    ),
    (
        "Tools of the command line",
        "tools",
        (
            "read_target",
            "Target",
            "compare",
            "Comparison",
            "ComparisonRow",
            "doctor",
            "Diagnosis",
            "Finding",
            "read_lengths",
            "plan_lengths",
            "LengthPlan",
            "LengthRow",
            "profile",
            "Profile",
            "ProfileRow",
            "benchmark_shapes",
            "ShapesReport",
            "ClaimRow",
            "benchmark_levels",
            "LevelsReport",
            "ContestRow",
            "benchmark_attention",
            "AttentionReport",
            "tune_attention",
            "TuningReport",
            "TuningRow",
            "soak",
            "SoakReport",
        ),
    ),
    (
        "Shapes, further",
        "shape",
        (
            "Spec",
            "parse_spec",
            "BoundSpec",
            "compile_spec",
            "default_in_shapes",
            "default_kwarg_shapes",
        ),
    ),
    ("Errors", "", tuple(name for name in sx.__all__ if name.endswith("Error"))),
)
_SECTIONS = ("Args", "Returns", "Raises", "Attributes", "Example")
_ENTRY = re.compile(r"(\*{0,2}[\w.]+): (.*)", re.DOTALL)


def reference() -> str:
    """The page of all public names."""
    lines = [MADE, "", "# Reference", ""]
    lines += ["What `import shapeexec as sx` gives, from the docstrings.", ""]
    for title, module, names in GROUPS:
        lines.append(f"- **{title}**: " + ", ".join(_link(_path(module, name)) for name in names))
    for title, module, names in GROUPS:
        lines += ["", f"## {title}"]
        for name in names:
            owner = getattr(sx, module) if module else sx
            lines += ["", *_entry(_path(module, name), getattr(owner, name))]
    return "\n".join(lines) + "\n"


def _path(module: str, name: str) -> str:
    return ".".join(filter(None, ("sx", module, name)))


def _link(path: str) -> str:
    return f"[`{path}`](#{path.lower().replace('.', '')})"


def _entry(path: str, value: Any) -> list[str]:
    value = inspect.unwrap(value)  # a cached function is a function
    lines = [f"### {path}", ""]
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return [*lines, f"`{value!r}`, a `{type(value).__name__}`."]
    is_error = inspect.isclass(value) and issubclass(value, Exception)
    if inspect.isclass(value) and is_error:
        bases = ", ".join(f"`{base.__name__}`" for base in value.__bases__)
        lines += [f"A {bases}.", ""]
    else:
        lines += ["```text", f"{path}{_signature(value)}", "```", ""]
    lines += _docstring(value)
    if inspect.isclass(value) and not is_error:
        for name, member in _members(value):
            call = "" if isinstance(member, PROPERTY) else _signature(member)
            lines += ["", f"#### `.{name}{call}`", "", *_docstring(member)]
    return lines


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    for name, held in _held(cls).items():
        member = held.__func__ if isinstance(held, classmethod) else held
        is_public = name == "__call__" or not name.startswith("_")
        if is_public and (inspect.isfunction(member) or isinstance(member, PROPERTY)):
            yield name, member


def _held(cls: type) -> dict[str, Any]:
    """What a class has, and what `Exec` inherits of a base that has no entry of its own."""
    bases = [base for base in cls.__mro__[1:] if base.__name__ == "Observed"]
    inherited = {name: held for base in bases for name, held in vars(base).items()}
    return {**vars(cls), **{n: held for n, held in inherited.items() if n not in vars(cls)}}


def _signature(value: Any) -> str:
    """Names and defaults: how annotations print depends on the version of Python."""
    signature = inspect.signature(value)
    parameters = [
        parameter.replace(annotation=parameter.empty)
        for name, parameter in signature.parameters.items()
        if name not in ("self", "cls")
    ]
    if dataclasses.is_dataclass(value):  # a default factory has no repr to show
        parameters = [
            parameter.replace(default={}) if "factory" in repr(parameter.default) else parameter
            for parameter in parameters
        ]
    text = str(signature.replace(parameters=parameters, return_annotation=signature.empty))
    return re.sub(r"=<function .*? at 0x\w+>", "=...", text)  # an address is another one each time


def _docstring(value: Any) -> list[str]:
    text = inspect.getdoc(value) or ""
    lines: list[str] = []
    for part in re.split(rf"\n\n(?=(?:{'|'.join(_SECTIONS)}):\n)", text):
        title, _, body = part.partition(":\n")
        if title not in _SECTIONS:
            lines += ["", *part.splitlines()]
        elif title == "Example":
            lines += ["", "```pycon", *textwrap.dedent(body).splitlines(), "```"]
        else:
            lines += ["", f"{title}:", "", *_entries(textwrap.dedent(body))]
    return lines[1:]


def _entries(body: str) -> list[str]:
    """One bullet for each `name: text`; text alone stays text."""
    parts = re.split(r"\n(?=\S)", body)
    if not _ENTRY.fullmatch(parts[0]):
        return body.splitlines()
    bullets = []
    for part in parts:
        found = _ENTRY.fullmatch(part)
        assert found, part
        bullets.append(f"- `{found[1]}`: " + " ".join(found[2].split()))
    return bullets


def primitives() -> str:
    """The page of all rules."""
    lines = [MADE, "", "# Primitives", ""]
    lines += [
        "For each JAX primitive that may have a padded axis: is it exact there, and by which",
        "rule? A refused one raises `UnsupportedPrimitiveError`, but only if one of its axes is",
        "padded: otherwise it needs no rule. [concepts.md](concepts.md) explains the kinds. A test",
        "checks that every primitive of JAX is on this page.",
        "",
        "| kind | what the rule does about padding |",
        "| --- | --- |",
    ]
    lines += [f"| {kind} | {text} |" for kind, text in _kinds()]
    by_module: dict[str, dict[int, list[str]]] = {}
    for name, rule in _registry.RULES.items():
        rules = by_module.setdefault(rule.apply.__module__, {})
        rules.setdefault(id(rule.apply), []).append(name)
    for module in sorted(name for name in by_module if name.startswith("shapeexec.")):
        title = (inspect.getdoc(importlib.import_module(module)) or "").splitlines()[0]
        lines += ["", f"## {module.rpartition('.')[2]}", "", title, ""]
        lines += ["| primitives | status | kind | rule |", "| --- | --- | --- | --- |"]
        for names in by_module[module].values():
            rule = _registry.RULES[names[0]]
            status = _registry.status(names[0])
            lines.append(f"| {_quoted(names)} | {status} | {rule.kind} | {rule.summary} |")
    lines += [
        "",
        "## Calls",
        "",
        "These wrap a function, which is interpreted in place: exact.",
        "",
    ]
    lines += [_quoted(_registry.NESTED) + "."]
    lines += ["", "## Errors", "", "These have no rule.", ""]
    lines += ["| primitives | why |", "| --- | --- |"]
    by_reason: dict[str, list[str]] = {}
    for name, reason in _registry.REFUSALS.items():
        by_reason.setdefault(reason, []).append(name)
    lines += [f"| {_quoted(names)} | {reason} |" for reason, names in by_reason.items()]
    lines += ["", "So have those of the inside of a Pallas kernel, for `pallas_call` has none."]
    return "\n".join(lines) + "\n"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _kinds() -> list[tuple[str, str]]:
    return [
        ("Keep", "nothing: each element reads its own position only"),
        ("Fill", "it overwrites padding that would be read"),
        ("Move", "it puts elements at their place in the logical shape"),
        ("Run", "it interprets the functions inside"),
        ("Refuse", "it raises where the axis is padded"),
    ]


PAGES = {"reference.md": reference, "primitives.md": primitives}

if __name__ == "__main__":
    for page, make in PAGES.items():
        (DOCS / page).write_text(make(), encoding="utf-8")
