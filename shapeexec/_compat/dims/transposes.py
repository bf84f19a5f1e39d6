"""How linear primitives are transposed where dims that are listened to occur.

The formulas are those of `shape/_transposes.py`; here they take the place of JAX's.
"""

# The functions that this takes of JAX are private, and have no types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax._src.interpreters import ad as _ad
from jax.interpreters import ad as _interpreters_ad

from shapeexec._compat.dims.listening import is_listened_to

TransposeRule = Callable[..., list[Any] | None]
"""`rule(cotangent, *operands, **params)`: a cotangent or None per operand, as JAX's rules give.

Operands that the equation is linear in are `ad.UndefinedPrimal`. None: JAX's own rule is right.
"""

# JAX's table, the primitive, the rule that stands there while anybody listens, and JAX's own.
TRANSPOSES: list[tuple[dict[Any, Any], Any, Any, Any]] = []


def take_over_transposes(rules: Mapping[Any, TransposeRule]) -> None:
    """Ask these rules how primitives are transposed, where dims that are listened to occur.

    JAX keeps rules in two tables: in one they return cotangents, in the other they add them to
    accumulators.
    """
    for primitive, rule in rules.items():
        for table, wrap in (
            (_ad.primitive_transposes, _returning),
            (_ad.fancy_transposes, _accumulating),
        ):
            if primitive in table:
                original = table[primitive]
                TRANSPOSES.append((table, primitive, wrap(rule, original), original))


def _returning(rule: TransposeRule, original: Any) -> Any:
    @functools.wraps(original)
    def transpose(cotangent: Any, *operands: Any, **params: Any) -> Any:
        results = None
        if type(cotangent) is not _interpreters_ad.Zero and _meets_listener(cotangent, operands):
            results = rule(cotangent, *operands, **params)
        return original(cotangent, *operands, **params) if results is None else results

    return transpose


def _accumulating(rule: TransposeRule, original: Any) -> Any:
    @functools.wraps(original)
    def transpose(cotangent: Any, *operands: Any, **params: Any) -> None:
        if (
            type(cotangent) is _interpreters_ad.Zero
            or any(isinstance(x, _ad.NullAccum) for x in operands)
            or not _meets_listener(cotangent, operands)
        ):
            return original(cotangent, *operands, **params)
        given = [
            _ad.UndefinedPrimal(x.aval) if isinstance(x, _ad.GradAccum) else x for x in operands
        ]
        results = rule(cotangent, *given, **params)
        if results is None:
            return original(cotangent, *operands, **params)
        for operand, result in zip(operands, results, strict=True):
            if result is not None:
                operand.accum(result)
        return None

    return transpose


def _meets_listener(cotangent: Any, operands: Sequence[Any]) -> bool:
    """Whether a dim that is listened to in this thread is one of any operand's."""
    avals = [getattr(x, "aval", x) for x in (cotangent, *operands)]
    return any(is_listened_to(dim) for aval in avals for dim in getattr(aval, "shape", ()))
