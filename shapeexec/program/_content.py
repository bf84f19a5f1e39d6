"""The parts of a printed program as plain frozen data, without any JAX object.

`_read` fills them from a trace; the other modules format them.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from shapeexec._errors import beside
from shapeexec.masking._values import MaskNote
from shapeexec.shape._shape import Shape


@dataclasses.dataclass(frozen=True)
class Variable:
    """An operand or a result of an equation.

    Attributes:
        name: The argument's path, such as `params['w']`; `%3` for the result of an equation; the
            number itself for a literal.
        text: Its type, as jaxprs print it: `f32[b,s]`.
        shape: Its dtype and dims, in the symbols of the call; None if it is not an array.
        lengths: Its true size per axis in the call; None if there is no call.
        capacities: Its capacity per axis in the graph; None if there is no call.
        is_literal: Whether it is a number in the program itself.
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
        operands: The variables that it reads.
        results: The variables that it defines.
        params: Its parameters as pairs of name and text, without functions.
        where: The user's line, `code  (file.py:12)`; None if unknown.
        rule: How its rule treats padding: Keep, Fill, Move, Run or Refuse; None if no dim is
            symbolic.
        masks: Its masks, and those that were not needed.
        bodies: The functions inside it: of a call, of a loop, of each branch.

    Example:
        >>> program = sx.trace(jnp.cos, sx.Shape("float32", "s"))
        >>> [equation.primitive for equation in program.equations]
        ['cos']
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
        """Its masks and the masks of the functions inside it."""
        inner = (note for eqn in within(self.bodies) for note in eqn.masks)
        return (*self.masks, *inner)


@dataclasses.dataclass(frozen=True)
class Body:
    """A function inside an equation.

    Attributes:
        label: The parameter that holds it, such as `body_jaxpr` or `branches[1]`.
        inputs: Its parameters; for a plain call the operands of the equation.
        equations: Its operations, in order.
        results: Its results.
        is_call: Whether it is called once, with the operands of the equation.
    """

    label: str
    inputs: tuple[Variable, ...]
    equations: tuple[Equation, ...]
    results: tuple[Variable, ...]
    is_call: bool = False


@dataclasses.dataclass(frozen=True)
class Fact:
    """A condition on the sizes under which a program holds.

    Attributes:
        text: Such as `s > 6`.
        where: The line that compared, `code  (file.py:12)`; None: JAX's own code.
    """

    text: str
    where: str | None = None

    def __str__(self) -> str:
        return beside(self.text, self.where)


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
        value = "" if self.value is None else f" = {self.value}"
        return f"{self.text}{value} ({self.dtype})"


@dataclasses.dataclass(frozen=True)
class Extent:
    """A symbolic dim at the sizes of a call.

    Attributes:
        dim: The dim, such as `2*s + 1`.
        length: Its value in the call.
        capacity: Its value in the graph.
    """

    dim: str
    length: int
    capacity: int

    def __str__(self) -> str:
        return f"{self.dim} = {self.length} of {self.capacity}"


@dataclasses.dataclass(frozen=True)
class Content:
    """The whole program.

    Attributes:
        name: The function's name.
        symbols: The symbols of its sizes, sorted.
        inputs: The flat arguments.
        constants: The arrays that the function and functions inside it close over.
        equations: Its operations, in order; nested ones are in the `bodies` of others.
        results: The flat results.
        guards: The conditions on the sizes.
        numbers: The numbers that Python computes from the sizes of each call.
        sizes: The true size of each symbol; empty if there is no call.
        buckets: The bucket of each symbol; empty if there is no call.
        extents: The symbolic dims that occur, at the sizes of the call; empty if there is no call.
        exact: The reason by symbol, for symbols that run exactly although they have a strategy.
        masks: All masks, and those that were not needed, in the order of the graph.
        is_expanded: Whether functions inside equations are shown.
    """

    name: str
    symbols: tuple[str, ...]
    inputs: tuple[Variable, ...]
    constants: tuple[Variable, ...]
    equations: tuple[Equation, ...]
    results: tuple[Variable, ...]
    guards: tuple[Fact, ...] = ()
    numbers: tuple[Number, ...] = ()
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    buckets: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    extents: tuple[Extent, ...] = ()
    exact: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    masks: tuple[MaskNote, ...] = ()
    is_expanded: bool = False


def within(bodies: tuple[Body, ...]) -> Iterator[Equation]:
    """All equations of bodies, each before those nested in it."""
    for body in bodies:
        yield from nested(body.equations)


def nested(equations: tuple[Equation, ...]) -> Iterator[Equation]:
    """Equations and those nested in them, each before those nested in it."""
    for eqn in equations:
        yield eqn
        yield from within(eqn.bodies)
