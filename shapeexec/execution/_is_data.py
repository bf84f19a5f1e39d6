"""Which leaves of arguments are data of a graph, and which are not.

How the others are compared is known to `_parts`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import threading
import types
import weakref
from typing import Any

import jax
from jax import export

from shapeexec import _compat
from shapeexec.execution import _modules, _objects
from shapeexec.shape._numbers import HostNumber
from shapeexec.shape._shape import is_array

NUMBERS = (bool, int, float, complex)


def is_data(leaf: Any) -> bool:
    """Whether a leaf goes into a graph: an array, a number, a dim, or what JAX takes for one."""
    if isinstance(leaf, types.ModuleType):  # jax.numpy has `shape` and `dtype`, too
        return False
    if _holds_array(leaf):
        return False
    if is_array(leaf) or type(leaf) in NUMBERS or hasattr(leaf, "__jax_array__"):
        return True
    return export.is_symbolic_dim(leaf) or _has_aval(leaf)


def _holds_array(leaf: Any) -> bool:
    """Whether a leaf is an object around an array, such as a variable of Keras.

    JAX takes none as an argument. It is opened like any object, and its array is the data.
    """
    if not hasattr(leaf, "__jax_array__") or isinstance(leaf, jax.Array | HostNumber):
        return False
    if _compat.is_traced(leaf):  # of a token, say, which is no array
        return False
    is_own = export.is_symbolic_dim(leaf) or _modules.is_nnx(leaf)
    return not is_own and _objects.is_opened(leaf)


def _has_aval(leaf: object) -> bool:
    kind = type(leaf)
    known = _is_known.get(kind)
    if known is None:
        try:
            jax.typeof(leaf)
        except TypeError:
            known = False
        else:
            known = True
        with _lock:
            _is_known[kind] = known
    return known


_lock = threading.Lock()  # for writing to `_is_known`
_is_known: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()
