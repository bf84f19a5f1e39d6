"""Results by their types alone, for a pass whose program nobody runs.

What such a pass is for is known in `_masked`.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax

from shapeexec import _compat


class TypedResults:
    """Binds each kind of operation once: primitive, parameters, and types of operands.

    An equal operation on other values gets the arrays of the first one, which have the right types
    and the wrong values. Layers repeat themselves, and binding is what a pass over them costs most.

    One serves one of JAX's traces: arrays of a trace must not be met in another, nor held when it
    has ended, which `jax.checking_leaks` calls a leak.
    """

    def __init__(self) -> None:
        self._trace = _compat.current_trace()
        self._made: dict[Hashable, list[Any]] = {}

    def bind(
        self, primitive: Any, operands: Sequence[Any], *, params: Mapping[str, Any]
    ) -> list[Any]:
        """The results of a primitive's `bind`, right in their types."""
        if _compat.current_trace() is not self._trace:  # a rule maps the primitive
            return _compat.results_of(primitive, operands, params=params)
        key = (primitive, tuple(map(jax.typeof, operands)), tuple(params.items()))
        try:
            made = self._made.get(key)
        except TypeError:  # a parameter that is not hashable
            return _compat.results_of(primitive, operands, params=params)
        if made is None:
            made = self._made[key] = _compat.results_of(primitive, operands, params=params)
        return [*made]  # a rule may change its list
