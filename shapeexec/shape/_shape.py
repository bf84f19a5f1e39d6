"""Shapes: a dtype and the dims of all axes, printed as jaxprs print them.

The shapes of a function's results are computed in `_propagate`.
"""

import dataclasses
from collections.abc import Sequence
from types import EllipsisType
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from shapeexec._code import call, code
from shapeexec._errors import SpecError
from shapeexec.shape import _unknown
from shapeexec.shape._dim import (
    BATCH,
    Dim,
    DimLike,
    evaluate,
    from_jax,
    is_unknown,
    maximum,
    negative,
    to_jax,
)
from shapeexec.shape._pattern import Spec, make_spec, parse_spec
from shapeexec.shape._unknown import UNKNOWN, Unknown


@dataclasses.dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Shape:
    """The dtype and the dims of an array.

    Attributes:
        dtype: A NumPy dtype, or one of JAX's extended dtypes (PRNG keys). None: any.
        dims: One per axis: an int, or a `Dim` where it is symbolic.

    Args:
        dtype: Anything that NumPy accepts as a dtype, or one of JAX's extended dtypes. None
            matches any dtype, in a spec and in a pattern.
        dims: Integers of at least 0, `Dim`s, strings such as `"2*s + 1"`, or `UNKNOWN`, which
            becomes a symbol of its own, named after its axis (`unknown_0`).

    Raises:
        SpecError: `dtype` is not a dtype, or a dim is not a dim or negative.

    Example:
        >>> str(Shape(jnp.float32, BATCH, "2*s + 1", 512))
        'f32[b,2*s + 1,512]'
    """

    # Any: NumPy's dtypes and JAX's extended ones share no type.
    dtype: Any
    dims: tuple[int | Dim, ...]

    def __init__(self, dtype: Any, *dims: DimLike | Unknown) -> None:
        object.__setattr__(self, "dtype", _dtype(dtype))
        object.__setattr__(self, "dims", _dims(dims))

    @classmethod
    def of(cls, array: Any) -> "Shape":
        """Return the shape of an array, of a `ShapeDtypeStruct`, or of anything like them.

        Args:
            array: Has `.shape`, which may contain JAX dims, and `.dtype`.

        Returns:
            The shape, with the dtype of the array.

        Raises:
            SpecError: It has no shape or no dtype.
        """
        if not is_array(array):
            raise SpecError(
                f"a {type(array).__name__} has no shape and dtype.",
                path="array",
                fix="Shape.of(jnp.asarray(x))",
            )
        return cls(array.dtype, *map(from_jax, array.shape))

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.dims)

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols of all dims."""
        return frozenset[str]().union(*(dim.symbols for dim in self.dims if isinstance(dim, Dim)))

    @property
    def is_static(self) -> bool:
        """Whether every dim is an integer."""
        return not self.symbols

    def matches(
        self, pattern: "str | Shape | tuple[DimLike | Unknown | EllipsisType | None, ...]"
    ) -> bool:
        """Return whether the shape is an instance of a pattern.

        An integer matches only that size. A symbol matches any dim, but the same dim wherever it
        occurs. An expression matches its value with the matched dims in place of its symbols; a
        symbol that occurs in expressions only matches itself. `_`, None, `?` and `UNKNOWN` match
        any dim, `...` any number of axes.

        Args:
            pattern: A string like `"b, s, 512"` or `"b, ..."`; a tuple of dims; or a shape, whose
                dtype, if it has one, must be the same.

        Returns:
            True or False.

        Raises:
            SpecError: The pattern is malformed, or not a pattern.
        """
        given: Any = pattern  # whatever a caller without a type checker passes
        if not isinstance(given, Shape | str | tuple | list):
            raise SpecError(
                f"a {type(given).__name__} is not a pattern.",
                path="pattern",
                fix='a string such as "b, ..." or "_, 4", a tuple of dims, or a Shape: '
                "sx.Shape.of(x) is the shape of an array",
            )
        if isinstance(pattern, Shape):
            spec = dataclasses.replace(make_spec(pattern.dims), dtype=pattern.dtype)
        else:
            spec = parse_spec(pattern) if isinstance(pattern, str) else make_spec(pattern)
        if not spec.accepts_rank(self.rank):
            return False
        if spec.dtype is not None and not _same_dtype(spec.dtype, self.dtype):
            return False
        return _match(spec, self.dims)

    def with_dim(self, axis: int, dim: DimLike | Unknown) -> "Shape":
        """Return the shape with another dim on one axis.

        Args:
            axis: From `-rank` to `rank - 1`.
            dim: As for `Shape`.

        Returns:
            A new shape, of the same dtype.

        Raises:
            SpecError: There is no such axis.
        """
        if not _is_integer(axis) or not -self.rank <= axis < self.rank:
            raise SpecError(
                f"{self} has no axis {axis!r}.",
                path="axis",
                fix=f"an axis from {-self.rank} to {self.rank - 1}"
                if self.rank
                else "a shape of rank 1 or more",
            )
        dims: list[DimLike | Unknown] = list(self.dims)
        dims[axis] = dim
        return Shape(self.dtype, *dims)

    def with_dynamic_batch(self) -> "Shape":
        """Return the shape with the symbol `BATCH` on axis 0.

        Raises:
            SpecError: The shape has no axes.
        """
        return self.with_dim(0, BATCH)

    def evaluate(self, **sizes: int) -> "Shape":
        """Return the static shape at these sizes.

        Args:
            sizes: By symbol.

        Returns:
            A shape of ints, of the same dtype.

        Raises:
            SpecError: A symbol of the shape has no size.
        """
        return Shape(self.dtype, *(evaluate(dim, sizes) for dim in self.dims))

    def upper_bound(self, **buckets: int) -> "Shape":
        """Return the static shape of the capacities: each dim at its largest value.

        Args:
            buckets: By symbol; sizes range from 1 up to them.

        Returns:
            A shape of ints, of the same dtype.

        Raises:
            UnboundedDimError: A dim grows with a symbol that has no bucket.
        """
        ranges = {symbol: (1, bucket) for symbol, bucket in buckets.items()}
        return Shape(self.dtype, *(maximum(dim, ranges) for dim in self.dims))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shape):
            return NotImplemented
        return _same_dtype(self.dtype, other.dtype) and self.dims == other.dims

    def __hash__(self) -> int:
        return hash((self.dtype, self.dims))

    def __str__(self) -> str:
        name = "" if self.dtype is None else dtype_name(self.dtype)
        return f"{name}[{','.join(map(str, self.dims))}]"

    def __repr__(self) -> str:
        return f"Shape({self})"


@code.register
def _(value: Shape) -> str | None:
    dtype: Any = value.dtype
    if not isinstance(dtype, np.dtype | None):
        return None  # the dtypes of PRNG keys have no name
    name = None if value.dtype is None else value.dtype.name
    return call("sx.Shape", name, *(d if isinstance(d, int) else str(d) for d in value.dims))


def is_array(value: Any) -> bool:
    """Return whether a value counts as an array: it has a `.shape` and a `.dtype`, not None."""
    if isinstance(value, type):  # the class np.float32 has both attributes
        return False
    return getattr(value, "shape", None) is not None and getattr(value, "dtype", None) is not None


def _dims(dims: Sequence[DimLike | Unknown]) -> tuple[int | Dim, ...]:
    taken = {str(dim) for dim in dims}
    plain: list[int | Dim] = []
    for axis, dim in enumerate(dims):
        name = _unknown.of_axis(axis)
        if is_unknown(dim):
            own = Dim(UNKNOWN if name in taken else name)
        else:
            own = _dim_of(dim, dims, axis=axis)
        plain.append(own.value if own.is_static else own)
    return tuple(plain)


def _dim_of(dim: DimLike | Unknown, dims: Sequence[Any], *, axis: int) -> Dim:
    own = from_jax(dim) if _is_integer(dim) else Dim(dim)
    if own.is_static and own.value < 0:
        texts = ", ".join(map(str, dims))
        raise negative(f"a Shape has the negative size {own} on axis {axis}: {texts}.")
    return own


def _is_integer(dim: Any) -> bool:
    return hasattr(dim, "__index__") and not isinstance(dim, bool | str | Dim)


def _same_dtype(dtype: Any, other: Any) -> bool:
    if dtype is None or other is None:  # NumPy would compare None as float64
        return dtype is other
    return bool(dtype == other)


def _dtype(dtype: Any) -> Any:
    if dtype is None:
        return None
    try:
        return dtype if jnp.issubdtype(dtype, jax.dtypes.extended) else np.dtype(dtype)
    except TypeError:
        raise SpecError(
            f"{dtype!r} is not a dtype.", path="dtype", fix='jnp.float32, or its name: "float32"'
        ) from None


def dtype_name(dtype: Any) -> str:
    """The short name of a dtype, as jaxprs print it."""
    # Only JAX knows these names, and it prints them only with a shape.
    return jax.core.ShapedArray((), dtype).str_short(short_dtypes=True).removesuffix("[]")


def _match(spec: Spec, dims: tuple[int | Dim, ...]) -> bool:
    matched: dict[str, int | Dim] = {}
    others: list[tuple[int | Dim, int | Dim]] = []
    for wanted, dim in zip(spec.resolve(dims), dims, strict=True):
        if not isinstance(wanted, Dim) or wanted.name is None:
            others.append((wanted, dim))
        elif matched.setdefault(wanted.name, dim) != dim:
            return False
    return all(_substitute(wanted, matched) == dim for wanted, dim in others)


def _substitute(dim: int | Dim, by: dict[str, int | Dim]) -> int | Dim:
    if isinstance(dim, int):
        return dim
    scope = jax.export.SymbolicScope()
    env = {symbol: to_jax(by.get(symbol, Dim(symbol)), scope) for symbol in dim.symbols}
    return from_jax(evaluate(dim, env))
