"""Pages of keys and values: gathered into one array, and gradients added up by page.

A back end may read pages where they lie instead; which one does is for `_run` to ask.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses

import jax.numpy as jnp
from jax import Array, lax

from shapeexec.attention._call import Operands
from shapeexec.attention.masks._value import wide


def page_numbers(operands: Operands) -> Array:
    """The numbers of each example's pages, i32[B, pages of one].

    Those behind the valid lengths may have been anything, and are numbers of some page here.
    """
    assert operands.pages is not None
    return jnp.clip(operands.pages, 0, operands.key.shape[0] - 1)


def without_pages(operands: Operands) -> Operands:
    """Operands with keys and values as one array; those without pages as they are."""
    if operands.pages is None:
        return operands
    numbers = page_numbers(operands)
    key, value = (gathered(x, numbers) for x in (operands.key, operands.value))
    return dataclasses.replace(operands, key=key, value=value, pages=None)


def gathered(x: Array, numbers: Array) -> Array:
    """Pages [P, rows, K, size] as [B, S, K, size], a copy."""
    pages = x.at[numbers].get(mode="promise_in_bounds")
    return pages.reshape(numbers.shape[0], -1, *x.shape[2:])


def by_page(x: Array, numbers: Array, *, pages: int) -> Array:
    """The sums over all who own a page of their [B, S, K, size], as [P, rows, K, size].

    They are added in a fixed order, unlike by a scatter on a GPU.
    """
    owners = numbers.reshape(-1)
    order = jnp.argsort(owners, stable=True)
    owners = owners[order]
    parts = x.reshape(owners.shape[0], -1, *x.shape[2:])[order].astype(wide(x.dtype))
    changes = owners[1:] != owners[:-1]
    edge = jnp.ones(1, bool)
    sums, _ = lax.associative_scan(_added, (parts, jnp.concatenate([edge, changes])))
    is_last = jnp.concatenate([changes, edge])
    zeros = jnp.zeros((pages, *parts.shape[1:]), x.dtype)
    return zeros.at[jnp.where(is_last, owners, pages)].set(sums.astype(x.dtype), mode="drop")


def _added(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
    """The sums since the last page that begins, and whether one begins."""
    (before, began), (after, begins) = left, right
    is_new = begins[:, None, None, None]
    return jnp.where(is_new, after, before + after), began | begins
