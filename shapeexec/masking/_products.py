"""A convolution or one of its gradients: in whole, or from chosen pairs of a tap and a result.

Data, kernel and result are three arrays; a convolution and its two gradients compute one of them
from the other two. Whether pairs have to be chosen is not known here.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking._fill import Length, zero
from shapeexec.masking._windows import WindowAxis


@dataclasses.dataclass(frozen=True)
class TapAxis:
    """A spatial axis along which a convolution is taken apart.

    Attributes:
        place: Its number among the spatial axes.
        own: The left operand's axis.
        taps: The capacity and the valid length of the kernel.
        results: The capacity and the valid length of the result.
        stride: The distance of windows.
        dilation: The distance of taps.
        skips: Whether positions without an element make no pair.
    """

    place: int
    own: WindowAxis
    taps: tuple[int, Length]
    results: tuple[int, Length]
    stride: int
    dilation: int
    skips: bool

    def is_pair(self, tap: Array, result: Array) -> Array:
        """Whether the unpadded convolution multiplies by these taps for these results."""
        is_pair = (tap < self.taps[1]) & (result < self.results[1])
        if not self.skips:
            return is_pair
        shifted = result * self.stride + tap * self.dilation - self.own.low
        is_read = (shifted >= 0) & (shifted < self.own.length * self.own.dilation)
        if self.own.dilation != 1:
            is_read &= lax.rem(shifted, np.int32(self.own.dilation)) == 0
        return is_pair & is_read


@dataclasses.dataclass(frozen=True)
class Product:
    """A convolution or one of its gradients: one of three arrays, from the other two.

    Attributes:
        arrays: The left operand, laid along the axes where windows meet padding, the kernel, and
            the result. The wanted array is a struct, or None for the result.
        wanted: The number of the array to compute.
        params: The parameters of the convolution, for the left operand as it is laid.
    """

    arrays: tuple[Any, Any, Any]
    wanted: int
    params: dict[str, Any]

    def compute(self) -> Array:
        """The wanted array."""
        lhs, rhs, out = self.arrays

        def convolve(lhs: Array, rhs: Array) -> Array:
            return _compat.bind(lax.conv_general_dilated_p, lhs, rhs, **self.params)

        def convolve_wanted(x: Array) -> Array:
            return convolve(lhs, x) if self.wanted else convolve(x, rhs)

        if self.wanted == 2:
            return convolve(lhs, rhs)
        (result,) = _compat.linear_transpose(convolve_wanted, self.arrays[self.wanted])(out)
        return result

    def stretched(self, apart: Sequence[TapAxis]) -> "Product":
        """Make the product with a left operand that holds its zeros along `apart`."""
        lhs, _, _ = self.arrays
        config, params = self._gaps(apart), dict(self.params)
        for name, value in (
            ("padding", (0, 0)),
            ("lhs_dilation", 1),
            ("window_strides", 1),
            ("rhs_dilation", 1),
        ):
            values = list(params[name])
            for each in apart:
                values[each.place] = value
            params[name] = tuple(values)
        if self.wanted == 0:
            shape = list(lhs.shape)
            for axis, (low, high, gap) in enumerate(config):
                shape[axis] += low + high + max(0, shape[axis] - 1) * gap
            lhs = jax.ShapeDtypeStruct(tuple(shape), lhs.dtype)
        elif any(any(each) for each in config):
            lhs = lax.pad(lhs, zero(lhs.dtype), config)
        return Product((lhs, *self.arrays[1:]), self.wanted, params)

    def shrunk(self, lhs: Array, apart: Sequence[TapAxis]) -> Array:
        """The transpose of stretching the left operand."""
        limits, config = list(lhs.shape), self._gaps(apart)
        for axis, (_, high, _) in enumerate(config):
            limits[axis] -= high
        lows, _, gaps = zip(*config, strict=True)
        return lax.slice(lhs, lows, limits, [gap + 1 for gap in gaps])

    def _gaps(self, apart: Sequence[TapAxis]) -> list[tuple[int, int, int]]:
        config = [(0, 0, 0)] * len(self.arrays[0].shape)
        for each in apart:
            low, high = self.params["padding"][each.place]
            config[each.own.axis] = (low, high, self.params["lhs_dilation"][each.place] - 1)
        return config


def by_pairs(product: Product, apart: Sequence[TapAxis], *, struct: jax.ShapeDtypeStruct) -> Array:
    """Compute a product from its pairs, one tap or one result at a time, whichever are fewer.

    Args:
        product: A product.
        apart: The axes to take it apart along.
        struct: The shape and dtype of the wanted array.
    """
    arrays = list(product.arrays)
    arrays[product.wanted] = struct
    product = dataclasses.replace(product, arrays=tuple(arrays))
    taps, results = (math.prod(getattr(each, name)[0] for each in apart) for name in _NAMES)
    walk = _Walk(product.stretched(apart), apart, 1 if taps <= results else 2)
    wanted, parts = product.wanted, walk.parts()
    if wanted == walk.single:

        def found(_: None, part: Any) -> tuple[None, Array]:
            return None, walk.compute(*part)

        _, stacked = lax.scan(found, None, parts)
        return walk.unstacked(stacked)

    struct = walk.product.arrays[wanted]
    wide = jnp.promote_types(struct.dtype, np.float32)

    def added(total: Array, part: Any) -> tuple[Array, None]:
        places, _ = part
        more = walk.compute(*part).astype(wide)
        return (walk.put(total, more, places=places) if wanted == 0 else total + more), None

    total, _ = lax.scan(added, lax.full(struct.shape, 0, wide), parts)
    total = total.astype(struct.dtype)
    return product.shrunk(total, apart) if wanted == 0 else total


_NAMES = ("taps", "results")


@dataclasses.dataclass(frozen=True)
class _Walk:
    """A product taken apart along `apart` into the taps (`single` is 1) or the results (2)."""

    product: Product
    apart: Sequence[TapAxis]
    single: int

    @property
    def inner(self) -> list[int]:
        """Per axis how many results meet a tap, or taps meet a result, at capacity."""
        return [getattr(each, _NAMES[2 - self.single])[0] for each in self.apart]

    def axes(self, which: int) -> list[int]:
        """The axes of an array along which the product is taken apart."""
        spec = self.product.params["dimension_numbers"][which]
        return [spec[2 + each.place] for each in self.apart]

    def steps(self, which: int) -> list[int]:
        """Per axis of the left operand, the distance of taps or of results."""
        steps = [each.dilation if which == 1 else each.stride for each in self.apart]
        return _resized([1] * self.product.arrays[0].ndim, self.axes(0), sizes=steps)

    def parts(self) -> tuple[list[np.ndarray], Array | None]:
        """The scan's inputs: places along `apart`, and the parts of the array there if known."""
        counts = [getattr(each, _NAMES[self.single - 1])[0] for each in self.apart]
        places = list(np.indices(counts, np.int32).reshape(len(counts), -1))
        x = self.product.arrays[self.single]
        if self.product.wanted == self.single:
            return places, None
        x = jnp.moveaxis(x, self.axes(self.single), range(len(counts)))
        return places, lax.reshape(x, (math.prod(counts), *x.shape[len(counts) :]))

    def unstacked(self, stacked: Array) -> Array:
        """The inverse of taking an array into its parts."""
        shape, axes = self.product.arrays[self.single].shape, self.axes(self.single)
        x = lax.reshape(stacked, (*(shape[axis] for axis in axes), *stacked.shape[1:]))
        return jnp.moveaxis(x, range(len(axes)), axes)

    def compute(self, places: Sequence[Array], part: Array | None) -> Array:
        """The contribution of the part at `places` to the wanted array, or the wanted part."""
        (lhs, *_), wanted, single = self.product.arrays, self.product.wanted, self.single
        arrays: list[Any] = list(self.product.arrays)
        shape = _resized(arrays[single].shape, self.axes(single), sizes=[1] * len(self.apart))
        window = _resized(lhs.shape, self.axes(0), sizes=self.inner)
        if wanted == 0:
            arrays[0] = jax.ShapeDtypeStruct(tuple(window), lhs.dtype)
        else:
            lhs = lax.dynamic_slice(lhs, self._starts(places), self._reach())
            arrays[0] = lax.slice(lhs, [0] * lhs.ndim, lhs.shape, self.steps(3 - single))
        if part is not None:
            arrays[single] = lax.reshape(part, shape)
            return self._only_pairs(wanted, self._contracted(arrays), places=places)
        arrays[single] = jax.ShapeDtypeStruct(tuple(shape), arrays[single].dtype)
        # The other array is 0 already where the left operand has no element, unless an axis skips.
        is_other = any(each.skips for each in self.apart)
        for which in (0, 3 - single) if is_other else (0,):
            arrays[which] = self._only_pairs(which, arrays[which], places=places)
        return lax.squeeze(self._contracted(arrays), self.axes(single))

    def _contracted(self, arrays: list[Any]) -> Array:
        """The product of arrays one of which has a size of 1 along `apart`.

        It is a dot where possible: inside a branch a dot runs faster than a convolution. Complex
        numbers with parts that are not finite give other NaN in a dot than in a convolution.
        """
        params, wanted = self.product.params, self.product.wanted
        numbers = params["dimension_numbers"]
        groups = params["feature_group_count"] * params["batch_group_count"]
        is_complex = jnp.issubdtype(arrays[self.single].dtype, np.complexfloating)
        if is_complex or groups != 1 or len(self.apart) != len(numbers.lhs_spec) - 2:
            return dataclasses.replace(self.product, arrays=tuple(arrays)).compute()
        rows, inner, outs, *space = range(len(numbers.lhs_spec) + 1)
        labels: list[list[int]] = []
        for own, spec in zip(((rows, inner), (outs, inner), (rows, outs)), numbers, strict=True):
            by_axis = dict(zip(spec, (*own, *space), strict=True))
            labels.append([by_axis[axis] for axis in range(len(spec))])
        single = self.single
        if wanted != single:
            arrays[single] = lax.squeeze(arrays[single], self.axes(single))
        labels[single] = [label for label in labels[single] if label not in space]
        one, other = (which for which in range(3) if which != wanted)
        out = _compat.einsum(
            arrays[one],
            labels[one],
            arrays[other],
            labels[other],
            labels[wanted],
            precision=params["precision"],
            preferred_element_type=arrays[wanted].dtype,
        )
        return lax.expand_dims(out, self.axes(single)) if wanted == single else out

    def put(self, total: Array, window: Array, *, places: Sequence[Array]) -> Array:
        """`total` with the contribution of a part at the positions that it meets."""
        config = [(0, 0, step - 1) for step in self.steps(3 - self.single)]
        more, starts = lax.pad(window, zero(window.dtype), config), self._starts(places)
        old = lax.dynamic_slice(total, starts, self._reach())
        return lax.dynamic_update_slice(total, old + more, starts)

    def _starts(self, places: Sequence[Array]) -> list[Any]:
        """The first position of the left operand that the part at `places` meets."""
        steps, starts = self.steps(self.single), [np.int32(0)] * self.product.arrays[0].ndim
        for axis, place in zip(self.axes(0), places, strict=True):
            starts[axis] = place * np.int32(steps[axis])
        return starts

    def _reach(self) -> list[int]:
        """How far the positions reach that a part meets."""
        steps, shape = self.steps(3 - self.single), self.product.arrays[0].shape
        axes = self.axes(0)
        reach = [(n - 1) * steps[axis] + 1 for axis, n in zip(axes, self.inner, strict=True)]
        return _resized(shape, axes, sizes=reach)

    def _only_pairs(self, which: int, x: Array, *, places: Sequence[Array]) -> Array:
        """`x`, one of the arrays, with 0 where it makes no pair with the part at `places`."""
        mask = None
        for each, place, axis in zip(self.apart, places, self.axes(which), strict=True):
            others = lax.iota(np.int32, x.shape[axis])
            pair = (place, others) if self.single == 1 else (others, place)
            along = _compat.broadcast_in_dim(each.is_pair(*pair), x.shape, (axis,))
            mask = along if mask is None else mask & along
        assert mask is not None
        return lax.select(mask, x, lax.full_like(x, 0))


def _resized(shape: Sequence[int], axes: Sequence[int], *, sizes: Sequence[int]) -> list[int]:
    """A shape with other sizes along `axes`."""
    resized = list(shape)
    for axis, size in zip(axes, sizes, strict=True):
        resized[axis] = size
    return resized
