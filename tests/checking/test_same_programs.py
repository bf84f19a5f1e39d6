"""Programs that are the same, though their jaxprs are written otherwise."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import scheduling_groups

from shapeexec.checking import compare, instantiate
from tests.checking.programs import (
    by,
    convolved,
    correlated,
    counting,
    cube,
    gathered,
    index,
    masked_by_a_function,
    of_groups,
    scaled_by,
    sliced,
)
from tests.checking.support import f32, plain_jaxpr

Pair = tuple[Callable[..., Any], Callable[..., Any]]


def _squared(x: jax.Array) -> jax.Array:
    return x * x


def _multiplied(x: jax.Array, by: jax.Array) -> jax.Array:
    return lax.scan(lambda c, row: (c + row * by, None), x[0], x)[0]


EQUALS: dict[str, Pair] = {
    "order of unrelated equations": (
        lambda x: (jnp.sin(x), jnp.cos(x)),
        lambda x: (jnp.cos(x), jnp.sin(x))[::-1],
    ),
    "dead code": (lambda x: x + 1, lambda x: (jnp.sin(x), x + 1)[1]),
    "twice the same": (lambda x: jnp.sin(x) * jnp.sin(x), lambda x: _squared(jnp.sin(x))),
    "a call": (jax.jit(jnp.sin), lax.sin),
    "a call with metadata": (
        scheduling_groups.scheduling_group("one")(lambda x: jnp.sin(x) * 2),
        lambda x: lax.sin(x) * 2,
    ),
    "a checkpoint": (jax.checkpoint(lambda x: jnp.sin(x) * 2), lambda x: lax.sin(x) * 2),
    "reversed by a gather": (lambda x: x[::-1], lambda x: x[jnp.arange(2, -1, -1)]),
    "strided by a gather": (lambda x: x[::2], lambda x: x[2 * jnp.arange(2)]),
    "a grid": (lambda x: x[::2, ::-1], lambda x: x[2 * jnp.arange(2)][:, jnp.arange(2, -1, -1)]),
    "reversed twice": (lambda x: x, lambda x: x[::-1][::-1]),
    "transposed twice": (lambda x: x, lambda x: x.T.T),
    "reshaped twice": (lambda x: x.reshape(9), lambda x: x.reshape(3, 3, 1).reshape(9)),
    "the gradient of a slice": (
        jax.grad(lambda y: jnp.sin(y[1:]).sum()),
        jax.grad(lambda y: jnp.sin(y[1 + jnp.arange(2)]).sum()),
    ),
    "a loop that counts": (
        lambda x: lax.fori_loop(0, 3, lambda i, c: c + x[i], x[0]),
        lambda x: lax.while_loop(
            lambda c: c[0] < c[1], lambda c: (c[0] + 1, c[1], c[2] + x[c[0]]), (0, 3, x[0])
        )[2],
    ),
    "a constant from outside of a loop": (
        lambda x: lax.scan(lambda c, r: (c + r * 2.0, None), x[0], x)[0],
        lambda x: _multiplied(x, jnp.float32(1) + jnp.float32(1)),
    ),
    "a carry that never changes": (
        lambda x: _multiplied(x, jnp.sin(x[0])),
        lambda x: lax.scan(lambda c, r: ((c[0] + r * c[1], c[1]), None), (x[0], jnp.sin(x[0])), x)[
            0
        ][0],
    ),
    "a function made anew in a parameter": (masked_by_a_function, masked_by_a_function),
    "a callback made anew": (
        lambda x: jax.pure_callback(scaled_by(2), x, x),
        lambda x: jax.pure_callback(scaled_by(2), x, x),
    ),
    "a branch that is known": (
        jnp.sin,
        lambda x: lax.cond(jnp.int32(1) > 0, jnp.sin, jnp.cos, x),
    ),
    "the gradient at an index": (
        jax.grad(lambda x: jnp.sin(sliced(x, index(x))).sum()),
        jax.grad(lambda x: jnp.sin(gathered(x, index(x))).sum()),
    ),
    "a part of what is padded": (
        lambda x: lax.pad(lax.pad(x, 0.0, ((0, 0, 1), (0, 0, 0))), 0.0, ((-1, 2, 0), (0, 0, 0))),
        lambda x: lax.pad(x, 0.0, ((-1, 2, 1), (0, 0, 0))),
    ),
    "a part of padding alone": (
        lambda x: jnp.pad(x, ((2, 0), (0, 0)))[:2],
        lambda x: jnp.zeros((2, 3)),
    ),
    "padding taken away": (
        lambda x: lax.pad(x, 1.0, ((-1, 0, 0), (0, -1, 0))),
        lambda x: x[1:, :2],
    ),
    "windows of what is padded": (
        lambda x: lax.reduce_window(x.ravel(), 0.0, lax.add, (3,), (2,), [(0, 1)]),
        lambda x: lax.reduce_window(jnp.pad(x.ravel(), 2), 0.0, lax.add, (3,), (1,), "VALID")[
            2:9:2
        ],
    ),
    "windows of one element": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 1), (2, 1), "VALID"),
        lambda x: x[::2],
    ),
    "a convolution in another layout": (
        lambda x: convolved(x, ("NCH", "OIH", "NCH")),
        lambda x: convolved(x.T, ("NHC", "OIH", "NHC")).transpose(0, 2, 1),
    ),
    "groups of features and of batches": (
        lambda x: of_groups(x, feature_group_count=2),
        lambda x: of_groups(x, batch_group_count=2),
    ),
    "what no window reaches": (by(2, 0, 0), by(2, 0, -1)),
    "a stride that is never taken": (by(9, 0, 0), by(8, 0, -1)),
    "the dilation of one element": (by(1, 0, 0, 3, 1), by(1, 0, 0, 1, 1)),
    "operands of a convolution changed over": (correlated, lambda x: correlated(x, (6, 6), -1)),
    "kernels read backwards and turned": (
        lambda x: lax.conv(x[None], lax.rev(jnp.sin(x)[None], (2,)), (2,), "SAME"),
        lambda x: lax.conv_general_dilated(
            x[None],
            jnp.sin(x).T[::-1, :, None],
            (2,),
            "SAME",
            dimension_numbers=("NCH", "HIO", "NCH"),
        ),
    ),
    "a part of a convolution": (
        lambda x: lax.conv(x[None], jnp.sin(x)[None], (1,), "SAME")[..., ::2],
        lambda x: lax.conv_general_dilated(x[None], jnp.sin(x)[None], (2,), [(1, 1)]),
    ),
    "a part of what is turned": (
        lambda x: cube(x).transpose(2, 0, 1)[1:, :, ::-1],
        lambda x: cube(x)[:, ::-1, 1:].transpose(2, 0, 1),
    ),
    "a part of padding, turned": (
        lambda x: jnp.pad(x, 1).T[1:4, 2:],
        lambda x: jnp.pad(x[1:], ((0, 1), (0, 0))).T,
    ),
    "zeros on zeros": (
        lambda x: x.sum() + lax.pad(jnp.zeros(2), 0.0, ((1, 0, 1),)),
        lambda x: x.sum() + lax.pad(jnp.zeros(4), 0.0, ((0, 0, 0),)),
    ),
    "turned, however it is split": (
        lambda x: cube(x).reshape(9, 3).T.reshape(3, 3, 3).transpose(1, 2, 0),
        cube,
    ),
    "turned in a reshape": (
        lambda x: lax.reshape(x, (9,), (1, 0)),
        lambda x: x.T.ravel(),
    ),
    "a cotangent of what is not read": (
        jax.grad(lambda x: (x * x + x[3:].sum()).sum()),
        jax.grad(lambda x: (x * x).sum()),
    ),
    "what a loop counts": (
        counting(1),
        lambda x: x * jnp.int32([2, 4, 6]),
    ),
    "what a loop counts backwards": (
        lambda x: x * lax.scan(lambda i, _: (i + 1, i), 0, None, length=3, reverse=True)[1],
        lambda x: x * jnp.int32([2, 1, 0]),
    ),
    "rows with an axis of size 1": (
        lambda x: lax.scan(lambda c, r: (c + r, c * r), x[0, 0], x[0])[1],
        lambda x: lax.scan(lambda c, r: (c + r[0], (c * r[0])[None]), x[0, 0], x[0, :, None])[1][
            :, 0
        ],
    ),
    "a size as it is counted": (
        lambda x: x.sum() / 3.0,
        lambda x: x.sum() / lax.convert_element_type(jnp.int32(4) - 1, np.float32),
    ),
}


@pytest.mark.parametrize("name", EQUALS)
def test_what_is_the_same_is_known_without_evaluating(name):
    one, other = (plain_jaxpr(fn, f32(3, 3)) for fn in EQUALS[name])
    found = compare(instantiate(one, {}), other)
    assert found.difference is None
    assert found.evaluated == 0
