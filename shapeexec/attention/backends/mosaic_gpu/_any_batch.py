"""Calls kernels whose text serves any size of the first axes of arrays: any number of examples.

The text of a kernel has the shapes of its operands, but where an example lies in an array does not
depend on how many follow it. So a kernel is lowered for more examples than there will ever be, and
told how many there are when it runs. Buckets of other batches find it lowered and compiled. Where a
first axis holds the rows of all examples (`_merged`), those of other lengths do, too.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
from jax import Array

from shapeexec import _compat
from shapeexec.attention.backends.mosaic_gpu import _on_disk
from shapeexec.attention.backends.mosaic_gpu._tiles import TILE

_LARGEST = 1 << 30
"""The largest first axis that kernels are lowered for: 32 bits count its elements."""

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
    open_ended: Sequence[bool],
    key: Hashable,
) -> list[Array]:
    """function(results, *arrays), which makes one kernel and nothing else.

    Args:
        function: Returns arrays of the shapes and dtypes `results`, then the `changed` arrays.
        results: Shapes and dtypes.
        arrays: The operands.
        changed: Whether the kernel overwrites each array.
        open_ended: Whether the first axis of each array may have any size; if that of one may,
            those of results may, too.
        key: All that the function does depends on, but for the operands' shapes.

    Returns:
        What the function returns.
    """
    pairs = list(zip(arrays, open_ended, strict=True))
    general = [_general(x) if is_so else _as_it_is(x) for x, is_so in pairs]
    many = [_general(x) for x in results] if any(open_ended) else results
    served = zip([*arrays, *results], [*general, *many], strict=True)
    if any(x.shape[0] > y.shape[0] for x, y in served):
        return function(results, *arrays)
    shapes = tuple((x.shape, x.dtype) for x in [*general, *many])
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
    return _on_disk.kernel(text.key, lambda: _compat.mosaic_kernel(text.function, text.operands))


def _general(x: Any) -> jax.ShapeDtypeStruct:
    """Its dtype, and its shape with the largest first axis."""
    of_one = max(math.prod(x.shape[1:]) * x.dtype.itemsize, 1)
    most = _BYTES // of_one
    most -= most % TILE if most > TILE else 0  # rows that are copied in tiles are whole ones
    return jax.ShapeDtypeStruct((min(_LARGEST, most), *x.shape[1:]), x.dtype)


def _as_it_is(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)
