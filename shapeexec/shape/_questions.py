"""What a function and JAX ask of sizes while it is traced, and the answers.

A question that only known sizes answer is decided at the sizes of the call at hand, and the answer
is a guard. Tracing itself is not known here.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jax import export

from shapeexec import _compat
from shapeexec._errors import InconclusiveShapeError, UnboundedDimError
from shapeexec.shape import _dim
from shapeexec.shape._guards import Guard, pin
from shapeexec.shape._substitution import Substitution


@dataclasses.dataclass(frozen=True)
class Need:
    """User code wanted a size as a Python value.

    Attributes:
        symbols: The call's symbols that the size is made of.
        what: `int`, `float` or `hash`.
        place: `path/file.py:12` of the code that wanted it.
    """

    symbols: frozenset[str]
    what: str
    place: str | None


@dataclasses.dataclass
class Questions:
    """The questions of one attempt to trace; hears what `_compat.listen_to_dims` tells.

    Attributes:
        sizes: The size of each symbol of the call; None: there is no call.
        substitution: What the call's symbols are in this attempt.
        guards: The answers, added to those of earlier attempts.
        heard: Where to put what would be true of the sizes and help JAX, had it known: what its
            own code compares, bounds and divides. None: nowhere.
        needs: Sizes that were wanted as Python values.
    """

    sizes: Mapping[str, int] | None
    substitution: Substitution
    guards: dict[Guard, None]
    heard: dict[Guard, None] | None = None
    needs: list[Need] = dataclasses.field(default_factory=list)

    def decide(self, left: Any, op: str, right: Any, place: str | None) -> Any:
        """See `_compat.DimListener`."""
        if op == "==":
            if isinstance(right, np.ndarray | np.generic):
                if right.ndim:
                    self.need(left, "hash", place)
                right = right.item()
            if not export.is_symbolic_dim(right):
                right = _as_int(right)
                if right is NotImplemented:
                    return right
            if _is_known(left - right):
                return None  # JAX's answer is right: they differ
        return self.ask(Guard(_dim.dim_text(left), op, _dim.dim_text(right), place))

    def ask(self, asked: Guard) -> bool:
        """Whether a comparison of the trace's own dims holds; the answer is a guard."""
        asked = dataclasses.replace(
            asked, left=self._outer(asked.left), right=self._outer(asked.right)
        )
        if self.sizes is None:
            raise InconclusiveShapeError(
                f"`{asked}` cannot be decided for all sizes.",
                symbols=asked.symbols,
                where=_compat.describe_line(asked.place),
                fix="pass a constraint that decides it, or make the dim static",
            )
        guard = asked.decided(self.sizes)
        self.guards.setdefault(guard)
        return guard.op == asked.op

    def need(self, dim: Any, what: str, place: str | None) -> Any:
        """See `_compat.DimListener`."""
        need = Need(_dim.symbols_of(self._outer(_dim.dim_text(dim))), what, place)
        if what == "str" and self.sizes is not None and not self.needs:
            # Its text tells sizes apart, as its hash does; but not in the text of an exception.
            self.pin(need)
            return str(_dim.evaluate(_dim.dim_text(dim), self.substitution.sizes(self.sizes)))
        if what != "str":
            self.needs.append(need)
        if what == "hash":
            raise TypeError(f"unhashable: the size `{dim}` is not known while tracing")
        return None

    def pin(self, need: Need) -> None:
        """Make the symbols of a need exact."""
        assert self.sizes is not None
        for symbol in sorted(need.symbols):
            guard = pin(symbol, self.sizes[symbol])
            self.guards.setdefault(dataclasses.replace(guard, place=need.place))

    def hear(self, left: Any, op: str, right: Any) -> None:
        """See `_compat.DimListener`."""
        if self.heard is None or self.sizes is None:
            return
        sizes = self.substitution.sizes(self.sizes)
        if op in ("max", "min"):
            asked = Guard(self._outer(_dim.dim_text(left)), ">=", self._outer(_dim.dim_text(right)))
            self.heard.setdefault(asked.decided(self.sizes))
        elif op == "==":
            if not (isinstance(right, int) or export.is_symbolic_dim(right)):
                return
            if not _is_known(left - right) and not _dim.evaluate(left - right, sizes):
                left, right = self._outer(_dim.dim_text(left)), self._outer(_dim.dim_text(right))
                self.heard.setdefault(Guard(left, "==", right))
        elif export.is_symbolic_dim(right):
            sign = (">=", "1") if _dim.evaluate(right, sizes) > 0 else ("<=", "-1")
            self.heard.setdefault(Guard(self._outer(_dim.dim_text(right)), *sign))
        elif isinstance(right, int) and right > 1:
            for symbol in _dim.symbols_of(left):
                remainder = sizes[symbol] % right
                text = f"mod({self._outer(symbol)}, {right})"
                self.heard.setdefault(Guard(text, "==", str(remainder), splits=True))

    def _outer(self, text: str) -> str:
        return text if not self.substitution.outer else self.substitution.outward(text).text


def _is_known(difference: Any) -> bool:
    """Whether two dims with this difference are equal at all sizes, or at none."""
    if not export.is_symbolic_dim(difference):
        return True
    for bound, sign in ((_dim.minimum, 1), (_dim.maximum, -1)):
        try:
            if sign * bound(difference, {}) > 0:
                return True
        except UnboundedDimError:
            continue
    return False


def _as_int(value: Any) -> Any:
    """The int that `value` equals; NotImplemented if there is none.

    With NotImplemented a JAX array compares itself with the size, as it does with an int.
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() else NotImplemented
    if hasattr(value, "shape"):
        return NotImplemented
    index: Any = getattr(value, "__index__", None)
    return NotImplemented if index is None else index()
