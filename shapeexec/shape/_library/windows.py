"""Convolutions whose padding is a size."""

import operator
from typing import Any

from jax import export

from shapeexec import _compat


@_compat.stands_in("conv_general_dilated")
def conv_general_dilated(original: Any, lhs: Any, rhs: Any, *args: Any, **kwargs: Any) -> Any:
    """JAX's own, which then takes a dim for the int that it is in a pair of paddings.

    Only where windows move by one and nothing is dilated: a kernel of ragged size, and the
    gradients of convolutions with one. The primitive itself takes dims.
    """
    if _is_strided(*args, **kwargs):
        return original(lhs, rhs, *args, **kwargs)
    return _compat.run_with_names(original, operator=_Operator())(lhs, rhs, *args, **kwargs)


def _is_strided(
    window_strides: Any,
    padding: Any,
    lhs_dilation: Any = None,
    rhs_dilation: Any = None,
    *_: Any,
    **__: Any,
) -> bool:
    del padding
    steps = (window_strides, lhs_dilation or (), rhs_dilation or ())
    return any(isinstance(step, int) and step != 1 for each in steps for step in each)


class _Operator:
    """The module `operator`, whose `index` takes a dim for the int that it is."""

    def __getattr__(self, name: str) -> Any:
        return getattr(operator, name)

    @staticmethod
    def index(x: Any) -> Any:
        return x if export.is_symbolic_dim(x) else operator.index(x)
