"""A traced function at the capacities of one graph, on true sizes and padded arrays.

Buckets are chosen, and graphs compiled, elsewhere.
"""

import dataclasses
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shapeexec import _compat
from shapeexec.masking._extents import Extents, holds_dim
from shapeexec.masking._fill import conform, fill
from shapeexec.masking._hosted import at_sizes
from shapeexec.masking._interpret import Interpreter, Watch
from shapeexec.masking._knowledge import Known, constant, nothing_known_of
from shapeexec.masking._poison import poison_padding
from shapeexec.masking._typed import TypedResults
from shapeexec.masking._values import MaskNote, Report, Value, along
from shapeexec.shape._host import HostOperand
from shapeexec.shape._trace import Trace

_FILLS_LOCK = threading.Lock()
_FILLS: weakref.WeakKeyDictionary[Trace, dict[bool, Report]] = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True, eq=False)
class Masked:
    """A function whose padding never reaches a valid element.

    Attributes:
        trace: The function, traced at symbolic sizes.
        ranges: Per symbol the least and the greatest size that the graph serves; the greatest is
            its bucket.
        poison: The name of the poison for padding without known facts; None: no poison.
        zero_padded: The padding of the arguments holds zeros, so that masks can be spared.
        zero_results: The padding of the results must hold zeros, except of typed PRNG keys.
        left_out: Which masks are left out, for copies that are only timed: their results are wrong.
    """

    trace: Trace
    ranges: Mapping[str, tuple[int, int]]
    poison: str | None = None
    zero_padded: bool = False
    zero_results: bool = False
    left_out: Callable[[MaskNote], bool] | None = None

    def __call__(
        self,
        sizes: Mapping[str, Any],
        consts: Sequence[Any],
        *,
        leaves: Sequence[Any],
        hosted: Mapping[HostOperand, Array] | None = None,
    ) -> list[Array]:
        """Run on padded arrays.

        Args:
            sizes: The true size of each symbol, int or i32[], traced or not.
            consts: The arrays that the function closed over, `trace.jaxpr.consts`.
            leaves: The flat arguments, at capacity.
            hosted: The numbers computed on the host; None: they are computed from `sizes`, by a
                callback to Python if these are traced.

        Returns:
            The flat results, at capacity, in the dtypes and weak types of the plain function.
        """
        return self.noted(sizes, consts, leaves=leaves, hosted=hosted)[0]

    def noted(
        self,
        sizes: Mapping[str, Any],
        consts: Sequence[Any],
        *,
        leaves: Sequence[Any],
        hosted: Mapping[HostOperand, Array] | None = None,
        watch: Watch | None = None,
    ) -> tuple[list[Array], list[MaskNote]]:
        """Run on padded arrays as a call does, and report each mask that is added or spared.

        Args:
            sizes: As for a call.
            consts: As for a call.
            leaves: As for a call.
            hosted: As for a call.
            watch: Called for each equation, see `Interpreter`.
        """
        # Under poison each reader fills for itself: a fill at the source would hide a missing mask.
        planned = (
            Report() if self.poison else self._fills(sizes, consts, leaves=leaves, hosted=hosted)
        )
        interpreter = Interpreter(self.poison, planned=planned, watch=watch)
        results = self._run(sizes, consts, leaves=leaves, interpreter=interpreter, hosted=hosted)
        return results, interpreter.report.notes

    def _fills(
        self,
        sizes: Mapping[str, Any],
        consts: Sequence[Any],
        *,
        leaves: Sequence[Any],
        hosted: Mapping[HostOperand, Array] | None,
    ) -> Report:
        """Which values are filled where they are computed, from a pass over the trace.

        All buckets of a trace share the report. It only decides where fills are placed, never that
        a fill is needless, so a report made at other buckets is right, too.
        """
        with _FILLS_LOCK:
            known = _FILLS.setdefault(self.trace, {})
            found = known.get(self.zero_padded)
        if found is not None:
            return found
        report = Report()

        def run(sizes: Any, consts: Any, *, leaves: Any) -> list[Array]:
            first = Interpreter(report=report, typed=TypedResults())
            return self._run(sizes, consts, leaves=leaves, interpreter=first, hosted=hosted)

        _compat.eval_shape(run, sizes, consts, leaves=leaves)
        with _FILLS_LOCK:
            return known.setdefault(self.zero_padded, report)

    def _run(
        self,
        sizes: Mapping[str, Any],
        consts: Sequence[Any],
        *,
        leaves: Sequence[Any],
        interpreter: Interpreter,
        hosted: Mapping[HostOperand, Array] | None = None,
    ) -> list[Array]:
        jaxpr = self.trace.jaxpr.jaxpr
        lengths = {s: _compat.asarray(n, np.int32) for s, n in sizes.items()}
        host = at_sizes(sizes) if hosted is None else hosted.__getitem__
        extents = Extents(
            self.ranges,
            lengths,
            substitution=self.trace.substitution,
            host=host,
            left_out=self.left_out,
        )
        operands = [
            self._argument(var.aval, leaf, extents=extents)
            for var, leaf in zip(jaxpr.invars, leaves, strict=True)
        ]
        closed = _compat.ClosedJaxpr(jaxpr, list(consts))
        # The user's settings are for the function, and rules rely on JAX's defaults.
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            results = interpreter.run(closed, extents, operands=operands)
            report = interpreter.report
            results = [
                _zero_padded(value, var.aval, extents=extents, report=report)
                if self.zero_results or _is_checked(var.aval)
                else value
                for value, var in zip(results, jaxpr.outvars, strict=True)
            ]
        return [
            _compat.with_weak_type(value.array, var.aval)
            for value, var in zip(results, jaxpr.outvars, strict=True)
        ]

    def _argument(self, aval: Any, leaf: Any, *, extents: Extents) -> Value:
        known = nothing_known_of(aval)
        # Narrower than the buckets where a guard has made a symbol an int.
        leaf = conform(leaf, extents.capacities(aval.shape))
        if not holds_dim(tuple(aval.shape)):
            return Value(leaf, known)
        if self.poison is not None:
            leaf = poison_padding(
                leaf, extents.lengths(aval.shape), known=known, poison=self.poison
            )
        elif self.zero_padded and not _compat.is_extended(aval.dtype):
            zero = constant(np.zeros((), aval.dtype))
            axes = [
                old if isinstance(dim, int) else zero
                for dim, old in zip(aval.shape, known.axes, strict=True)
            ]
            known = Known(known.whole, tuple(axes))
        return Value(leaf, known)


def _is_checked(aval: Any) -> bool:
    """Whether JAX's debug options would find NaN or infinity in the padding of a result."""
    return _compat.checks_results() and jnp.issubdtype(aval.dtype, np.inexact)


def _zero_padded(value: Value, aval: Any, *, extents: Extents, report: Report) -> Value:
    """A result whose padding is zeros: it is filled unless zeros are known to be there."""
    if _compat.is_extended(aval.dtype) or aval.dtype == jax.dtypes.float0:
        return value
    zero = np.zeros((), aval.dtype)[()]
    axes = [
        axis
        for axis, (dim, known) in enumerate(zip(aval.shape, value.known.axes, strict=True))
        if not isinstance(dim, int) and not known.is_constant(zero)
    ]
    if not axes:
        return value
    why = f"padding is {value.known.axes[axes[0]]}"
    report.note(MaskNote("result", None, along(aval, axes), "filled with 0", masked=True, why=why))
    array = fill(_compat.asarray(value.array), extents.lengths(aval.shape), value=0, axes=axes)
    return dataclasses.replace(value, array=array)
