"""What a traced function is made of, as plain frozen data: it holds nothing of JAX's."""

import dataclasses
from collections.abc import Iterator, Mapping

from shapeexec.masking._values import MaskNote
from shapeexec.shape._shape import Shape


@dataclasses.dataclass(frozen=True)
class Variable:
    """An operand or a result of an equation.

    Attributes:
        name: The argument's path, such as `params['w']`; `%3` for what an equation makes; or the
            number that it is.
        text: What it is, as jaxprs print it: `f32[b,s]`.
        shape: Its dtype and dims, in the symbols of the call; None for what is no array.
        lengths: Per axis its true extent in the call; None if there is no call.
        capacities: Per axis its extent in the graph; None if there is no call.
        is_literal: Whether it is a number that stands in the program itself.
    """

    name: str
    text: str
    shape: Shape | None
    lengths: tuple[int, ...] | None = None
    capacities: tuple[int, ...] | None = None
    is_literal: bool = False

    def __str__(self) -> str:
        return self.name if self.is_literal else f"{self.name} {self.text}"


@dataclasses.dataclass(frozen=True)
class Equation:
    """One operation of a program.

    Attributes:
        primitive: The name of JAX's primitive, such as `reduce_max`.
        name: The name of the function that it calls, such as `softmax`; None if it calls none.
        operands: What it reads.
        results: What it makes.
        params: Its parameters as pairs of name and text, without functions.
        where: The user's line, `code  (file.py:12)`; None if unknown.
        rule: What its rule does about padding: Keep, Fill, Move, Run or Refuse; None where no dim
            is symbolic.
        masks: Its masks, and those that were spared.
        bodies: The functions inside of it: that of a call, of a loop, of each branch.
    """

    primitive: str
    name: str | None
    operands: tuple[Variable, ...]
    results: tuple[Variable, ...]
    params: tuple[tuple[str, str], ...]
    where: str | None
    rule: str | None
    masks: tuple[MaskNote, ...] = ()
    bodies: "tuple[Body, ...]" = ()

    @property
    def all_masks(self) -> tuple[MaskNote, ...]:
        """Its masks and those of the functions inside of it."""
        inner = (note for eqn in within(self.bodies) for note in eqn.masks)
        return (*self.masks, *inner)


@dataclasses.dataclass(frozen=True)
class Body:
    """A function inside of an equation.

    Attributes:
        label: Which of them it is, such as `body_jaxpr` or `branches[1]`.
        inputs: What it takes; for a plain call the operands of the equation themselves.
        equations: Its operations, in order.
        results: What it returns.
        is_call: Whether it is called once, with the operands of the equation.
    """

    label: str
    inputs: tuple[Variable, ...]
    equations: tuple[Equation, ...]
    results: tuple[Variable, ...]
    is_call: bool = False


@dataclasses.dataclass(frozen=True)
class Fact:
    """What a program takes for granted of the sizes.

    Attributes:
        text: Such as `s > 6`.
        where: The line that asked, `code  (file.py:12)`; None if JAX did.
    """

    text: str
    where: str | None = None

    def __str__(self) -> str:
        return f"{self.text}   <- {self.where}" if self.where else self.text


@dataclasses.dataclass(frozen=True)
class Number:
    """A number that Python computes from the sizes of each call.

    Attributes:
        text: Such as `(s^2 - s) / 2`.
        dtype: Its dtype in the graph, such as `float32`.
        value: At the sizes of the call, as text; None if there is no call.
    """

    text: str
    dtype: str
    value: str | None = None

    def __str__(self) -> str:
        told = "" if self.value is None else f" = {self.value}"
        return f"{self.text}{told} ({self.dtype})"


@dataclasses.dataclass(frozen=True)
class Extent:
    """A symbolic dim at the sizes of a call.

    Attributes:
        dim: The dim, such as `2*s + 1`.
        length: What it is in the call.
        capacity: What it is in the graph.
    """

    dim: str
    length: int
    capacity: int

    def __str__(self) -> str:
        return f"{self.dim} = {self.length} of {self.capacity}"


@dataclasses.dataclass(frozen=True)
class Content:
    """All of a program.

    Attributes:
        name: The function's name.
        symbols: The symbols of its sizes, sorted.
        inputs: The flat arguments.
        constants: The arrays that the function closed over, and those inside of it.
        equations: Its operations, in order; those inside of others are in their `bodies`.
        results: The flat results.
        guards: What has to hold of the sizes.
        numbers: What Python computes from the sizes of each call.
        sizes: Per symbol its true size; empty if there is no call.
        buckets: Per symbol what it is padded to, its size where it is exact; empty likewise.
        extents: The symbolic dims that occur, at the sizes of the call; empty likewise.
        exact: Per symbol that is exact although it has a strategy, why.
        masks: All masks, and those that were spared, in the order in which the graph is made.
        is_expanded: Whether functions inside of equations are shown.
    """

    name: str
    symbols: tuple[str, ...]
    inputs: tuple[Variable, ...]
    constants: tuple[Variable, ...]
    equations: tuple[Equation, ...]
    results: tuple[Variable, ...]
    guards: tuple[Fact, ...] = ()
    numbers: tuple[Number, ...] = ()
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    buckets: Mapping[str, int] = dataclasses.field(default_factory=dict)
    extents: tuple[Extent, ...] = ()
    exact: Mapping[str, str] = dataclasses.field(default_factory=dict)
    masks: tuple[MaskNote, ...] = ()
    is_expanded: bool = False


def within(bodies: tuple[Body, ...]) -> Iterator[Equation]:
    """All equations of bodies, each before those inside of it."""
    for body in bodies:
        yield from nested(body.equations)


def nested(equations: tuple[Equation, ...]) -> Iterator[Equation]:
    """Equations and those inside of them, each before those inside of it."""
    for eqn in equations:
        yield eqn
        yield from within(eqn.bodies)
