"""Operations on short vectors of a thread: values are their bytes; see `lockstep_numbers`."""

import numpy as np
from jaxlib.mlir import ir

from tests.attention.lockstep_numbers import DTYPES, elements


class Vectors:
    """The operations; operands and results are arrays, [programs, threads] or [1, 1]."""

    def vector_bitcast(self, op, x):
        return x

    def vector_broadcast(self, op, x):
        kind = ir.VectorType(op.results[0].type)
        parts = np.repeat(x[..., None], kind.shape[0], -1)
        return parts.view(DTYPES[str(kind)])[..., 0]

    def vector_extract(self, op, x):
        (place,) = op.attributes["static_position"]
        return elements(x, DTYPES[str(op.results[0].type)])[..., place]

    def vector_insert(self, op, value, x):
        (place,) = op.attributes["static_position"]
        parts = np.broadcast_arrays(elements(x, value.dtype), value[..., None])[0].copy("C")
        parts[..., place] = value
        return parts.view(x.dtype)[..., 0]

    def vector_shuffle(self, op, x, y):
        size = x.dtype.itemsize // ir.VectorType(op.operands[0].type).shape[0]
        parts = np.concatenate([elements(v, f"V{size}") for v in np.broadcast_arrays(x, y)], -1)
        chosen = np.ascontiguousarray(parts[..., list(op.attributes["mask"])])
        return chosen.view(DTYPES[str(op.results[0].type)])[..., 0]
