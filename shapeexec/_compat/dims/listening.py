"""The listeners to the dims of each scope, and the original functions of JAX.

`methods` and `functions` ask the listener; `exchange` enters one.
"""

# The functions that this takes of JAX are private, and have no types.
# pyright: reportPrivateUsage=false
# pyright: reportUnknownVariableType=false

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from jax._src.export.shape_poly import _DimExpr

JaxDim = _DimExpr
Patches = dict[tuple[Any, str], tuple[Any, Any]]
"""By owner and name the attribute while a listener is active, and the original, if there is one.
"""


class DimListener(Protocol):
    """Hears what code asks of symbolic dims during a trace, and computes with them."""

    def decide(self, left: Any, op: str, right: Any, place: str | None) -> Any:
        """The answer to a comparison that JAX leaves open: a bool, or NotImplemented.

        None leaves it to JAX, who says False to `==` and raises for the others.
        """
        ...

    def need(self, dim: Any, what: str, place: str | None) -> Any:
        """User code wants the value: its `str`, its `int` or `float`, or its `hash`.

        The text, for a `str`. None, or an exception, leaves it to JAX.
        """
        ...

    def hear(self, left: Any, op: str, right: Any) -> None:
        """JAX's own code compares dims, which it answers itself, or divides or bounds them."""
        ...

    def calculate(self, name: str, left: Any, right: Any) -> Any:
        """The result of an operator on a dim and another value; None: JAX computes it."""
        ...

    def compare(self, name: str, left: Any, right: Any) -> Any:
        """The answer to a comparison, `__lt__` or another, of a dim with no integer."""
        ...

    def compute(self, function: Callable[..., Any], pattern: str, *operands: Any) -> Any:
        """The result of a Python function of a dim."""
        ...

    def call_method(self, number: Any, name: str, args: Any, options: Any) -> Any:
        """The result of an int method for a dim."""
        ...

    def ufunc(self, function: Any, method: str, operands: Any, options: Any) -> Any:
        """The result of a NumPy ufunc of dims and other numbers."""
        ...

    def reduce(
        self, function: Any, elements: Sequence[Any], args: Any, options: Mapping[str, Any]
    ) -> Any:
        """The result of NumPy's `function(elements, *args, **options)` for a list with dims."""
        ...

    def as_array(self, dim: Any, via: str) -> Any:
        """A dim as an array of JAX's; None leaves it to JAX."""
        ...

    def is_of_numpy(self, dim: Any) -> bool:
        """Whether a dim is a number of NumPy's in the plain call."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Listening:
    """Somebody listens to the dims of a scope.

    Attributes:
        scope: The scope.
        listener: Who listens.
        calls: The calls of stand-ins.
        memo: What JAX made of dims, by `memo_key` of the question, with the dims, so that no other
            object takes their ids. Only what does not depend on who asks.
        dims: By its terms one dim of those that are equal.
    """

    scope: Any
    listener: Any
    calls: list[Any]
    memo: dict[Any, tuple[Any, Any, Any]] = dataclasses.field(default_factory=dict)
    dims: dict[Any, Any] = dataclasses.field(default_factory=dict)

    def remember(self, key: Any, left: Any, right: Any, result: Any) -> Any:
        """Put a value computed from dims into the memo.

        An operand that comes back may be a number of NumPy's, for which an equal dim is none.
        """
        if type(result) is _DimExpr and result is not left and result is not right:
            result = self.dims.setdefault(terms_of(result), result)
        self.memo[key] = left, right, result
        return result


# By the scope's id. Any thread may ask.
LISTENING: dict[int, Listening] = {}


def listening_to(dim: Any, other: Any = None) -> Listening | None:
    """The listener to the scope of `dim`, unless `other` is of another scope.

    JAX keeps dims of earlier scopes in its caches, and dims are simplified in scopes of their own.
    """
    scope = _scope_of(dim)
    found = LISTENING.get(id(scope))
    if found is None or found.scope is not scope or found.listener is None:
        return None
    return None if type(other) is _DimExpr and _scope_of(other) is not scope else found


_scope_of = vars(_DimExpr)["_scope"].__get__  # faster than through `__getattribute__`
terms_of = vars(_DimExpr)["_sorted_terms"].__get__


def listener_of(dim: Any, other: Any = None) -> DimListener | None:
    found = listening_to(dim, other)
    return None if found is None else found.listener


def is_listened_to(dim: Any) -> bool:
    return isinstance(dim, _DimExpr) and listener_of(dim) is not None


def memo_key(question: str, left: Any, right: Any) -> Any:
    """Under what a memo has what JAX makes of a dim and another one or an int; else None.

    By identity: dims that are equal have a hash and an `==` that ask.
    """
    if type(right) is int:
        return question, id(left), right
    return (question, id(left), id(right), None) if type(right) is _DimExpr else None


def remembered(
    listening: Listening | None, question: str, left: Any, right: Any, *, function: Any
) -> Any:
    """The first result of `function(left, right)`, cached."""
    key = memo_key(question, left, right)
    if listening is None or key is None:
        return function(left, right)
    if key in listening.memo:
        return listening.memo[key][2]
    return listening.remember(key, left, right, function(left, right))
