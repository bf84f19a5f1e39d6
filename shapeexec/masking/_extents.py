"""Dims in one graph: their capacities, which are constants, and their lengths, which are data.

Which padding has to be filled, and with what, is not known here.
"""

import copy
import numbers
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import Array, export

from shapeexec import _compat
from shapeexec.masking._fill import Length, overwritten, valid_mask
from shapeexec.shape import _dim
from shapeexec.shape._host import HostOperand, of_dim
from shapeexec.shape._substitution import Substitution


class Extents:
    """Capacities and valid lengths of dims, for one set of buckets.

    Args:
        ranges: The least and the greatest size of each symbol in this graph; the greatest is its
            bucket.
        sizes: The true size of each symbol: i32[], traced or not.
        substitution: The dims that replace symbols of the call in the jaxpr.
        host: Looks up the operand of the graph that holds a number computed on the host.
        left_out: Decides by its note whether a fill is left out; None: every fill is made.
    """

    def __init__(
        self,
        ranges: Mapping[str, tuple[int, int]],
        sizes: Mapping[str, Array],
        *,
        substitution: Substitution | None = None,
        host: Callable[[HostOperand], Array] | None = None,
        left_out: Callable[[Any], bool] | None = None,
    ) -> None:
        self._left_out = left_out
        self._substitution = Substitution() if substitution is None else substitution
        self._ranges = self._substitution.ranges(ranges)
        self._sizes = self._substitution.sizes(sizes)
        self._host = host
        self._lengths: dict[str, Array] = {}
        self._capacities: dict[str, int] = {}
        self._masks: dict[Hashable, Array | None] = {}

    def fork(self) -> "Extents":
        """A copy for the body of a loop or branch, whose tracers must not leak out of it."""
        forked = copy.copy(self)
        forked._lengths, forked._masks = dict(self._lengths), {}
        return forked

    def symbols(self, dims: Iterable[Any]) -> frozenset[str]:
        """The symbols of the call that occur in dims."""
        return self._substitution.symbols(s for dim in dims for s in _dim.symbols_of(dim))

    def capacity(self, dim: Any) -> int:
        """The most that `dim` can be at sizes up to the buckets."""
        if type(dim) is int:  # `isinstance` with an abstract class is slow
            return dim
        if isinstance(dim, numbers.Integral):
            return int(dim)
        text = _dim.dim_text(dim)
        if text not in self._capacities:
            self._capacities[text] = max(0, _dim.maximum(text, self._ranges))
        return self._capacities[text]

    def length(self, dim: Any) -> Length:
        """The value of `dim` at the true sizes: an int if it is static, else i32[]."""
        if isinstance(dim, numbers.Integral):
            return int(dim)  # parameters hold NumPy integers too; rules test for int
        text = _dim.dim_text(dim)
        if text not in self._lengths:
            operand = self.beyond_i32(text)
            self._lengths[text] = (
                _compat.asarray(_dim.evaluate(text, self._sizes), np.int32)
                if operand is None
                else self.host_value(operand)
            )
        return self._lengths[text]

    def beyond_i32(self, dim: Any, dtype: Any = np.int32, *, via: str = "length") -> Any:
        """The host operand for a dim that may exceed i32; None: the graph may compute it."""
        text = _dim.dim_text(dim)
        if isinstance(dim, numbers.Integral) or _dim.fits_i32(text, self._ranges):
            return None
        return HostOperand(of_dim(self._outward(text)), np.dtype(dtype), (), via)

    def _outward(self, text: str) -> str:
        return self._substitution.outward(text).text if self._substitution.outer else text

    def host_value(self, operand: HostOperand) -> Array:
        """The array of a number computed on the host."""
        assert self._host is not None, "sizes are known without one"
        return self._host(operand)

    def capacities(self, dims: Any) -> tuple[int, ...]:
        """One capacity per dim."""
        return tuple([dim if type(dim) is int else self.capacity(dim) for dim in dims])

    def lengths(self, dims: Any) -> tuple[Length, ...]:
        """One valid length per dim."""
        return tuple([dim if type(dim) is int else self.length(dim) for dim in dims])

    def filled(
        self, x: Array, dims: Sequence[Any], *, value: Any, axes: Sequence[int], note: Any
    ) -> Array:
        """`x`, of these dims and at capacity, with `value` as padding along `axes`.

        Fills of one shape share a mask. A mask of its own would cost each fill five more equations,
        which are traced and lowered for each graph until XLA finds them equal.
        """
        if self._left_out is not None and self._left_out(note):
            return x
        texts = tuple(_dim.dim_text(dims[axis]) for axis in axes)
        key = (_compat.current_trace(), x.shape, tuple(axes), texts)
        if key not in self._masks:
            self._masks[key] = valid_mask(x.shape, self.lengths(dims), axes=axes)
        return overwritten(x, self._masks[key], value=value)

    def at_capacity(self, param: Any) -> Any:
        """A primitive's parameter with each dim in it replaced by its capacity.

        Only tuples and lists are entered: named tuples such as gather's dimension numbers hold no
        dims.
        """
        if type(param) in _dim.DIMLESS_TYPES:
            return param
        if type(param) in (tuple, list):
            return type(param)(self.at_capacity(part) for part in param)
        return self.capacity(param) if export.is_symbolic_dim(param) else param


def holds_dim(param: Any) -> bool:
    """Whether a primitive's parameter holds a symbolic dim, or a number computed from sizes."""
    if type(param) in _dim.DIMLESS_TYPES:
        return False
    if type(param) in (tuple, list):
        return any(map(holds_dim, param))
    return export.is_symbolic_dim(param) or isinstance(param, HostOperand)


def is_ragged(eqn: Any) -> bool:
    """Whether a symbolic dim occurs anywhere in an equation, nested jaxprs included."""
    return any(map(_holds_dim_itself, (eqn, *_compat.equations_inside(eqn))))


def _holds_dim_itself(eqn: Any) -> bool:
    shapes = (getattr(var.aval, "shape", ()) for var in (*eqn.outvars, *eqn.invars))
    return any(map(holds_dim, map(tuple, shapes))) or any(map(holds_dim, eqn.params.values()))
