"""A traced function at the capacities of one graph, on true sizes and padded arrays."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shapeexec import _compat
from shapeexec.masking._context import MaskNote, Value
from shapeexec.masking._extents import Extents, holds_dim
from shapeexec.masking._interpret import Interpreter, conform
from shapeexec.masking._knowledge import Known, constant, nothing_known
from shapeexec.masking._poison import poison_padding
from shapeexec.shape._trace import Trace


@dataclasses.dataclass(frozen=True, eq=False)
class Masked:
    """A function whose padding never reaches a valid element.

    Attributes:
        trace: The function, traced at symbolic sizes.
        ranges: Per symbol the least and the greatest size that the graph serves; the greatest is
            its bucket.
        poison: What fills padding that nothing is known of; None: nothing does.
        zero_padded: The padding of the arguments holds zeros, so that masks can be spared.
    """

    trace: Trace
    ranges: Mapping[str, tuple[int, int]]
    poison: str | None = None
    zero_padded: bool = False

    def __call__(
        self,
        sizes: Mapping[str, Any],
        consts: Sequence[Any],
        leaves: Sequence[Any],
        notes: list[MaskNote] | None = None,
    ) -> list[Array]:
        """Run on padded arrays.

        Args:
            sizes: The true size of each symbol, int or i32[], traced or not.
            consts: The arrays that the function closed over, `trace.jaxpr.consts`.
            leaves: The flat arguments, at capacity.
            notes: Where masks are reported; None: nowhere.

        Returns:
            The flat results, at capacity, in the dtypes and weak types of the plain function.
        """
        if self.poison is not None:  # each reader of padding has to look after itself
            return self._run(
                sizes,
                consts,
                leaves,
                Interpreter(self.poison, notes=[] if notes is None else notes),
            )
        first = Interpreter()
        jax.eval_shape(functools.partial(self._run, interpreter=first), sizes, consts, leaves)
        notes = [] if notes is None else notes
        return self._run(sizes, consts, leaves, Interpreter(planned=first.fills, notes=notes))

    def _run(
        self,
        sizes: Mapping[str, Any],
        consts: Sequence[Any],
        leaves: Sequence[Any],
        interpreter: Interpreter,
    ) -> list[Array]:
        jaxpr = self.trace.jaxpr.jaxpr
        lengths = {s: jnp.asarray(n, np.int32) for s, n in sizes.items()}
        extents = Extents(self.ranges, lengths, self.trace.substitution)
        operands = [
            self._argument(var.aval, leaf, extents)
            for var, leaf in zip(jaxpr.invars, leaves, strict=True)
        ]
        closed = _compat.ClosedJaxpr(jaxpr, list(consts))
        results = interpreter.run(closed, extents, operands)
        return [
            _compat.with_weak_type(value.array, var.aval)
            for value, var in zip(results, jaxpr.outvars, strict=True)
        ]

    def _argument(self, aval: Any, leaf: Any, extents: Extents) -> Value:
        known = nothing_known(len(aval.shape), aval.dtype)
        # Narrower than the buckets where a guard has made a symbol an int.
        leaf = conform(leaf, extents.capacities(aval.shape))
        if not holds_dim(tuple(aval.shape)):
            return Value(leaf, known)
        if self.poison is not None:
            leaf = poison_padding(leaf, extents.lengths(aval.shape), known, self.poison)
        elif self.zero_padded and not _compat.is_extended(aval.dtype):
            zero = constant(np.zeros((), aval.dtype))
            axes = [
                old if isinstance(dim, int) else zero
                for dim, old in zip(aval.shape, known.axes, strict=True)
            ]
            known = Known(known.whole, tuple(axes))
        return Value(leaf, known)
