"""Makes operations in normal form, and defines the operations that normal forms consist of.

Each of these replaces several of JAX's: `pick` takes the elements of an array that lie on a grid,
`place` puts an array on a grid of zeros, `shaped` reshapes, `view` is a chain of slices and
transposes, `window_sum` sums in windows without padding. Other operations are JAX's, without axes
of size 1. The table of normal forms is in `_equalities`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from jax import lax
from jax import numpy as jnp

from shapeexec import _compat
from shapeexec.checking import _strides
from shapeexec.checking._fold import folded
from shapeexec.checking._grids import Axis, mesh, plain
from shapeexec.checking._values import Kind, Run, Table


@dataclasses.dataclass(frozen=True)
class Maker:
    """Makes values in normal form.

    Attributes:
        table: Numbers the values.
        equalities: The table of normal forms, by operation.
    """

    table: Table
    equalities: Mapping[str, Sequence["Equality"]]

    def make(
        self,
        op: str,
        params: Mapping[str, Any],
        *,
        operands: Sequence[int],
        kinds: Sequence[Kind],
        run: Run,
        key: Callable[[Mapping[str, Any]], Hashable],
    ) -> list[int]:
        """Add an operation in normal form and return its results.

        Args:
            op: The name.
            params: The parameters.
            operands: The operands.
            kinds: The types of the results.
            run: See `Node`.
            key: Makes the key of the parameters.
        """
        kind = kinds[0] if kinds else None
        asked = Asked(self, op, params, tuple(operands), kind, run, key)
        if len(kinds) == 1:
            if not kinds[0].size and not _compat.is_extended(kinds[0].dtype):
                return [self.table.constant(np.zeros(kinds[0].shape, kinds[0].dtype))]
            constant = self._folded(asked)
            if constant is not None:
                return [constant]
            for equality in self.equalities.get(op, ()):
                normal = equality(asked)
                if normal is not None:
                    return [normal]
        return self.table.make(op, key(params), operands=operands, kinds=kinds, run=run)

    def _folded(self, asked: "Asked") -> int | None:
        constants: list[np.ndarray] = []
        for value in asked.operands:
            constant = self.table.constant_of(value)
            if constant is None:
                return None
            constants.append(constant)
        result = folded(asked.op, constants, params=asked.params, kind=asked.kind)
        return None if result is None else self.table.constant(result)

    def own(self, op: str, operands: Sequence[int], *, kind: Kind, **params: Any) -> int:
        """Add one of our own operations, which `_RUNS` implements."""
        run = functools.partial(_run_own, function=_RUNS[op], params=params)
        (made,) = self.make(op, params, operands=operands, kinds=[kind], run=run, key=_own_key)
        return made

    def reshape(self, operand: int, shape: Sequence[int]) -> int:
        """`operand` in another shape."""
        given = self.table.kind(operand)
        kind = Kind(tuple(shape), given.dtype)
        if given.shape == kind.shape:
            return operand
        return self.own("shaped", [operand], kind=kind, new_sizes=kind.shape)

    def pick(self, operand: int, axes: Sequence[Axis]) -> int:
        """The elements of `operand` on a grid within it."""
        kind = Kind(tuple(count for *_, count in axes), self.table.kind(operand).dtype)
        return self.own("pick", [operand], kind=kind, axes=tuple(map(plain, axes)))

    def place(self, operand: int, axes: Sequence[Axis], *, shape: Sequence[int]) -> int:
        """`operand` on a grid of zeros of a shape."""
        turned = [
            (s + step * (n - 1), -step, n) if step < 0 else (s, step, n) for s, step, n in axes
        ]
        back = [(n - 1, -1, n) if step < 0 else (0, 1, n) for _, step, n in axes]
        kind = Kind(tuple(shape), self.table.kind(operand).dtype)
        on, value = tuple(map(plain, turned)), self.pick(operand, back)
        return self.own("place", [value], kind=kind, axes=on, shape=kind.shape)

    def only(self, operand: int, order: Sequence[int]) -> int:
        """`operand` with these axes in this order; all others are of size 1."""
        shape = self.table.kind(operand).shape
        ones = [axis for axis in range(len(shape)) if axis not in order]
        turned = self.transpose(operand, [*ones, *order])
        return self.reshape(turned, [shape[axis] for axis in order])

    def transpose(self, operand: int, permutation: Sequence[int]) -> int:
        """`operand` with its axes in another order."""
        kind = self.table.kind(operand)
        if [*permutation] == sorted(permutation):
            return operand
        shape = [kind.shape[axis] for axis in permutation]
        if not kind.size:
            none = Kind(tuple(shape), kind.dtype)
            return self.own("view", [operand], kind=none, offset=0, loops=((0, 1),))
        view = _strides.view_of(self.table, operand)
        along = view.by_axis(kind.shape)
        if along is None:
            view = _strides.whole(operand, kind.shape)
            along = view.by_axis(kind.shape)
            assert along is not None
        loops = [loop for axis in permutation for loop in along[axis]]
        return self.read(dataclasses.replace(view, loops=tuple(_strides.merged(loops))), shape)

    def read(self, view: _strides.View, shape: Sequence[int]) -> int:
        """The elements that a view reads, in a shape."""
        given = self.table.kind(view.base)
        if view == _strides.whole(view.base, given.shape):
            return self.reshape(view.base, shape)
        kind = Kind(tuple(loop.size for loop in view.loops), given.dtype)
        loops = tuple((loop.size, loop.stride) for loop in view.loops)
        value = self.own("view", [view.base], kind=kind, offset=view.offset, loops=loops)
        return self.reshape(value, shape)


@dataclasses.dataclass(frozen=True)
class Asked:
    """An operation that needs a normal form.

    Attributes:
        maker: Makes the normal form.
        op: The name.
        params: The parameters, with ints for dims.
        operands: The operands.
        kind: The type of its only result.
        run: See `Node`.
        key: Makes the key of the parameters.
    """

    maker: Maker
    op: str
    params: Mapping[str, Any]
    operands: tuple[int, ...]
    kind: Any
    run: Run
    key: Callable[[Mapping[str, Any]], Hashable]

    def derived(self, params: Hashable, operands: Sequence[int], *, order: Sequence[int]) -> int:
        """The operation on other operands, whose result has only these axes, in this order."""
        ones = [axis for axis in range(len(self.kind.shape)) if axis not in order]
        permutation = [*ones, *order]
        kind = Kind(tuple(self.kind.shape[axis] for axis in order), self.kind.dtype)

        def run(arrays: Sequence[Any]) -> list[Any]:
            (whole,) = self.run(arrays)
            return [lax.reshape(lax.transpose(whole, permutation), kind.shape)]

        (made,) = self.table.make(
            self.op, params, operands=operands, kinds=[kind], run=run, inputs=self.operands
        )
        back = [[*order].index(axis) for axis in sorted(order)]
        short = self.maker.transpose(made, back)
        return self.maker.reshape(short, self.kind.shape)

    @property
    def table(self) -> Table:
        """The table of all values."""
        return self.maker.table

    def shape(self, operand: int = 0) -> tuple[int, ...]:
        """The shape of an operand."""
        return self.table.kind(self.operands[operand]).shape

    def constant(self, operand: int) -> np.ndarray | None:
        """The value of an operand; None: unknown."""
        return self.table.constant_of(self.operands[operand])


Equality = Callable[[Asked], int | None]


def is_even(precision: Any) -> bool:
    """Whether a product has the same precision for both operands."""
    return not isinstance(precision, tuple) or len(set(cast(tuple[Any, ...], precision))) == 1


def _own_key(params: Mapping[str, Any]) -> Hashable:
    return tuple(params.items())


# The implementations of our own operations


def _run_own(
    arrays: Sequence[Any], *, function: Callable[..., Any], params: Mapping[str, Any]
) -> list[Any]:
    return [function(*(jnp.asarray(array) for array in arrays), **params)]


def _run_pick(x: Any, *, axes: Sequence[Axis]) -> Any:
    for axis, (start, step, count) in enumerate(axes):
        x = jnp.take(x, start + step * np.arange(count), axis=axis)
    return x


def _run_view(x: Any, *, offset: int, loops: Sequence[tuple[int, int]]) -> Any:
    return x.reshape(-1)[_strides.elements(offset, loops)]


def _run_place(x: Any, *, axes: Sequence[Axis], shape: Sequence[int]) -> Any:
    return jnp.zeros(shape, x.dtype).at[mesh(axes)].set(x)


def _run_window_sum(
    x: Any, *, windows: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Any:
    ones = (1,) * x.ndim
    zero = np.zeros((), x.dtype)
    return lax.reduce_window(x, zero, lax.add, windows, strides, "VALID", ones, dilations)


_RUNS: Mapping[str, Callable[..., Any]] = {
    "shaped": lax.reshape,
    "pick": _run_pick,
    "view": _run_view,
    "place": _run_place,
    "window_sum": _run_window_sum,
}
