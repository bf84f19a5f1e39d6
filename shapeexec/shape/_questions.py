"""Comparisons of symbolic sizes while a function is traced, and their answers.

A comparison that symbols alone cannot decide is decided at the sizes of the current call, and the
answer becomes a guard. Arithmetic on sizes is in `_arithmetic`; tracing itself is in `_attempt`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from jax import export

from shapeexec import _compat
from shapeexec._errors import InconclusiveShapeError, UnboundedDimError, named
from shapeexec.shape import _dim
from shapeexec.shape._guards import Guard, pin
from shapeexec.shape._host import HostGuard
from shapeexec.shape._numbers import HostNumber
from shapeexec.shape._substitution import Substitution

AnyGuard = Guard | HostGuard


@dataclasses.dataclass(frozen=True)
class Need:
    """User code wanted a size as a Python value.

    Attributes:
        symbols: The symbols of the call that the size depends on.
        what: `int`, `float` or `hash`.
        place: `path/file.py:12` of that code.
    """

    symbols: frozenset[str]
    what: str
    place: str | None


@dataclasses.dataclass
class Questions:
    """The comparisons of sizes in one attempt to trace a function.

    Attributes:
        sizes: The size of each symbol in the call; None: there is no call.
        substitution: The dims that replace the call's symbols in this attempt.
        guards: The answers, added to those of earlier attempts.
        candidates: Collects facts that hold at `sizes` and may help JAX: the comparisons, bounds
            and divisions that it asked for. None: collect nothing.
        needs: Sizes that user code wanted as Python values.
        open: Comparisons that JAX's own code made and could not decide, so that it took its default
            answer.
    """

    sizes: Mapping[str, int] | None
    substitution: Substitution
    guards: dict[AnyGuard, None]
    candidates: dict[Guard, None] | None = None
    needs: list[Need] = dataclasses.field(default_factory=list[Need])
    open: dict[Guard, None] = dataclasses.field(default_factory=dict[Guard, None])
    _compared: dict[Guard, None] = dataclasses.field(default_factory=dict[Guard, None])

    def decide(self, left: Any, op: str, right: Any, place: str | None) -> Any:
        """See `_compat.DimListener`."""
        if op == "==":
            if isinstance(right, np.ndarray | np.generic):
                number = cast(Any, right)  # of any dtype
                if number.ndim:
                    self.need(left, "hash", place)
                right = number.item()
            if not export.is_symbolic_dim(right):
                right = _as_int(right)
                if right is NotImplemented:
                    return right
            if _is_known(left - right):
                return None  # JAX's own answer is right
        return self.ask(Guard(_dim.dim_text(left), op, _dim.dim_text(right), place))

    def ask(self, asked: Guard) -> bool:
        """Whether a comparison of the trace's own dims holds; the answer becomes a guard."""
        asked = dataclasses.replace(
            asked, left=self.outer(asked.left), right=self.outer(asked.right)
        )
        if self.sizes is None:
            raise InconclusiveShapeError(
                f"`{asked}` cannot be decided for all sizes.",
                symbols=asked.symbols,
                where=_compat.describe_line(asked.place),
                fix=f"{asked.deciding}, if that holds for all sizes; or {as_ints(asked.symbols)}",
            )
        guard = asked.decided(self.sizes)
        self.guards.setdefault(guard)
        return guard.op == asked.op

    def need(self, dim: Any, what: str, place: str | None) -> Any:
        """See `_compat.DimListener`."""
        need = Need(_dim.symbols_of(self.outer(_dim.dim_text(dim))), what, place)
        if what == "str" and self.sizes is not None and not self.needs:
            # Like a hash, it differs from size to size. After a need there is an exception on
            # its way, and its text may hold any size.
            self.pin(need)
            return str(_dim.evaluate(_dim.dim_text(dim), self.substitution.sizes(self.sizes)))
        if what != "str":
            self.needs.append(need)
        if what == "hash":
            # JAX and user code expect the TypeError of an unhashable value.
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
        if self.sizes is None:
            return
        if op in ("==", "<", "<=", ">", ">="):
            self._hear_comparison(left, op, right)
        if self.candidates is None:
            return
        sizes = self.substitution.sizes(self.sizes)
        if op in ("max", "min"):
            asked = Guard(self.outer(_dim.dim_text(left)), ">=", self.outer(_dim.dim_text(right)))
            self.candidates.setdefault(asked.decided(self.sizes))
        if op not in ("//", "%"):
            return
        if export.is_symbolic_dim(right):
            sign = (">=", "1") if _dim.evaluate(right, sizes) > 0 else ("<=", "-1")
            self.candidates.setdefault(Guard(self.outer(_dim.dim_text(right)), *sign))
        elif isinstance(right, int) and right > 1:
            for symbol in _dim.symbols_of(left):
                remainder = sizes[symbol] % right
                text = f"mod({self.outer(symbol)}, {right})"
                self.candidates.setdefault(Guard(text, "==", str(remainder), splits=True))

    def _hear_comparison(self, left: Any, op: str, right: Any) -> None:
        if not (isinstance(right, int) or export.is_symbolic_dim(right)):
            return
        asked = Guard(_dim.dim_text(left), op, _dim.dim_text(right))
        if asked in self._compared:
            return
        self._compared[asked] = None
        if op == "==" and _is_known(left - right):
            return
        guard = dataclasses.replace(
            asked, left=self.outer(asked.left), right=self.outer(asked.right)
        )
        self.open.setdefault(guard)
        if self.candidates is not None and op == "==" and guard.holds(self.sizes or {}):
            self.candidates.setdefault(guard)

    def outer(self, text: str) -> str:
        """The text of a dim of the trace, in the call's symbols."""
        return text if not self.substitution.outer else self.substitution.outward(text).text


def as_ints(symbols: frozenset[str]) -> str:
    """The fix if there is no call: an int in the place of each symbol."""
    return f"give the size of {named(symbols)} as an int in the place of the symbol"


def _is_known(difference: Any) -> bool:
    """Whether two dims with this difference are equal at all sizes, or unequal at all sizes."""
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

    After NotImplemented Python asks the other operand, so a JAX array does the comparison.
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() else NotImplemented
    if hasattr(value, "shape") or isinstance(value, HostNumber):
        return NotImplemented
    index: Any = getattr(value, "__index__", None)
    return NotImplemented if index is None else index()
