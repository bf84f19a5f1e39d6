"""Results with correct types and arbitrary values, for a pass whose program nobody runs.

`_masked` says what the pass is for.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax

from shapeexec import _compat


class TypedResults:
    """Binds each kind of operation once: primitive, parameters, and types of operands.

    An equal operation on other values gets the arrays of the first one, which have the right types
    and the wrong values. Layers repeat, and most of the time of a pass is binding.

    Use one object per trace of JAX: arrays of one trace must not occur in another, nor be held
    after it has ended, which `jax.checking_leaks` reports as a leak.
    """

    def __init__(self) -> None:
        self._trace = _compat.current_trace()
        self._made: dict[Hashable, list[Any]] = {}

    def bind(
        self, primitive: Any, operands: Sequence[Any], *, params: Mapping[str, Any]
    ) -> list[Any]:
        """The results of a primitive's `bind`, with correct types."""
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
