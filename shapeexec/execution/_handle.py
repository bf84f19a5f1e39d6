"""Results that stay on their device at capacity, and go into the next call as they are.

A graph relies on zeros behind the valid elements of its arguments. The padding of handles that an
`Exec` returns is zero; the padding of other handles is overwritten with zeros when they are used.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from shapeexec import _compat
from shapeexec._errors import ConfigError
from shapeexec.bucketing._checks import is_int
from shapeexec.execution import _transfer
from shapeexec.execution._modes import Mode
from shapeexec.execution._narrow import is_listed
from shapeexec.execution._options import as_size
from shapeexec.execution._placement import Shape
from shapeexec.shape import _trees
from shapeexec.shape._shape import dtype_name


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Padded:
    """An array at capacity, and the shape of its valid part: a result that was not cut.

    Any `Exec` accepts it in place of the array of the true shape, without a copy if the array has
    the capacity of the graph. It is a leaf to `jax.tree`. `jax.numpy` and `jax.jit` refuse it,
    because they would compute with its padding: pass `handle.cut()`.

    Args:
        array: On a device, not traced. The valid elements come first along each axis; the padding
            may hold anything.
        shape: The true shape, of the same rank, on no axis larger.

    Raises:
        ConfigError: `array` is not a `jax.Array`, or `shape` does not fit into it.

    Example:
        >>> handle = Padded(jax.numpy.arange(8.0), (5,))
        >>> handle.shape, handle.array.shape, float(np.asarray(handle).sum())
        ((5,), (8,), 10.0)
    """

    array: jax.Array
    shape: Shape
    _is_zero_padded: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self) -> None:
        array, shape = self.array, self.shape
        if not _holds_data(array):
            raise ConfigError(
                "Padded takes a jax.Array that holds data.",
                option="array",
                got=f"{array!r:.80}",
                fix="Padded(jax.numpy.asarray(array), shape), outside of functions that are traced",
            )
        if not is_listed(shape) or not _fits(shape, array.shape):
            raise ConfigError(
                f"Padded: shape={shape!r:.80} does not fit into the array.",
                option="shape",
                got=f"an array of shape {array.shape}",
                fix=f"the true shape: {array.ndim} ints, none above {array.shape}",
            )
        object.__setattr__(self, "shape", tuple(map(int, shape)))

    @property
    def dtype(self) -> Any:
        """The dtype of the array."""
        return self.array.dtype

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    @property
    def weak_type(self) -> bool:
        """Whether it promotes like a Python scalar."""
        return bool(getattr(self.array, "weak_type", False))

    @property
    def committed(self) -> bool:
        """Whether the array is committed to its devices, as in JAX."""
        return bool(_compat.is_committed(self.array))

    @property
    def sharding(self) -> jax.sharding.Sharding:
        """The sharding of the array."""
        return self.array.sharding

    def is_deleted(self) -> bool:
        """Say whether the array is gone: it was donated, or deleted."""
        return self.array.is_deleted()

    def block_until_ready(self) -> "Padded":
        """Wait until the array is computed; `jax.block_until_ready` calls it."""
        _live(self).block_until_ready()
        return self

    def cut(self) -> jax.Array:
        """Cut the array to its true shape; the array itself if nothing is padded.

        On an accelerator this compiles a small program for each new shape.

        Raises:
            ConfigError: The array was donated.
        """
        return _transfer.cut(_live(self), self.shape, is_copied=True)

    def grown(self, by: int = 1, *, axis: int = 0) -> "Padded":
        """Append zeros along an axis, as by `jnp.pad`.

        Both handles share one array while it has room, so nothing is copied. Else the array becomes
        at least twice as long. PRNG keys have no zero: copies of other keys are appended.

        Args:
            by: The number of elements to append, at least 0.
            axis: Which axis.

        Returns:
            A handle of the longer array; this one keeps its shape.

        Raises:
            ConfigError: There is no such axis, `by` is not an int of at least 0, or the array was
                donated.
        """
        try:
            more, along = as_size(by), as_size(axis)
        except TypeError:
            more, along = -1, axis
        if more < 0 or not -self.ndim <= along < self.ndim:
            raise ConfigError(
                f"grown: by={by!r:.80} along axis={axis!r:.80} of a handle of shape {self.shape}.",
                option="axis" if is_int(by) and by >= 0 else "by",
                fix=f"by an int from 0 on, and an axis from {-self.ndim} to {self.ndim - 1}",
            )
        shape, capacity = list(self.shape), list(self.array.shape)
        shape[along] += more
        if shape[along] > capacity[along]:
            capacity[along] = max(2 * capacity[along], shape[along])
        array = pad(self, tuple(capacity), is_donated=True)  # as donated, for a JAX array
        return _zero_padded(array, tuple(shape))

    def __array__(
        self,
        dtype: Any = None,
        copy: bool | None = None,  # noqa: FBT001 - NumPy's signature
    ) -> np.ndarray:
        if copy is False:
            raise ConfigError(  # a ValueError, which NumPy asks of `__array__`
                "copy=False: a Padded has no NumPy array that could be shared.",
                option="copy",
                got=f"a handle of shape {self.shape}",
                why="its data is copied from its device",
                fix="np.asarray(handle)",
            )
        return np.array(np.asarray(_live(self))[_corner(self.shape)], dtype=dtype)

    def __repr__(self) -> str:
        true, whole = (",".join(map(str, shape)) for shape in (self.shape, self.array.shape))
        gone = ", deleted" if self.is_deleted() else ""
        return f"Padded({dtype_name(self.dtype)}[{true}] in [{whole}]{gone})"


def pad(x: Any, capacity: Shape, *, mode: Mode = "zeros", is_donated: bool = False) -> Any:
    """An argument at `capacity`, as by `_transfer.pad`; it may be a handle.

    Raises:
        ConfigError: The array of a handle was donated.
    """
    if type(x) is not Padded:
        return _transfer.pad(x, capacity, mode=mode, is_donated=is_donated)
    array = _live(x)
    is_padded = mode == "zeros" and _is_zero_padded(x)
    if array.shape == capacity and (is_padded or array.shape == x.shape):
        return array
    return _transfer.rebucket(array, x.shape, capacity=capacity, mode=mode, is_donated=is_donated)


def padded_result(x: Any, shape: Shape) -> Any:
    """A handle of a graph's result whose padding is zero; a NumPy array is cut instead."""
    if not isinstance(x, jax.Array):
        return _transfer.cut(x, shape)
    return _zero_padded(x, shape)


