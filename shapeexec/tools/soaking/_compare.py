"""Computes expected results: by NumPy in f64 where a model has a formula, else by plain `jax.jit`.

Results are compared with the tolerance of `validate`, from `_closeness`.
"""

import dataclasses
import functools
import threading
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from shapeexec import _compat
from shapeexec.tools._closeness import difference
from shapeexec.tools.soaking._models import Model, Sizes

VARIANTS = 4
"""The number of data sets for each shape. Their results are kept, so that memory stops growing."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """A model and its sizes."""

    model: Model
    sizes: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return f"{self.model.name} " + ", ".join(f"{symbol}={n}" for symbol, n in self.sizes)

    def arguments(self, variant: int) -> tuple[Any, ...]:
        """The NumPy arguments of one data set; the same each time."""
        sizes: Sizes = dict(self.sizes)
        seed = [variant, zlib.crc32(self.model.name.encode()), *sizes.values()]
        return self.model.make(np.random.default_rng(seed), sizes)


class WrongAnswerError(Exception):
    """A result differs from the unpadded function's; the text says where."""


class Expected:
    """Expected results, each computed once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[tuple[Shape, int], tuple[np.ndarray, ...]] = {}

    def of(self, shape: Shape, variant: int) -> tuple[np.ndarray, ...]:
        """The leaves of the result of the unpadded function."""
        found = self._held.get((shape, variant))
        if found is not None:
            return found
        made = {(shape, variant): expected(shape.model, shape.arguments(variant))}
        if shape.model.numpy is None:  # one compiled program for all data sets of a shape
            plain = jitted(shape.model)
            for other in range(VARIANTS):
                made[shape, other] = _leaves(plain(*shape.arguments(other)))
        with self._lock:
            self._held.update(made)
        return made[shape, variant]


def expected(model: Model, args: Sequence[Any]) -> tuple[np.ndarray, ...]:
    """The leaves of the result of the unpadded function, with its dtypes."""
    if model.numpy is None:
        return _leaves(jitted(model)(*args))
    like = jax.tree.leaves(_compat.eval_shape(model.fn, *args))
    leaves = jax.tree.leaves(model.numpy(*jax.tree.map(_wide, tuple(args))))
    return tuple(
        np.asarray(leaf).astype(aval.dtype) for leaf, aval in zip(leaves, like, strict=True)
    )


def jitted(model: Model) -> Any:
    """The unpadded function under `jax.jit`, as a new function: its programs are freed with it."""
    return _compat.jit(functools.partial(model.fn))


def added(results: Sequence[Sequence[np.ndarray]]) -> tuple[np.ndarray, ...]:
    """The sum of results, leaf by leaf."""
    return tuple(functools.reduce(np.add, leaves) for leaves in zip(*results, strict=True))


def check(got: Any, want: Sequence[np.ndarray]) -> None:
    """Compare a result, whose leaves may be handles, with the expected leaves.

    Raises:
        WrongAnswerError: It differs by more than rounding.
    """
    leaves = jax.tree.leaves(got)
    if len(leaves) != len(want):
        raise WrongAnswerError(f"{len(leaves)} results instead of {len(want)}")
    for index, (leaf, right) in enumerate(zip(leaves, want, strict=True)):
        told = difference(np.asarray(leaf), right)
        if told is not None:
            raise WrongAnswerError(
                f"result {index}: {told}\n    got {leaf!r:.300}\n    not {right!r:.300}"
            )


def _leaves(tree: Any) -> tuple[np.ndarray, ...]:
    return tuple(map(np.asarray, jax.tree.leaves(tree)))


def _wide(leaf: Any) -> Any:
    leaf = np.asarray(leaf)
    return leaf.astype(np.float64) if leaf.dtype.kind == "f" else leaf
