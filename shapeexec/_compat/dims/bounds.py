"""Bounds on a dim's sign, and the comparisons that JAX leaves open.

Who answers an open comparison is told by `listening`.
"""

# The functions that this takes of JAX are private, and have no types.
# pyright: reportPrivateUsage=false

import math
import re
import threading
from collections.abc import Callable
from typing import Any

import jax
from jax._src.export import shape_poly as _shape_poly
from jax._src.export import shape_poly_decision as _shape_poly_decision
from jax._src.export.shape_poly import _DimExpr

from shapeexec._compat.dims.listening import Patches, listener_of
from shapeexec._compat.dims.methods import ORIGINAL, text_of

_MOST_STEPS = 1024
"""How many terms JAX may eliminate to find the bounds of one dim."""

_search = threading.local()

SignRule = Callable[..., tuple[float, float] | None]
"""See `shape._decide.sign_bounds`."""

_DECISION = _shape_poly_decision._DecisionByElimination
_JAX_BOUNDS = _shape_poly._bounds_decision
_ELIMINATE = _DECISION._bounds_for_sorted_terms
PATCHES: Patches = {}


def take_over_bounds(rule: SignRule) -> None:
    """Ask this rule first what sign a dim has that is listened to, and JAX only within a bound."""

    def bounds(dim: Any, precision: Any) -> tuple[float, float]:
        if not isinstance(dim, _DimExpr) or listener_of(dim) is None:
            return _JAX_BOUNDS(dim, precision)
        found, scope = None, dim.scope
        if precision is not _shape_poly.BoundsPrecision.BEST:
            is_strict = precision is _shape_poly.BoundsPrecision.FOR_GEQ0_OR_LT0
            found = rule(text_of(dim), _constraints(scope), is_strict=is_strict)
        if found is None:
            _search.steps = 0
            found = _JAX_BOUNDS(dim, precision)
            _search.steps = None
        return found

    def eliminate(self: Any, *args: Any) -> tuple[float, float]:
        steps = getattr(_search, "steps", None)
        if steps is not None:
            if steps >= _MOST_STEPS:
                return -math.inf, math.inf
            _search.steps = steps + 1
        return _ELIMINATE(self, *args)

    PATCHES[_shape_poly, "_bounds_decision"] = bounds, _JAX_BOUNDS
    PATCHES[_DECISION, "_bounds_for_sorted_terms"] = eliminate, _ELIMINATE


def _constraints(scope: Any) -> tuple[tuple[str, str], ...]:
    """The known facts of a scope: dims, and how they compare with 0."""
    signs = {_shape_poly.Comparator.GEQ: ">=", _shape_poly.Comparator.EQ: "=="}
    return tuple(
        (ORIGINAL["__str__"](each.diff), signs[each.cmp])
        for each in scope._explicit_constraints
        if isinstance(each.diff, _DimExpr)
    )


InconclusiveDimensionOperation = jax.errors.InconclusiveDimensionOperation

_INCONCLUSIVE = re.compile(r"comparison '(.+?)' (<=|>=|<|>) '(.+?)' is inconclusive", re.DOTALL)
_UNEVEN = re.compile(r"Cannot divide evenly .* The remainder (.+?) should be 0", re.DOTALL)


def inconclusive_comparison(error: BaseException) -> tuple[str, str, str] | None:
    """`(left, op, right)` of the comparison that JAX's error says is inconclusive, if it is one.

    A division that need not come out even is one as well: of its remainder with 0.
    """
    if not isinstance(error, InconclusiveDimensionOperation):
        return None
    if found := _UNEVEN.search(str(error)):
        # The remainder by -4 is 0 where that by 4 is.
        return re.sub(r", - (\d+)\)", r", \1)", found[1]), "==", "0"
    found = _INCONCLUSIVE.search(str(error))
    return None if found is None else (found[1], found[2], found[3])