def unfilled_result(x: Any, shape: Shape) -> Any:
    """A handle of a graph's result with any padding; a NumPy array is cut instead."""
    return Padded(x, shape) if isinstance(x, jax.Array) else _transfer.cut(x, shape)


def host_result(x: Any, shape: Shape) -> Any:
    """A graph's result as a read-only NumPy array; typed PRNG keys stay JAX arrays."""
    if isinstance(x, jax.Array) and not _compat.is_extended(x.dtype):
        return np.asarray(x)[_corner(shape)]
    return _transfer.cut(x, shape)


def begin_copies(arrays: Sequence[Any]) -> None:
    """Start copying arrays to the host, all at once, before `host_result` waits for each."""
    for x in arrays:
        if isinstance(x, jax.Array):
            x.copy_to_host_async()


def on_host(arrays: Sequence[Any]) -> list[Any]:
    """Whole arrays as NumPy arrays: see `host_result`."""
    begin_copies(arrays)
    return [host_result(x, x.shape) for x in arrays]


def stored(tree: Any) -> Any:
    """A tree with handles replaced by their padded arrays."""
    return jax.tree.map(_stored, tree)


def cut_all(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Arguments with handles replaced by arrays of their true shapes."""
    if not any(type(leaf) is Padded for leaf in _trees.leaves((list(args), dict(kwargs)))):
        return args, kwargs
    return jax.tree.map(_cut, (tuple(args), dict(kwargs)))


def _stored(x: Any) -> Any:
    return x.array if type(x) is Padded else x


def _cut(x: Any) -> Any:
    return x.cut() if type(x) is Padded else x


def _zero_padded(array: jax.Array, shape: Shape) -> Padded:
    handle = object.__new__(Padded)  # skips the checks of `__post_init__`
    vars(handle).update(array=array, shape=shape, _is_zero_padded=True)
    return handle


def _live(handle: Padded) -> jax.Array:
    array = handle.array
    if array.is_deleted():
        raise ConfigError(
            "the array of this sx.Padded is gone.",
            got=f"{handle!r}",
            why="it was donated to a call, whose results reuse its memory",
            fix="use the handle that this call returned, or do not donate: donate_argnums=()",
        )
    return array


def _is_zero_padded(handle: Padded) -> bool:
    # Typed PRNG keys have no zero, and no graph relies on one.
    return handle._is_zero_padded or _compat.is_extended(handle.dtype)  # pyright: ignore[reportPrivateUsage] - no other module may read it


def _holds_data(array: object) -> bool:
    return isinstance(array, jax.Array) and not _compat.is_traced(array)


def _fits(shape: Sequence[Any], capacity: Shape) -> bool:
    return len(shape) == len(capacity) and all(
        isinstance(size, int | np.integer) and 0 <= size <= most
        for size, most in zip(shape, capacity, strict=True)
    )


def _corner(shape: Shape) -> Any:
    return (*map(slice, shape), ...)  # the `...` makes NumPy return an array for no axes too
