"""A call of attention as the primitives carry it: its static part, and the order of operands.

The arguments are checked in `_arguments`; the primitives are in `_primitive`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax import Array

KEY_AND_VALUE = (1, 2)
"""The numbers of the operands that may be pages."""


@dataclasses.dataclass(frozen=True)
class Call:
    """The static part of a call, whose sizes may be symbolic.

    Attributes:
        scale: The factor of the scores; None: 1 / sqrt(head size).
        mask: The tree definition of the mask.
        bias: The tree definition of the bias: an array, a score modifier, or None.
        has_query_lengths, has_key_lengths: Whether valid lengths are among the operands.
        implementation: The back end's name; None: the best one for each pass.
        deterministic: Whether equal calls must give equal bits, in the gradient too.
        density: See `static_density`; None also for deterministic calls, which do not use it.
        has_pages: Whether key and value are pages, and their numbers among the operands.
    """

    scale: float | None
    mask: Any
    bias: Any
    has_query_lengths: bool
    has_key_lengths: bool
    implementation: str | None
    deterministic: bool
    density: float | None = dataclasses.field(default=None, metadata={"is_hint": True})
    has_pages: bool = False

    @property
    def arrays(self) -> int:
        """The number of operands before the leaves of mask and bias."""
        return 3 + self.has_query_lengths + self.has_key_lengths + self.has_pages

    @property
    def table(self) -> int:
        """The number of the operand with the page numbers, if there are pages."""
        return self.arrays - 1

    @property
    def operands(self) -> int:
        """The number of all operands."""
        return self.arrays + self.mask.num_leaves + self.bias.num_leaves


@dataclasses.dataclass(frozen=True)
class Operands:
    """The arrays of a call, or one value for each of them.

    Attributes:
        query: [B, T, N, H].
        key: [B, S, K, H]; or pages, [P, rows, K, H].
        value: [B, S, K, V]; or pages, [P, rows, K, V].
        query_lengths, key_lengths: Valid lengths i32[B]; None: the arrays' full lengths.
        mask, bias: The leaves of mask and bias. The first axis of each is the batch or 1.
        pages: The numbers of each example's pages, i32[B, S / rows]; None: no pages.
    """

    query: Array
    key: Array
    value: Array
    query_lengths: Array | None
    key_lengths: Array | None
    mask: tuple[Array, ...]
    bias: tuple[Array, ...]
    pages: Array | None = None

    @property
    def key_size(self) -> int:
        """S."""
        return key_size(self.key.shape, None if self.pages is None else self.pages.shape)

    def flat(self) -> tuple[Array, ...]:
        """The operands in the order of the primitives."""
        optional = (self.query_lengths, self.key_lengths, self.pages)
        given = (x for x in optional if x is not None)
        return (self.query, self.key, self.value, *given, *self.mask, *self.bias)


def key_size(key: Any, pages: Any) -> Any:
    """S, by the sizes of the axes of `Operands.key` and of `Operands.pages`, which may be None."""
    return key[1] if pages is None else pages[1] * key[1]


def split(call: Call, flat: Sequence[Any]) -> tuple[Operands, tuple[Any, ...]]:
    """Flat values by operand, and those that follow them."""
    rest = iter(flat)
    query, key, value = next(rest), next(rest), next(rest)
    query_lengths = next(rest) if call.has_query_lengths else None
    key_lengths = next(rest) if call.has_key_lengths else None
    pages = next(rest) if call.has_pages else None
    mask = tuple(next(rest) for _ in range(call.mask.num_leaves))
    bias = tuple(next(rest) for _ in range(call.bias.num_leaves))
    operands = Operands(query, key, value, query_lengths, key_lengths, mask, bias, pages)
    return operands, tuple(rest)


def axes_of_leaves(tree: Any) -> list[str]:
    """The letters of the axes of each leaf of a mask or bias: B, N, T, S; `-` for another one."""
    value = jax.tree.unflatten(tree, [object()] * tree.num_leaves)
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(value)[0]]
    return [_axes_at(value, path) for path in paths]


def _axes_at(value: Any, path: tuple[Any, ...]) -> str:
    if not path:
        return "BNTS"  # the bias is an array
    *outer, last = path
    for key in outer:
        value = getattr(value, key.name) if hasattr(key, "name") else value[key.idx]
    return value.axes.get(last.name, "----")
