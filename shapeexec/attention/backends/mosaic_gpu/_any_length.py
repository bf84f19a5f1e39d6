"""Operands of kernels that serve every length: merged before a kernel, and told apart in it.

A bucket of another length then finds its kernels lowered and compiled, as one of another batch does
(`_any_batch`).
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shapeexec.attention.backends._base import Ref, Side, Signature
from shapeexec.attention.backends.mosaic_gpu import _i32 as i32
from shapeexec.attention.backends.mosaic_gpu._config import ANY_LENGTH, Config, Sparsity
from shapeexec.attention.backends.mosaic_gpu._divided import QUOTIENTS
from shapeexec.attention.backends.mosaic_gpu._interpreted import InterpretedProducts
from shapeexec.attention.backends.mosaic_gpu._merged import Kept, Merged
from shapeexec.attention.backends.mosaic_gpu._products import Products
from shapeexec.attention.backends.mosaic_gpu._rules import ArrayUse, Rule, text_of
from shapeexec.attention.backends.mosaic_gpu._scratch import Shared
from shapeexec.attention.backends.mosaic_gpu._tiles import MANY, ROWS, TILE

_LARGEST = 2**31 - 1  # elements that i32 can count, of numbers per query and of lists
_OF_KEYS = frozenset({"k", "v", "d_k", "d_v"})
_KEPT = ("T", "S", "longest", "rows", "first")
_SIZES = {"T": "query_size", "S": "key_size"}


def rule_of_any_length(signature: Signature, rule: Rule, *, lengths: Sequence[str]) -> Rule | None:
    """The rule of the kernels of a call that serve other lengths too; None if they cannot.

    No tile may overhang an example, and kernels of few tiles are made for their number. Arrays of
    masks may have a number for each example, head, query or key, but a rule that looks at their
    shape has kernels of its own.

    Args:
        signature: The signature of the call.
        rule: The static part of its mask and bias.
        lengths: The lengths that may have any size: "T", "S".
    """
    sizes = [getattr(signature, _SIZES[name]) for name in lengths]
    if any(n % TILE or n < MANY * TILE for n in sizes) or isinstance(signature.bias, tuple):
        return None
    heads = signature.batch * signature.query_heads
    if heads >= QUOTIENTS or heads * max(*sizes, math.prod(n // TILE for n in sizes)) > _LARGEST:
        return None
    if any(use.side is None and use.role not in ("of_batch", "of_head") for use in rule.uses):
        return None
    general = dataclasses.replace(rule, uses=tuple(map(_of_any_length, rule.uses)))
    return general if _asks_alike(rule, general, is_biased=signature.bias is not None) else None


def _of_any_length(use: ArrayUse) -> ArrayUse:
    """The use of an array whose examples, queries or keys are of any number."""
    length = None if use.side is None else len(use.shape) - 1
    if use.role == "of_pairs":
        length = 2 + (use.side or 0)
    unknown = [axis == length or (axis == 0 and n > 1) for axis, n in enumerate(use.shape)]
    shape = tuple(None if is_so else n for is_so, n in zip(unknown, use.shape, strict=True))
    return dataclasses.replace(use, shape=shape)


def _asks_alike(rule: Rule, general: Rule, *, is_biased: bool) -> bool:
    """Whether a rule does the same if it does not know the shapes of its arrays."""
    texts = functools.partial(_texts, is_biased=is_biased)
    try:
        return rule == general or texts(rule) == texts(general)
    except Exception:  # whatever a rule raises that meets a size that is None
        return False


def _texts(rule: Rule, *, is_biased: bool) -> list[str]:
    """What a rule does in the tiles that kernels ask for."""
    return [text_of(rule, (ROWS, columns), is_biased=is_biased) for columns in (ROWS, TILE)]


def signature_of_any_length(
    signature: Signature, *, lengths: Sequence[str], piece: int | None
) -> Signature:
    """The signature that calls have in common if only their lengths differ.

    Args:
        signature: The signature of a call.
        lengths: See `rule_of_any_length`.
        piece: The number of keys in a piece, which lengths decide; None: they do not.
    """
    return dataclasses.replace(
        signature, piece=piece, **{_SIZES[name]: ANY_LENGTH for name in lengths}
    )


@dataclasses.dataclass(frozen=True)
class Axes:
    """The axes of an array that are merged; none: it stays as it is.

    Attributes:
        sizes: The size of each; or what it is called, if it is known when the kernel runs.
    """

    sizes: tuple[int | str, ...] = ()

    def are_any(self) -> bool:
        """Whether there are any."""
        return bool(self.sizes)

    def merged(self, x: Any) -> Any:
        """The array, or its shape and dtype, with these axes merged."""
        count = len(self.sizes)
        shape = (math.prod(x.shape[:count]), *x.shape[count:]) if count else x.shape
        is_array = not isinstance(x, jax.ShapeDtypeStruct)
        return x.reshape(shape) if is_array else jax.ShapeDtypeStruct(shape, x.dtype)


def axes_of(config: Config, operands: dict[str, Any]) -> dict[str, Any] | None:
    """The `Axes` of each array among inputs and results, by name; None: nothing is merged."""
    if not config.any_length:
        return None
    return {name: _axes_of(config, name, x) for name, x in operands.items()}


def merged(axes: dict[str, Any] | None, operands: dict[str, Any]) -> dict[str, Any]:
    """Some of the arrays, or their shapes and dtypes, with merged axes."""
    if axes is None:
        return operands
    return {name: jax.tree.map(Axes.merged, axes[name], x) for name, x in operands.items()}


def open_ended(axes: dict[str, Any], operands: dict[str, Any]) -> dict[str, Any]:
    """Whether the first axis of each array may have any size: where it is of merged ones."""
    return {name: jax.tree.map(Axes.are_any, axes[name]) for name in operands}


def _axes_of(config: Config, name: str, operand: Any) -> Any:
    if not isinstance(operand, Sparsity):
        length = "S" if name in _OF_KEYS else "T"
        return jax.tree.map(functools.partial(_axes_of_array, length), operand)
    return axes_of_sparsity(config, operand)


def axes_of_sparsity(config: Config, sparsity: Sparsity) -> Any:
    """The `Axes` of each of its arrays."""
    of_sides = [
        name if getattr(config.signature, size) == ANY_LENGTH else None
        for name, size in _SIZES.items()
    ]

    def of_lists(x: Array) -> Axes:
        names = "rows" if of_sides[0] else None, "longest"  # few queries have a single row
        return _known(x, *names[: x.ndim - 2])

    pairs = zip(sparsity.leaves, config.rule.uses, strict=True)
    return dataclasses.replace(
        jax.tree.map(of_examples, sparsity),
        lists=jax.tree.map(of_lists, sparsity.lists),
        leaves=[_known(x, *([] if use.side is None else [of_sides[use.side]])) for x, use in pairs],
        sizes=Axes(),
    )


def _axes_of_array(length: str, x: Any) -> Axes:
    """Those of [B, T, N, H], and of [B, N, T]."""
    if x.ndim == 3:
        return Axes(("B", x.shape[1], length))
    return Axes(("B", length) if x.ndim == 4 else ())


def of_examples(_: Array) -> Axes:
    """Those of an array of which only the first one may have any size."""
    return Axes(("B",))


def _known(x: Array, *names: str | None) -> Axes:
    """All axes of [B or 1, N or 1, ...], with the names of the last ones; None: it is known."""
    lead, rest = x.shape[: x.ndim - len(names)], x.shape[x.ndim - len(names) :]
    sizes = (name or size for name, size in zip(names, rest, strict=True))
    return Axes((1 if lead[0] == 1 else "B", *lead[1:], *sizes))


def scratch(axes: dict[str, Any] | None) -> dict[str, Any]:
    """Where a program keeps the sizes that a call has, if anything is merged."""
    return {} if axes is None else {"kept": Shared((len(_KEPT),), jnp.int32)}


def keep(
    kept: Ref,
    sizes: Ref,
    products: Products | InterpretedProducts,
    *,
    first: Array,
    side: Side,
) -> None:
    """Store the sizes for the warpgroups that compute, before these have an item.

    Args:
        kept: The program's `scratch`.
        sizes: See `Sparsity`.
        products: Those of the warpgroup that moves memory.
        first: See `Sections`.
        side: Whether the rows of the lists are of queries or of keys.
    """
    queries, keys, longest = (sizes[i] for i in range(1, 4))
    rows = lax.div(queries if side == "query" else keys, i32.constant(TILE))
    products.put(kept, [queries, keys, longest, rows, first])


def kept_sizes(kept: Ref) -> dict[str, Kept]:
    """The sizes of axes, by name; see `keep`."""
    return {name: Kept(kept, place) for place, name in enumerate(_KEPT)}


def told_apart(
    axes: dict[str, Any], named: dict[str, Any], *, sizes: dict[str, Any]
) -> dict[str, Any]:
    """The references of a running program, to be indexed as if nothing was merged.

    Args:
        axes: See `axes_of`.
        named: References by name; those without a name in `axes` stay as they are.
        sizes: The sizes of axes, by name.
    """
    known: dict[str, Any] = {"B": None, **sizes}

    def apart(of: Axes, ref: Ref) -> Ref:
        sizes = tuple(n if isinstance(n, int) else known[n] for n in of.sizes)
        return Merged(ref, sizes) if sizes else ref

    return {**named, **{name: jax.tree.map(apart, axes[name], named[name]) for name in axes}}
