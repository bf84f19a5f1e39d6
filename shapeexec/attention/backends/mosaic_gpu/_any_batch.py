"""Calls kernels whose text serves every number of examples.

The text of a kernel has the shapes of its operands, but where an example lies in an array does not
depend on how many follow it. So a kernel is lowered for more examples than there will ever be, and
told how many there are when it runs. Buckets of other batches find it lowered and compiled.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
from jax import Array

from shapeexec import _compat

_EXAMPLES = 1 << 16
"""The most examples that kernels are lowered for."""

_BYTES = 1 << 38
"""The most bytes of an array that kernels are lowered for, which is more than a GPU holds.

An H100 stops with an illegal instruction at the first copy from an array of 2^40 bytes, whether or
not it is behind the examples that there are.
"""

_MOST = 512
"""The most kernels that are kept, of some hundred kilobytes each."""


def call(
    function: Callable[..., list[Array]],
    results: Sequence[jax.ShapeDtypeStruct],
    arrays: Sequence[Array],
    *,
    changed: Sequence[bool],
    by_example: Sequence[bool],
    batch: int,
    key: Hashable,
) -> list[Array]:
    """function(results, *arrays), which makes one kernel and nothing else.

    Args:
        function: Returns arrays of the shapes and dtypes `results`, then the `changed` arrays.
        results: Shapes and dtypes; the first axis is the examples'.
        arrays: The operands.
        changed: Whether the kernel overwrites each array.
        by_example: Whether the first axis of each array is the examples'.
        batch: The number of examples.
        key: All that the function does depends on, but for the operands' shapes.

    Returns:
        What the function returns.
    """
    pairs = list(zip(arrays, by_example, strict=True))
    assert all(x.shape[0] == batch for x, is_so in pairs if is_so), "else what lies behind is read"
    examples = _examples([*results, *(x for x, is_so in pairs if is_so)])
    if batch > examples:
        return function(results, *arrays)
    general = [_general(x, examples if is_so else None) for x, is_so in pairs]
    many = [_general(x, examples) for x in results]
    shapes = tuple((x.shape, x.dtype) for x in general)
    kernel = _lowered(_Text((key, shapes), functools.partial(function, many), general))
    if kernel is None:
        return function(results, *arrays)
    places = [i for i, is_so in enumerate(changed) if is_so]
    aliases = {place: len(results) + i for i, place in enumerate(places)}
    updates = [jax.ShapeDtypeStruct(arrays[i].shape, arrays[i].dtype) for i in places]
    results = [*results, *updates]
    return _compat.call_mosaic_kernel(kernel, arrays, results=results, aliases=aliases)


@dataclasses.dataclass(frozen=True)
class _Text:
    """The text of a kernel, yet to be made.

    Attributes:
        key: All that it depends on.
        function: Makes the kernel, and nothing else.
        operands: The operands' shapes and dtypes.
    """

    key: Hashable
    function: Callable[..., list[Array]] = dataclasses.field(compare=False)
    operands: Sequence[jax.ShapeDtypeStruct] = dataclasses.field(compare=False)


@_compat.cache_of_traces(_MOST)
def _lowered(text: _Text) -> _compat.MosaicKernel | None:
    return _compat.mosaic_kernel(text.function, text.operands)


def _examples(arrays: Sequence[Any]) -> int:
    """The number of examples to lower a kernel for whose arrays have one in each first index."""
    largest = max(math.prod(x.shape[1:]) * x.dtype.itemsize for x in arrays)
    return min(_EXAMPLES, _BYTES // max(largest, 1))


def _general(x: Any, examples: int | None) -> jax.ShapeDtypeStruct:
    """Its shape and dtype, with this many examples if it has any."""
    shape = x.shape if examples is None else (examples, *x.shape[1:])
    return jax.ShapeDtypeStruct(shape, x.dtype)
