"""Random programs: made from a seed, run as text, printed as they are."""

import dataclasses
import math
import random
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from tests.fuzzing.sizes import attempt, pooled, strided
from tests.fuzzing.templates import FAMILIES

# Two sets of sizes without a common size: arrays that have equal shapes at both are equally shaped.
_SIZES = ({"b": 3, "s": 5, "t": 7}, {"b": 2, "s": 9, "t": 11})
_SPECS = (
    *("b, s", "b, s", "s, 4", "s, 4", "b, s, 3", "s", "s", "b", "t", "b, t", "t, s", "s, s"),
    *("2*s", "s + 1", "b, 4, s", "2, 3"),
)
_INDICES = ("s", "s", "b, s", "b", "3", "t")
_TRIES = 400
_SCOPE = {"jax": jax, "jnp": jnp, "np": np, "math": math}
_SCOPE |= {"attempt": attempt, "pooled": pooled, "strided": strided}
_MOST_ELEMENTS = 4000


@dataclasses.dataclass(frozen=True)
class Input:
    """One argument.

    Attributes:
        name: How steps call it.
        spec: Its shape.
        kind: `f`: floats; `i`: integers, out of bounds and negative ones too.
    """

    name: str
    spec: str
    kind: str


@dataclasses.dataclass(frozen=True)
class Step:
    """One line.

    Attributes:
        name: What it defines.
        text: The expression.
    """

    name: str
    text: str

    @property
    def used(self) -> frozenset[str]:
        """The values it reads."""
        words = "".join(c if c.isalnum() or c == "_" else " " for c in self.text).split()
        return frozenset(word for word in words if word[0] in "xv" and word[1:].isdigit())


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of ragged arrays, and how it is called.

    Attributes:
        inputs: Its arguments.
        steps: Its lines.
        outputs: What it returns.
        sizes: The sizes of the first call.
        seed: Of the data.
        special: Whether the data hold ties, infinities and NaN.
    """

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    sizes: Mapping[str, int]
    seed: int
    special: bool

    @property
    def source(self) -> str:
        """The function as text."""
        arguments = ", ".join(one.name for one in self.inputs)
        lines = [f"    {step.name} = {step.text}" for step in self.steps]
        result = f"    return {', '.join(self.outputs)},"
        return "\n".join([f"def program({arguments}):", *lines, result])

    @property
    def in_shapes(self) -> tuple[str, ...]:
        """The specs of its arguments."""
        return tuple(one.spec for one in self.inputs)

    def function(self) -> Callable[..., Any]:
        """The function."""
        scope: dict[str, Any] = dict(_SCOPE)
        exec(compile(self.source, "program.py", "exec"), scope)
        return scope["program"]

    def arguments(self) -> list[np.ndarray]:
        """The data of the first call."""
        rng = np.random.default_rng(self.seed)
        return [_data(one, self.sizes, rng, self.special) for one in self.inputs]

    def __str__(self) -> str:
        data = f"seed {self.seed}{', with ties, infinities and NaN' if self.special else ''}"
        return f"{self.source}\n\n# in_shapes={self.in_shapes}, first at {dict(self.sizes)}, {data}"


def _shape(spec: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    dims = [int(d) if d.strip().isdigit() else sx.Dim(d.strip()) for d in spec.split(",")]
    return tuple(d if isinstance(d, int) else d.evaluate(**sizes) for d in dims)


def _data(
    one: Input, sizes: Mapping[str, int], rng: np.random.Generator, special: bool
) -> np.ndarray:
    shape = _shape(one.spec, sizes)
    if one.kind == "i":
        return rng.integers(-3, 12, shape).astype(np.int32)
    x = rng.normal(size=shape).astype(np.float32)
    if not special:
        return x
    x = np.round(x)
    odd = rng.choice(np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32), shape)
    return np.where(rng.random(shape) < 0.1, odd, x).astype(np.float32)


Shapes = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class _Value:
    """A value that steps may use: its shape at each set of sizes, and its kind of dtype."""

    name: str
    shapes: Shapes
    kind: str


def make_program(seed: int, fewest: int = 10, most: int = 20) -> Program:
    """The program of a seed.

    Args:
        seed: Programs of equal seeds are equal.
        fewest: How many steps it has at least.
        most: And at most.
    """
    rng = random.Random(seed)
    inputs = [Input(f"x{i}", rng.choice(_SPECS), "f") for i in range(rng.randint(2, 3))]
    inputs += [Input(f"x{len(inputs)}", rng.choice(_INDICES), "i")]
    pool = [
        _Value(one.name, tuple(_shape(one.spec, sizes) for sizes in _SIZES), one.kind)
        for one in inputs
    ]
    steps: list[Step] = []
    wanted = rng.randint(fewest, most)
    for _ in range(_TRIES):
        if len(steps) == wanted:
            break
        made = _step(rng, f"v{len(steps)}", pool)
        if made is not None:
            step, value = made
            steps.append(step)
            pool.append(value)
    used = {name for step in steps for name in step.used}
    outputs = tuple(step.name for step in steps if step.name not in used)
    return Program(
        inputs=tuple(one for one in inputs if one.name in used),
        steps=tuple(steps),
        outputs=outputs,
        sizes={symbol: rng.randint(2, 9) for symbol in "bst"},
        seed=seed,
        special=rng.random() < 0.2,
    )


def _step(rng: random.Random, name: str, pool: Sequence[_Value]) -> tuple[Step, _Value] | None:
    """A step over values of the pool, and what it defines; None if it does not fit."""
    family = rng.choices(list(FAMILIES), list(FAMILIES.values()))[0]
    template = rng.choice(family)
    text = _filled(rng, template, pool)
    if text is None:
        return None
    step = Step(name, text)
    outs = [_outcome(text, pool, i) for i in range(len(_SIZES))]
    if any(out is None for out in outs):
        return None
    dtypes = {np.dtype(out.dtype) for out in outs}
    kind = {"f": "f", "i": "i", "b": "b"}.get(dtypes.pop().kind)
    if kind is None:
        return None
    if kind == "f" and outs[0].dtype != np.float32:
        return None
    return step, _Value(name, tuple(tuple(out.shape) for out in outs), kind)


def _filled(rng: random.Random, template: str, pool: Sequence[_Value]) -> str | None:
    """The template with a value in each hole; None if there is none for one."""
    holes = {field for _, field, _, _ in string.Formatter().parse(template) if field}
    floats = [v for v in pool if v.kind == "f" and v.shapes[0]]
    chosen: dict[str, Any] = {"n": rng.randint(0, 3), "k": rng.randint(1, 3)}
    if not floats:
        return None
    x = rng.choices(floats, range(1, len(floats) + 1))[0]  # later ones more often: long chains
    alike = [v for v in pool if v.shapes == x.shapes and v.kind == "f" and v is not x]
    axes = list(range(len(x.shapes[0])))
    rng.shuffle(axes)
    chosen |= {"x": x.name, "a": axes[0], "c": axes[-1]}
    chosen["y"] = rng.choice(alike).name if alike else f"jnp.cos({x.name})"
    chosen["z"] = rng.choice(floats).name
    integers = [v for v in pool if v.kind == "i"]
    if "i" in holes:
        if not integers:
            return None
        chosen["i"] = rng.choice(integers).name
    whole = [v.name for v in integers if v.shapes == x.shapes]
    chosen["p"] = rng.choice([*whole, f"({x.name} > 0).astype(jnp.int32)"])
    truths = [v.name for v in pool if v.kind == "b" and v.shapes == x.shapes]
    chosen["m"] = rng.choice([*truths, f"({x.name} > 0.3)"])
    return template.format(**chosen)


def _outcome(text: str, pool: Sequence[_Value], at: int) -> Any:
    """The shape and dtype of an expression at the sizes of that number; None if it has none."""
    dtypes = {"f": np.float32, "i": np.int32, "b": np.bool_}
    structs = [jax.ShapeDtypeStruct(v.shapes[at], dtypes[v.kind]) for v in pool]
    code = compile(text, "program.py", "eval")

    def run(*values: Any) -> Any:
        named = {v.name: x for v, x in zip(pool, values, strict=True)}
        return eval(code, {**_SCOPE, **named})  # as globals: lambdas read them too

    try:
        out = jax.eval_shape(run, *structs)
    except Exception:  # what does not fit is thrown away, whatever the reason
        return None
    is_array = hasattr(out, "dtype") and isinstance(out.dtype, np.dtype)
    small = is_array and int(np.prod(out.shape)) <= _MOST_ELEMENTS
    return out if small else None


def smaller(program: Program) -> Iterator[Program]:
    """Programs that have less in them, the smallest first."""
    for output in program.outputs:
        if len(program.outputs) > 1:
            yield _without_dead_steps(dataclasses.replace(program, outputs=(output,)))
    for index, step in enumerate(program.steps):
        before = [one.name for one in program.inputs] + [s.name for s in program.steps[:index]]
        for other in sorted(step.used, key=before.index):
            yield _without_dead_steps(_renamed(program, index, other))
    if program.outputs:
        for step in reversed(program.steps):
            if step.name not in program.outputs:
                yield _without_dead_steps(dataclasses.replace(program, outputs=(step.name,)))
    if program.special:
        yield dataclasses.replace(program, special=False)
    for symbol, size in program.sizes.items():
        if size > 2:
            yield dataclasses.replace(program, sizes={**program.sizes, symbol: 2})


def _renamed(program: Program, index: int, other: str) -> Program:
    """The program without the step of that number: its readers read `other`."""
    gone = program.steps[index].name
    steps = tuple(
        dataclasses.replace(step, text=_replace_word(step.text, gone, other))
        for i, step in enumerate(program.steps)
        if i != index
    )
    outputs = tuple(dict.fromkeys(other if name == gone else name for name in program.outputs))
    return dataclasses.replace(program, steps=steps, outputs=outputs)


def _replace_word(text: str, word: str, other: str) -> str:
    return re.sub(rf"\b{word}\b", other, text)


def _without_dead_steps(program: Program) -> Program:
    live = set(program.outputs)
    steps = []
    for step in reversed(program.steps):
        if step.name in live:
            steps.append(step)
            live |= step.used
    inputs = tuple(one for one in program.inputs if one.name in live)
    return dataclasses.replace(program, inputs=inputs, steps=tuple(reversed(steps)))
