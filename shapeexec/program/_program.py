"""A traced function to look at: print it, search it, draw it."""

import dataclasses
from collections.abc import Iterator

from shapeexec.program import _html, _json, _picture, _text
from shapeexec.program._content import Content, Equation, nested


@dataclasses.dataclass(frozen=True, repr=False)
class Program(Content):
    """A function at symbolic sizes, equation by equation; `print` it.

    `sx.trace` makes one without a call. `Exec.trace` makes that of a call: it tells valid lengths,
    capacities, masks, guards and numbers of the host, too. Iterating gives the equations that are
    shown, `len` counts them.

    Attributes:
        name: The function's name.
        symbols: The symbols of its sizes, sorted.
        inputs: The flat arguments, each a variable with `name`, `shape` (dtype and symbolic dims),
            `lengths` and `capacities`.
        constants: The arrays that the function closed over, and those inside of it.
        equations: Its operations, in order; those inside of others are in their `bodies`.
        results: The flat results.
        guards: What has to hold of the sizes, each with `text` and `where`.
        numbers: What Python computes from the sizes of each call: `text`, `dtype`, `value`.
        sizes: Per symbol its true size; empty if there is no call.
        buckets: Per symbol what it is padded to, its size where it is exact; empty likewise.
        extents: Each symbolic dim with its `length` and `capacity` in the call; empty likewise.
        exact: Per symbol that is exact although it has a strategy, why.
        masks: All masks, and those that were spared, in the order in which the graph is made.
        is_expanded: Whether functions inside of equations are shown.

    Example:
        >>> program = trace(lambda x: x.max(axis=1), Shape("float32", "b", "s"))
        >>> [str(result) for eqn in program.find("reduce_max") for result in eqn.results]
        ['%0 f32[b]']
    """

    def expand(self) -> "Program":
        """The program with the functions inside of its equations shown, each equation in a line."""
        return dataclasses.replace(self, is_expanded=True)

    def find(self, name: str) -> tuple[Equation, ...]:
        """The equations of a primitive, or those that call a function of this name.

        Those inside of others are found too. There may be none.

        Args:
            name: Such as `reduce_max` or `softmax`.
        """
        return tuple(eqn for eqn in nested(self.equations) if name in (eqn.primitive, eqn.name))

    def to_json(self, *, indent: int | None = None) -> str:
        """The program as a text of JSON: all of it, whether it is expanded or not.

        Args:
            indent: Spaces per level; None: all in one line.
        """
        return _json.text(self, indent)

    def to_mermaid(self) -> str:
        """The program as a flow chart in the language of Mermaid, which Markdown pages show.

        It has a node per line that is printed, and an arrow per value, with its shape; a dotted one
        is what a function returns to the equation that it stands in. Masks are marked.
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
