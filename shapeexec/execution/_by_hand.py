"""Padding and cutting by hand, for functions outside of an `Exec`.

Buckets, capacities and errors are those of an `Exec`. Masks are left to the caller.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from shapeexec import _compat
from shapeexec._errors import ConfigError, SpecError
from shapeexec.bucketing import Pow2
from shapeexec.bucketing._fixed import runs_exact
from shapeexec.execution import _options, _transfer
from shapeexec.execution._handle import Padded, pad
from shapeexec.execution._narrow import is_mapping
from shapeexec.execution._settings import strategy_of
from shapeexec.shape import _dim, _trees
from shapeexec.shape._forms import is_spec_leaf, normal, read
from shapeexec.shape._pattern import Spec
from shapeexec.shape._spec import bind_one, check_names

Ranges = Mapping[str, tuple[int, int]]


@dataclasses.dataclass(frozen=True, eq=False)
class Sizes(Mapping[str, int]):
    """The true sizes of arrays that `pad_to_bucket` padded, by symbol: `sizes["s"]`.

    It is a pytree whose leaves are the sizes. So a function under `jax.jit` takes it, and is
    compiled once per tuple of buckets.

    Attributes:
        sizes: By symbol, in the order of the alphabet. A size may be 0.
        ranges: By symbol the least and the greatest size of its bucket; the latter is the bucket.
        spec: How the arrays were padded: a tree of strings, `Shape`s and None.

    Example:
        >>> _, sizes = sx.pad_to_bucket(np.ones((3, 5)), "b, s", buckets=sx.Pow2())
        >>> sizes["s"], dict(sizes)
        (5, {'b': 3, 's': 5})
    """

    sizes: Mapping[str, int]
    ranges: Ranges
    spec: Any  # a tree

    @property
    def buckets(self) -> dict[str, int]:
        """The bucket of each symbol."""
        return {symbol: bucket for symbol, (_, bucket) in self.ranges.items()}

    def __getitem__(self, symbol: str) -> int:
        return self.sizes[symbol]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)


def _flatten(sizes: Sizes) -> tuple[tuple[Any, ...], Any]:
    leaves, tree = _trees.flatten(sizes.spec, is_leaf=is_spec_leaf)
    symbols, ranges = tuple(sizes.sizes), tuple(sizes.ranges.items())
    return tuple(sizes.sizes.values()), (symbols, ranges, tuple(leaves), tree)


def _unflatten(known: Any, values: Any) -> Sizes:
    symbols, ranges, leaves, tree = known
    return Sizes(
        dict(zip(symbols, values, strict=True)), dict(ranges), _trees.unflatten(tree, leaves)
    )


_trees.register(Sizes, _flatten, _unflatten)


def pad_to_bucket(x: Any, spec: Any, *, buckets: Any = None) -> tuple[Any, Sizes]:
    """Pad arrays to their buckets, as a call of an `Exec` does.

    The valid elements come first along each axis, then zeros; typed PRNG keys, which have no zero,
    are padded with copies of the last ones. Unlike `Exec` it inserts no masks: if you compute with
    the padded arrays, you must keep padding out of the results.

    Args:
        x: An array, or a tree of arrays. NumPy arrays stay NumPy arrays and keep their dtype; JAX
            arrays stay on their device, and may be traced.
        spec: What `Exec` takes for one argument: a pytree prefix of strings such as `"b, s, 4"`,
            tuples such as `(BATCH, SEQ_LEN, 4)`, `Shape`s, and None for static arguments.
        buckets: A strategy for all symbols, or one per symbol, as for `Exec`. None: `Pow2()`.

    Returns:
        The arrays at capacity (an array of that size itself), and the true sizes by symbol, of
        which `unpad` takes those it needs.

    Raises:
        SpecError: The spec is malformed, or `x` contradicts it.
        ConfigError: An entry of `buckets` is not a strategy or not for a symbol; `x` holds no data.
        BucketOverflowError: A size lies past the last bucket.
        StrategyError: A strategy breaks a law.

    Example:
        >>> padded, sizes = pad_to_bucket(np.ones((3, 5)), "b, s", buckets={"b": "pow2", "s": 32})
        >>> padded.shape, sizes["s"]
        ((4, 32), 5)
    """
    strategies = _options.as_strategies(Pow2() if buckets is None else buckets)
    written, spec = spec, normal(spec, "spec", place=0)
    check_names([("spec", 0, written)])
    bound = bind_one(spec, x)
    leaves, tree = _trees.flatten(x)
    shapes = bound.shapes(leaves)
    _check_arrays("pad_to_bucket(x, spec)[0]", leaves)
    _check_known(shapes)
    sizes = dict(sorted(bound.sizes(shapes).items()))
    _options.check_symbols(strategies, sizes, specs="the spec")
    ranges = {symbol: _range(symbol, size, strategies=strategies) for symbol, size in sizes.items()}
    dims = bound.dims(shapes)
    padded = [
        leaf
        if own is None or given is None
        else _pad(leaf, tuple(_capacity(dim, ranges) for dim in own))
        for leaf, own, given in zip(leaves, dims, bound.specs, strict=True)
    ]
    return _trees.unflatten(tree, padded), Sizes(sizes, ranges, spec)


def unpad(x: Any, sizes: Mapping[str, int], *, spec: Any = None) -> Any:
    """Cut padded arrays to their true sizes.

    Args:
        x: An array at capacity, or a tree of arrays: the result of `pad_to_bucket`, or of a
            function of it, if the valid elements come first along each axis.
        sizes: The sizes from `pad_to_bucket`, or the size of each symbol; then `spec` is required.
        spec: The spec of `x`, as for `pad_to_bucket`, with a name for each size. None: that of what
            was padded.

    Returns:
        The arrays at their true shapes. Those of NumPy are views.

    Raises:
        SpecError: The spec is malformed, `x` contradicts it or is not at capacity; an axis is
            longer than its symbol, and so may have padding between its valid elements; a size is
            negative, not known, or traced.
        ConfigError: `x` holds no data.

    Example:
        >>> padded, sizes = pad_to_bucket(np.ones((3, 5)), "b, s")
        >>> unpad(padded, sizes).shape, unpad(padded.sum(axis=1), sizes, spec="b").shape
        ((3, 5), (3,))
    """
    ranges = sizes.ranges if isinstance(sizes, Sizes) else None
    true = _true_sizes(sizes)
    if spec is None:
        if not isinstance(sizes, Sizes):
            raise SpecError(
                "unpad: which axes are padded is not known.",
                path="spec",
                got=f"sizes={sizes!r:.80}",
                fix='pass the spec: unpad(x, sizes, spec="b, s"), '
                "or the sizes that pad_to_bucket returned",
            )
        spec = sizes.spec
    else:
        own = normal(spec, "spec", place=0)
        padded = sizes.spec if isinstance(sizes, Sizes) else None
        if own != padded:
            _check_named(own, normal(spec, "spec", place=1), sizes=true)
            _check_valid_first(own, padded, sizes=true)
        spec = own
    bound = bind_one(spec, x)
    leaves, tree = _trees.flatten(x)
    shapes = bound.shapes(leaves)
    _check_arrays("unpad(x, sizes, spec=spec)", leaves)
    _check_known(shapes)
    bound.check_ranks(shapes)
    cut = [
        leaf
        if own is None
        else _cut(leaf, _true_shape(own, shape or (), sizes=true, ranges=ranges))
        for leaf, shape, own in zip(leaves, shapes, bound.specs, strict=True)
    ]
    return _trees.unflatten(tree, cut)


def _check_arrays(call: str, leaves: Sequence[Any]) -> None:
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        raise ConfigError(
            f"{call.partition('(')[0]} takes arrays, and was given a jax.ShapeDtypeStruct.",
            fix="pass an array; the shapes of the results are those of "
            f"`jax.eval_shape(lambda x: sx.{call}, x)`",
        )


def _check_known(shapes: Any) -> None:
    _options.check_known(
        shapes,
        where="in a function that an Exec traces",
        why="an Exec pads its arguments and cuts its results itself",
        fix="pad and cut outside of the Exec, or call the function without it",
    )


def _range(symbol: str, size: int, *, strategies: Any) -> tuple[int, int]:
    strategy = strategy_of(symbol, strategies)
    if runs_exact(strategy, size):
        return size, size
    return _options.range_of(symbol, strategy, size=size)


def _capacity(dim: Any, ranges: Ranges) -> int:
    return max(0, _dim.maximum(dim, ranges))


def _true_sizes(sizes: Any) -> dict[str, int]:
    if not is_mapping(sizes):
        raise SpecError(
            f"unpad: sizes={sizes!r:.80} are not sizes by symbol.",
            path="sizes",
            fix='the sizes that pad_to_bucket returned, or a dict of them such as {"s": 5}',
        )
    return {symbol: _true_size(symbol, size) for symbol, size in sizes.items()}


def _true_size(symbol: str, size: Any) -> int:
    if _compat.is_traced(size):
        raise SpecError(
            f"unpad: the size of `{symbol}` is traced.",
            path="sizes",
            got=f"{size!r:.200}",
            why="the shape of a result cannot depend on a traced size",
            fix='unpad outside of jit, with the sizes of pad_to_bucket or such as {"s": 5}',
        )
    try:
        known = _options.as_size(size)
    except TypeError:
        known = -1
    if known < 0:
        raise SpecError(
            f"unpad: the size {size!r:.80} of `{symbol}` is not an integer of at least 0.",
            path="sizes",
            fix='the sizes that pad_to_bucket returned, or ints by symbol such as {"s": 5}',
        )
    return known


def _check_named(spec: Any, elsewhere: Any, *, sizes: Mapping[str, int]) -> None:
    """Refuse `?` in the spec of a result: it would take the size of another `?`.

    Args:
        spec: The spec in its normal form.
        elsewhere: Its normal form for another argument, which has other symbols for `?`.
        sizes: The sizes by symbol.
    """
    for own, other in zip(_leaves(spec), _leaves(elsewhere), strict=True):
        if own != other:
            raise SpecError(
                "unpad: an unknown size in the spec of a result is not known.",
                path="spec",
                got=f'the spec "{own}" and the sizes {dict(sizes)}',
                why="each unknown size is a symbol of its own; sizes of padded arrays have names",
                fix=_names_of(sizes),
            )


def _check_valid_first(spec: Any, padded: Any, *, sizes: Mapping[str, int]) -> None:
    """Refuse axes that may have padding between their valid elements.

    An axis that is longer than its symbol was merged (`[b, s]` as `[b*s]`) or joined of several
    (`2*s`), unless it was padded as it is.
    """
    as_padded = {dim for one in _leaves(padded) for dim in _symbolic_dims(one)}
    for dim in (dim for one in _leaves(spec) for dim in _symbolic_dims(one)):
        if len(dim.symbols) > 1 or (dim not in as_padded and _is_longer(dim, sizes)):
            raise SpecError(
                f"unpad cannot cut an axis of `{dim}`.",
                path="spec",
                why="padded axes that were merged or joined have padding between their valid "
                "elements, and cutting keeps what comes first",
                fix="cut the arrays before they are merged, or run the function in an Exec; if the "
                "valid elements do come first, give their number a name of its own: "
                'unpad(x, {"n": 6}, spec="n")',
            )


_SMALL = 64  # a dim that is not longer than its symbol up to this size is taken for its bound


def _is_longer(dim: _dim.Dim, sizes: Mapping[str, int]) -> bool:
    (symbol,) = dim.symbols
    most = max(_SMALL, sizes.get(symbol, 0))
    return _dim.maximum(dim - _dim.Dim(symbol), {symbol: (0, most)}) > 0


def _leaves(tree: Any) -> list[Any]:
    return [] if tree is None else _trees.leaves(tree, is_leaf=is_spec_leaf)


def _symbolic_dims(leaf: Any) -> list[_dim.Dim]:
    spec = read(leaf, "spec")
    dims = () if spec is None else spec.before + spec.after
    return [dim for dim in dims if isinstance(dim, _dim.Dim)]


def _names_of(sizes: Mapping[str, int]) -> str:
    return f"name one of {', '.join(sorted(sizes))}, or `_` for an axis to leave as it is"


def _true_shape(
    spec: Spec, shape: tuple[int, ...], *, sizes: Mapping[str, int], ranges: Ranges | None
) -> tuple[int, ...]:
    """The true shape of an array, having checked that it is at capacity, where that is known."""
    true: list[int] = []
    for axis, (dim, have) in enumerate(zip(spec.resolve(shape), shape, strict=True)):
        missing = sorted(_dim.symbols_of(dim) - sizes.keys())
        if missing:
            raise SpecError(
                f"unpad: no size is known for `{missing[0]}`.",
                path="sizes",
                got=f'the spec "{spec}" and the sizes {dict(sizes)}',
                fix=_names_of(sizes),
            )
        size = _dim.evaluate(dim, sizes)
        if size < 0:
            raise SpecError(
                f"unpad: axis {axis} is `{dim}`, which is {size}.",
                path="x",
                got=f'the spec "{spec}" and the sizes {dict(sizes)}',
                fix="pass the sizes at which the array was made, or write `_` for an axis that is "
                "not padded",
            )
        capacity = None if ranges is None else _capacity(dim, ranges)
        if have < size or capacity not in (None, have):
            wanted = f"at least {size}" if capacity is None else capacity
            raise SpecError(
                f"unpad: axis {axis} has size {have}, but `{dim}` takes {wanted}.",
                path="x",
                got=f'{list(shape)} with the spec "{spec}" at {dict(sizes)}',
                fix="pass an array at capacity, or write `_` for an axis that is not padded",
            )
        true.append(size)
    return tuple(true)


def _pad(x: Any, capacity: tuple[int, ...]) -> Any:
    if isinstance(x, Padded):
        return pad(x, capacity, is_donated=True)
    if x.shape == capacity:
        return x
    if _compat.is_traced(x):
        return _transfer.device_pad(x.shape, capacity)(x)
    if _is_of_numpy(x):  # keeps its dtype, even 64 bits without x64
        padded = np.zeros(capacity, x.dtype)
        padded[tuple(map(slice, x.shape))] = x
        return padded
    return _transfer.pad(x, capacity, is_donated=True)  # as donated, for a JAX array


def _is_of_numpy(x: object) -> bool:
    return isinstance(x, np.ndarray | np.generic)


def _cut(x: Any, shape: tuple[int, ...]) -> Any:
    if x.shape != shape and _compat.is_traced(x):
        return lax.slice(x, [0] * len(shape), shape)
    return _transfer.cut(x, shape)
