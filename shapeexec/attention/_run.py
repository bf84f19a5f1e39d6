"""A call of attention at known sizes: it chooses the back end, makes the tiles and runs the pass.

The primitives are lowered to these functions. Each is one `jax.jit` whose static arguments hash
alike for like calls, so that a model of many layers lowers and compiles attention once. Kernels are
in `backends`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shapeexec._errors import BackendError
from shapeexec.attention._call import KEY_AND_VALUE, Call, Operands, split
from shapeexec.attention._call_lists import call_lists
from shapeexec.attention._paging import by_page, gathered, page_numbers, without_pages
from shapeexec.attention.backends._base import (
    Backend,
    PagedBackend,
    Residuals,
    SharingBackend,
    Signature,
    Work,
)
from shapeexec.attention.backends._choose import choose, choose_for_tangent
from shapeexec.attention.backends._tuning import Tuning, tiling_of, tuning
from shapeexec.attention.masks import Lengths, Mask
from shapeexec.attention.masks._value import wide

B = TypeVar("B", bound=Backend)


def forward(*flat: Array, call: Call, platform: str) -> list[Array]:
    """The output and the log-sum-exp; see `Backend.forward`."""
    return _attention_forward(*flat, call=call, platform=platform, tuning=tuning(platform))


def tangent(*flat: Array, call: Call, along: tuple[int, ...], platform: str) -> list[Array]:
    """The derivatives of output and log-sum-exp.

    Args:
        *flat: The operands, the results, and directions of the operands that are in `along`.
        call: The call.
        along: Numbers of operands.
        platform: The platform that it is lowered for.
    """
    return _attention_tangent(
        *flat, call=call, along=along, platform=platform, tuning=tuning(platform)
    )


def gradient(
    *flat: Array,
    call: Call,
    along: tuple[int, ...],
    has_d_logsumexp: bool,
    platform: str,
) -> list[Array]:
    """The gradients of the operands that are in `along`.

    Args:
        *flat: The operands, the results, and the cotangents of both.
        call: The call.
        along: Numbers of operands.
        has_d_logsumexp: Whether there is a second cotangent.
        platform: The platform that it is lowered for.
    """
    return _attention_gradient(
        *flat, call=call, along=along, platform=platform, tuning=tuning(platform)
    )


@functools.partial(jax.jit, static_argnames=("call", "platform", "tuning"))
def _attention_forward(*flat: Array, call: Call, platform: str, tuning: Tuning) -> list[Array]:
    operands, _ = split(call, flat)
    query, value = operands.query, operands.value
    if _is_empty(operands):
        batch, queries, heads, _ = query.shape
        out = jnp.zeros((batch, queries, heads, value.shape[3]), query.dtype)
        return [out, jnp.full((batch, heads, queries), -jnp.inf, wide(query.dtype))]
    job = _job(operands, call, chosen=_chooser(call, platform), tuning=tuning)
    key, value = job.operands.key, job.operands.value
    return [*job.backend.forward(job.signature, job.work, q=query, k=key, v=value, bias=job.bias)]


@functools.partial(jax.jit, static_argnames=("call", "along", "platform", "tuning"))
def _attention_tangent(
    *flat: Array, call: Call, along: tuple[int, ...], platform: str, tuning: Tuning
) -> list[Array]:
    operands, (out, logsumexp, *directions) = split(call, flat)
    if _is_empty(operands):
        return [jnp.zeros_like(out), jnp.zeros_like(logsumexp)]
    given = dict(zip(along, directions, strict=True))
    if operands.pages is not None:
        numbers = page_numbers(operands)
        given |= {i: gathered(given[i], numbers) for i in KEY_AND_VALUE if i in given}
    chosen = functools.partial(choose_for_tangent, platform=platform)
    job = _job(without_pages(operands), call, chosen=chosen, tuning=tuning)
    tangents = (given.get(0), given.get(1), given.get(2))
    first = call.operands - call.bias.num_leaves
    d_bias = {i - first: given[i] for i in along if i >= first}
    return [
        *job.backend.tangent(
            job.signature,
            job.work,
            residuals=job.residuals(out, logsumexp),
            tangents=tangents,
            d_bias=d_bias,
        )
    ]


@functools.partial(jax.jit, static_argnames=("call", "along", "platform", "tuning"))
def _attention_gradient(
    *flat: Array, call: Call, along: tuple[int, ...], platform: str, tuning: Tuning
) -> list[Array]:
    operands, (out, logsumexp, d_out, *more) = split(call, flat)
    if _is_empty(operands):
        return [jnp.zeros_like(flat[i]) for i in along]
    first = call.operands - call.bias.num_leaves
    bias_gradient = any(i >= first for i in along)
    job = _job(
        without_pages(operands),
        call,
        chosen=_chooser(call, platform),
        tuning=tuning,
        is_backward=True,
        bias_gradient=bias_gradient,
        logsumexp_gradient=bool(more),
        deterministic=call.deterministic,
    )
    *gradients, d_bias = job.backend.backward(
        job.signature,
        job.work,
        residuals=job.residuals(out, logsumexp),
        d_out=d_out,
        d_logsumexp=more[0] if more else None,
        deterministic=call.deterministic,
        bias_gradient=bias_gradient,
    )
    if operands.pages is not None:
        numbers, count = page_numbers(operands), operands.key.shape[0]
        for i in KEY_AND_VALUE:
            gradients[i] = by_page(gradients[i], numbers, pages=count)
    of_bias = jax.tree.leaves(d_bias)
    return [gradients[i] if i < 3 else of_bias[i - first] for i in along]


@dataclasses.dataclass(frozen=True)
class _Job(Generic[B]):
    """A call, prepared for a back end.

    Attributes:
        backend: The back end.
        signature: The static part.
        work: Mask, valid lengths and tiles.
        operands: Those of the call, with keys and values as the back end reads them.
        bias: An array, a score modifier, or None.
    """

    backend: B
    signature: Signature
    work: Work
    operands: Operands
    bias: Any

    def residuals(self, out: Array, logsumexp: Array) -> Residuals:
        """Operands and results of the forward pass."""
        query, key, value = self.operands.query, self.operands.key, self.operands.value
        return Residuals(query, key, value, self.bias, out, logsumexp)


def _is_empty(operands: Operands) -> bool:
    dims: tuple[Any, ...] = (*operands.query.shape, *operands.value.shape, operands.key_size)
    if not all(isinstance(dim, int) for dim in dims):
        raise BackendError(
            "attention cannot be lowered at symbolic sizes.",
            got=f"query {list(operands.query.shape)}, value {list(operands.value.shape)}",
            why="the back end and the tiles are chosen by the sizes",
            fix="export it at each size, or run it by `Exec`, one graph for each bucket",
        )
    return 0 in dims


def _chooser(call: Call, platform: str) -> Callable[[Signature, Mask], Backend]:
    def chosen(signature: Signature, mask: Mask) -> Backend:
        return choose(call.implementation, signature, mask=mask, platform=platform)

    return chosen


def _job(
    operands: Operands,
    call: Call,
    *,
    chosen: Callable[[Signature, Mask], B],
    tuning: Tuning,
    **asked: bool,
) -> _Job[B]:
    """A call for the back end that `chosen` returns; `asked` are fields of its `Signature`."""
    mask = jax.tree.unflatten(call.mask, operands.mask)
    bias = jax.tree.unflatten(call.bias, operands.bias)
    signature = _signature(operands, call, bias=bias)
    signature = dataclasses.replace(signature, **asked)
    backend = chosen(signature, mask)
    if not (isinstance(backend, PagedBackend) and backend.reads_pages(signature)):
        operands = without_pages(operands)
        signature = dataclasses.replace(signature, page_size=None)
    tiling = tiling_of(backend, signature, mask=mask, tuning=tuning)
    signature = dataclasses.replace(signature, tile=tiling.tile, piece=tiling.piece)
    shares = isinstance(backend, SharingBackend) and backend.shares_lists
    work = _work(operands, mask, signature=signature, density=call.density, shares=shares)
    return _Job(backend, signature, work, operands, bias)


def _signature(operands: Operands, call: Call, *, bias: Any) -> Signature:
    batch, query_size, query_heads, head_size = operands.query.shape
    _, rows, key_heads, value_size = operands.value.shape
    return Signature(
        batch=batch,
        query_size=query_size,
        key_size=operands.key_size,
        query_heads=query_heads,
        key_heads=key_heads,
        head_size=head_size,
        value_size=value_size,
        dtype=operands.query.dtype.name,
        scale=head_size**-0.5 if call.scale is None else call.scale,
        bias=None if bias is None else bias.shape if hasattr(bias, "shape") else type(bias),
        is_ragged=call.has_query_lengths or call.has_key_lengths,
        tile=(128, 128),
        page_size=None if operands.pages is None else rows,
    )


def _work(
    operands: Operands, mask: Mask, *, signature: Signature, density: float | None, shares: bool
) -> Work:
    sizes = (signature.query_size, signature.key_size)
    given = (operands.query_lengths, operands.key_lengths)
    lengths: list[Any] = [
        np.full(signature.batch, size, np.int32) if length is None else jnp.clip(length, 0, size)
        for length, size in zip(given, sizes, strict=True)
    ]
    # Without lengths all examples share the arrays' sizes, and so their tiles.
    shared: list[Any] = [
        None if length is None else valid for length, valid in zip(given, lengths, strict=True)
    ]
    by_query, by_key = call_lists(
        mask,
        sizes,
        tile=signature.tile,
        batch=signature.batch,
        heads=signature.query_heads,
        query_lengths=shared[0],
        key_lengths=shared[1],
        shares=shares,
    )
    counts, columns = by_query.counts, -(-sizes[1] // signature.tile[1])
    if isinstance(counts, np.ndarray):
        density = float(counts.mean()) / columns
    pages = None if operands.pages is None else page_numbers(operands)
    return Work(mask & Lengths(), lengths[0], lengths[1], by_query, by_key, density, pages)
