"""`Program`: a traced function to print, search and draw. Other modules do the formatting."""

import dataclasses
from collections.abc import Iterator

from shapeexec.program import _html, _json, _picture, _text
from shapeexec.program._content import Content, Equation, nested


@dataclasses.dataclass(frozen=True, repr=False)
class Program(Content):
    """A function at symbolic sizes, equation by equation; `print` it.

    `sx.trace` makes one without a call. `Exec.trace` makes one for a call, which also has valid
    lengths, capacities, masks, guards and host numbers. Iterating yields the equations that are
    shown, `len` counts them.

    Attributes:
        name: The function's name.
        symbols: The symbols of its sizes, sorted.
        inputs: The flat arguments, each a variable with `name`, `shape` (dtype and symbolic dims),
            `lengths` and `capacities`.
        constants: The arrays that the function and functions inside it close over.
        equations: Its operations, in order; nested ones are in the `bodies` of others.
        results: The flat results.
        guards: The conditions on the sizes, each with `text` and `where`.
        numbers: The numbers that Python computes from the sizes of each call: `text`, `dtype`,
            `value`.
        sizes: The true size of each symbol; empty if there is no call.
        buckets: The bucket of each symbol; empty if there is no call.
        extents: Each symbolic dim with its `length` and `capacity` in the call; empty if there is
            no call.
        exact: The reason by symbol, for symbols that run exactly although they have a strategy.
        masks: All masks, and those that were not needed, in the order of the graph.
        is_expanded: Whether functions inside equations are shown.

    Example:
        >>> program = trace(lambda x: x.max(axis=1), Shape("float32", "b", "s"))
        >>> [str(result) for eqn in program.find("reduce_max") for result in eqn.results]
        ['%0 f32[b]']
    """

    def expand(self) -> "Program":
        """Show functions inside of equations too, one line per equation."""
        return dataclasses.replace(self, is_expanded=True)

    def find(self, name: str) -> tuple[Equation, ...]:
        """Find the equations of a primitive, or those that call a function of this name.

        Nested equations are found, too. There may be none.

        Args:
            name: Such as `reduce_max` or `softmax`.

        Returns:
            The equations, in the order in which they run.
        """
        return tuple(eqn for eqn in nested(self.equations) if name in (eqn.primitive, eqn.name))

    def to_json(self, *, indent: int | None = None) -> str:
        """Write the whole program as JSON, whether it is expanded or not.

        Args:
            indent: Spaces per level; None: all in one line.

        Returns:
            The text.
        """
        return _json.text(self, indent)

    def to_mermaid(self) -> str:
        """Draw the program as a Mermaid flow chart, which Markdown pages show.

        It has a node per printed line and an arrow with the shape per value; dotted arrows are the
        results of a function inside an equation. Masks are marked.
        """
        return _picture.mermaid(self)

    def __iter__(self) -> Iterator[Equation]:
        return nested(self.equations) if self.is_expanded else iter(self.equations)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __str__(self) -> str:
        return _text.text(self)

    def __repr__(self) -> str:
        return f"Program({self.name}, {len(self)} equations)"

    def _repr_html_(self) -> str:
        return _html.html(self)
