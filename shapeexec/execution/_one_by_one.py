"""Examples that run one by one because the function calls the host: callbacks run once per example.

A vmap would run them for fillers too, and the first callback for all examples before the second.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from shapeexec import _compat
from shapeexec.masking.folding._plan import sum_dtype


def calls_the_host(jaxpr: Any) -> bool:
    """Whether an equation of an open jaxpr, or of one inside of it, is a callback."""
    return any(eqn.primitive.name in _compat.CALLBACKS for eqn in _compat.equations(jaxpr))


def one_by_one(
    one: Callable[..., Sequence[Any]],
    vectors: Any,
    *,
    leaves: Sequence[Any],
    is_mapped: Sequence[bool],
    count: Any,
) -> list[Any]:
    """The results of a vmap of `one`, by a loop over the first `count` examples.

    Args:
        one: Called with the sizes and the leaves of one example.
        vectors: i32[examples, symbols].
        leaves: The arguments, those that are mapped with a first axis for the examples.
        is_mapped: Per leaf whether it is.
        count: i32[]: the number of examples without fillers.

    Returns:
        Its results with a first axis for the examples; zeros for fillers.
    """

    def at(number: Any) -> Sequence[Any]:
        own = [
            _compat.dynamic_index_in_dim(leaf, number, keepdims=False) if mapped else leaf
            for leaf, mapped in zip(leaves, is_mapped, strict=True)
        ]
        return one(_compat.dynamic_index_in_dim(vectors, number, keepdims=False), own)

    def step(number: Any, results: list[Any]) -> list[Any]:
        pairs = zip(results, at(number), strict=True)
        return [lax.dynamic_update_index_in_dim(all_, own, number, 0) for all_, own in pairs]

    shapes = _compat.eval_shape(at, np.int32(0))
    empty = [lax.full((len(vectors), *x.shape), 0, x.dtype) for x in shapes]  # of keys, too
    return _compat.fori_loop(0, count, step, empty)


def sum_one_by_one(results: Sequence[Any]) -> list[Any]:
    """The sums over examples of what `one_by_one` gives, in its dtypes, in at least 32 bits."""
    return [jnp.sum(x.astype(sum_dtype(x.dtype)), axis=0).astype(x.dtype) for x in results]
