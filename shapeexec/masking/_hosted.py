"""The numbers computed on the host that a graph takes, as bits behind the sizes in one i32 vector.

How they are computed is known in `shape._host`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking._extents import Extents, holds_dim
from shapeexec.shape._host import HostOperand, HostValues
from shapeexec.shape._trace import Trace

_VALUE_OF_A_DIM = "dim_as_value"
_VALUE = "host_value"


def host_operands(trace: Trace, ranges: Mapping[str, tuple[int, int]]) -> tuple[HostOperand, ...]:
    """The numbers that a graph of a trace takes beside the sizes, each once.

    These are the numbers that the function computes on the host, and the dims that exceed i32 at
    some size in `ranges`.
    """
    extents = Extents(ranges, {}, substitution=trace.substitution)
    return tuple(dict.fromkeys(_operands(trace.jaxpr.jaxpr, extents)))


def _operands(jaxpr: Any, extents: Extents) -> Iterator[HostOperand]:
    for var in jaxpr.invars:
        yield from _of_dims(var.aval, extents)
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == _VALUE:
            yield eqn.params["operand"]
            continue
        for var in eqn.outvars:
            yield from _of_dims(var.aval, extents)
        if eqn.primitive.name == _VALUE_OF_A_DIM:
            yield from _beyond(
                eqn.params["dim"], extents, dtype=eqn.outvars[0].aval.dtype, via="argument"
            )
            continue
        for param in eqn.params.values():
            yield from _of_param(param, extents)
        for inner in _compat.sub_jaxprs(eqn.params):
            yield from _operands(getattr(inner, "jaxpr", inner), extents)


def _of_dims(aval: Any, extents: Extents) -> Iterator[HostOperand]:
    for dim in getattr(aval, "shape", ()):
        yield from _of_param(dim, extents)


def _of_param(param: Any, extents: Extents) -> Iterator[HostOperand]:
    if not holds_dim(param):
        return
    if type(param) in (tuple, list):
        for part in param:
            yield from _of_param(part, extents)
    else:
        yield from _beyond(param, extents, dtype=np.int32, via="length")


def _beyond(dim: Any, extents: Extents, *, dtype: Any, via: str) -> Iterator[HostOperand]:
    operand = extents.beyond_i32(dim, dtype, via=via)
    if operand is not None:
        yield operand


def unpacked(operands: Sequence[HostOperand], words: Array) -> dict[HostOperand, Array]:
    """The numbers whose bits `words`, i32[words], holds one after the other."""
    found: dict[HostOperand, Array] = {}
    start = 0
    for operand in operands:
        stop = start + operand.words
        found[operand] = _from_bits(words[start:stop], operand)
        start = stop
    return found


def _from_bits(words: Array, operand: HostOperand) -> Array:
    size, dtype = int(np.prod(operand.shape, dtype=np.int64)), operand.dtype
    if dtype == np.bool_:
        return (
            _from_bits_of(words, np.dtype(np.uint8), size=size).astype(bool).reshape(operand.shape)
        )
    if dtype.kind == "c":
        parts = _from_bits_of(words, np.dtype(f"f{dtype.itemsize // 2}"), size=2 * size)
        return lax.complex(parts[0::2], parts[1::2]).reshape(operand.shape)
    return _from_bits_of(words, dtype, size=size).reshape(operand.shape)


def _from_bits_of(words: Array, dtype: Any, *, size: int) -> Array:
    if dtype.itemsize == 8:
        return lax.bitcast_convert_type(words.reshape(-1, 2), dtype)
    return lax.bitcast_convert_type(words, dtype).reshape(-1)[:size]


def at_sizes(sizes: Mapping[str, Any]) -> Callable[[HostOperand], Array]:
    """A function that computes host numbers; if sizes are traced, by a callback to the host."""
    if all(isinstance(size, int | np.integer) for size in sizes.values()):
        values = HostValues({symbol: int(size) for symbol, size in sizes.items()})
        return lambda operand: _compat.asarray(operand.at(values))

    def called_back(operand: HostOperand) -> Array:
        def value(traced: Mapping[str, Any]) -> np.ndarray:
            return operand.at(HostValues({symbol: int(size) for symbol, size in traced.items()}))

        result = jax.ShapeDtypeStruct(operand.shape, operand.dtype)
        used = {s: sizes[s] for s in sorted(operand.expression.symbols)}
        return jax.pure_callback(value, result, used, vmap_method="sequential")

    return called_back
