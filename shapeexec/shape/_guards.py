"""Guards: the conditions on sizes under which a trace holds, checked at each later call.

A guard is decided at the sizes of the call that is traced. Tracing itself is not known here.
"""

import dataclasses
import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from shapeexec import _compat
from shapeexec._errors import ConfigError, beside
from shapeexec.shape import _dim

_OPERATORS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NEGATED = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_COMPARISON = re.compile(r"\s*(.+?)\s*(==|!=|<=|>=|<|>)\s*(.+?)\s*")


@dataclasses.dataclass(frozen=True)
class Guard:
    """A comparison of two dims that holds: `s > 6`, `mod(s, 2) == 0`, `b != s`.

    Attributes:
        left: The left dim, as text.
        op: One of `== != < <= > >=`.
        right: The right dim, as text.
        place: `path/file.py:12` of the code that compared; None: JAX's own code.
        splits: For `mod(s, 2) == 1` only: the trace has `2*k - 1` in place of `s`.
    """

    left: str
    op: str
    right: str
    place: str | None = dataclasses.field(default=None, compare=False)
    splits: bool = False

    def __str__(self) -> str:
        return f"{self.left} {self.op} {self.right}"

    def described(self) -> str:
        """The guard and the code that compared."""
        return beside(self, _compat.describe_line(self.place))

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether the comparison is true at `sizes`."""
        left, right = _dim.evaluate(self.left, sizes), _dim.evaluate(self.right, sizes)
        return _OPERATORS[self.op](left, right)

    def decided(self, sizes: Mapping[str, int]) -> "Guard":
        """The guard itself or its negation, whichever holds at `sizes`."""
        if self.holds(sizes):
            return self
        return dataclasses.replace(self, op=_NEGATED[self.op])

    @property
    def constraints(self) -> tuple[str, ...]:
        """The guard as constraints of a JAX scope, which knows `==`, `>=` and `<=` only."""
        match self.op:
            case "==" | ">=" | "<=":
                return (str(self),)
            case ">":
                return (f"{self.left} >= {self.right} + 1",)
            case "<":
                return (f"{self.right} >= {self.left} + 1",)
            case _:
                return ()

    @property
    def deciding(self) -> str:
        """The change to the user's code that decides it for all sizes.

        JAX ignores `!=`, and divides a symbol only if the spec writes it as a multiple.
        """
        divided = re.fullmatch(r"mod\((\w+), (\d+)\) == 0", str(self))
        if divided is not None:
            symbol, multiple = divided.groups()
            return f'write "{multiple}*{symbol}" in the place of "{symbol}"'
        either = (self, dataclasses.replace(self, op=_NEGATED[self.op]))
        return " or ".join(f'constraints="{guard}"' for guard in either if guard.op != "!=")

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols it depends on."""
        return _dim.symbols_of(self.left) | _dim.symbols_of(self.right)


def parse_constraints(given: str | Iterable[str] | None) -> tuple[Guard, ...]:
    """Parse a user's constraints, given as one text or several.

    Raises:
        ConfigError: They are not strings, or one is not a comparison of two dims.
    """
    if given is None:
        return ()
    several = cast(Any, given)  # a caller without a type checker may pass anything
    is_one = isinstance(several, str) or not hasattr(several, "__iter__")
    texts: tuple[Any, ...] = (several,) if is_one else tuple(several)
    if not all(isinstance(text, str) for text in texts):
        raise ConfigError(
            f"constraints={given!r} are not strings.",
            option="constraints",
            fix='constraints="s >= 2", or constraints=("s >= 2", "mod(s, 8) == 0")',
        )
    return tuple(map(parse_constraint, texts))


def parse_constraint(text: str) -> Guard:
    """Parse a user's constraint such as `"s >= 2"`.

    Raises:
        ConfigError: `text` is not a comparison of two dims.
    """
    fix = 'write a comparison of dims, such as constraints=("s >= 2", "mod(s, 8) == 0")'
    found = _COMPARISON.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"constraints: {text!r} is not a comparison.", option="constraints", fix=fix
        )
    try:
        left, right = _dim.dim_text(_dim.Dim(found[1])), _dim.dim_text(_dim.Dim(found[3]))
    except ValueError as error:
        reason = getattr(error, "what", str(error)).removesuffix(".")
        raise ConfigError(
            f"constraints: {text!r}: {reason}.", option="constraints", fix=fix
        ) from error
    return Guard(left, found[2], right)


def pin(symbol: str, size: int) -> Guard:
    """The guard that makes a symbol exact: its dim becomes the plain int `size`."""
    return Guard(symbol, "==", str(size))
