"""Programs that differ in one thing are told apart; those that do the same are not."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shapeexec as sx
from shapeexec.checking import compare, difference, instantiate
from tests.checking.support import f32, plain_jaxpr

Pair = tuple[Callable[..., Any], Callable[..., Any]]


def _scaled_by(factor: int) -> Callable[..., Any]:
    return lambda x: factor * x


def _masked_by_a_function(x: jax.Array) -> jax.Array:
    q = x[None, :, None, :]  # the mask's function is another object each time
    return sx.dot_product_attention(q, q, q, mask=sx.MaskFunction(lambda b, h, q, k: k <= q))


def _scan_of(body: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: lax.scan(body, jnp.float32(0), x)[0].sum()


def _while_of(test: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: lax.while_loop(test, lambda c: c * 2 + 1, x.sum())


def _sorted_by(order: int) -> Callable[..., Any]:
    return lambda x: lax.sort((x, -x), num_keys=order)


def _in_windows(width: int, stride: int) -> Callable[..., Any]:
    def summed(x: jax.Array) -> jax.Array:
        return lax.reduce_window(x.ravel(), 0.0, lax.add, (width,), (stride,), "VALID")[:2]

    return summed


def _convolved(x: jax.Array, layout: tuple[str, str, str]) -> jax.Array:
    kernel = jnp.ones((3, 3, 2))
    return lax.conv_general_dilated(x[None], kernel, (1,), "SAME", dimension_numbers=layout)


def _of_groups(x: jax.Array, order: Sequence[int] = (0, 1), **groups: int) -> jax.Array:
    """Two arrays convolved, each with a kernel of its own: groups of features or of batches."""
    parts = jnp.stack([jnp.sin(x), jnp.cos(x)])[jnp.array(order)]  # [group, feature, space]
    by_batch = groups.get("batch_group_count", 1) > 1
    data = parts if by_batch else parts.reshape(1, 6, 3)
    kernel = jnp.tanh(x).reshape(1, 3, 3) * jnp.arange(1.0, 5).reshape(4, 1, 1)
    return lax.conv_general_dilated(data, kernel, (1,), "SAME", **groups)


def _by(stride: int, low: int, high: int, dilation: int = 1, kernel: int = 2) -> Callable[..., Any]:
    """A convolution of a row of nine by a kernel of its own first elements."""

    def convolved(x: jax.Array) -> jax.Array:
        row, first = x.reshape(1, 1, 9), x.reshape(1, 1, 9)[..., :kernel]
        return lax.conv_general_dilated(
            row, first, (stride,), [(low, high)], rhs_dilation=(dilation,)
        )[..., :2]

    return convolved


def _correlated(x: jax.Array, padding: tuple[int, int] | None = None, step: int = 1) -> jax.Array:
    """A row of nine correlated with three elements; with padding, the three with the nine."""
    row, three = x.reshape(1, 1, 9), jnp.sin(x[0]).reshape(1, 1, 3)
    if padding is None:
        return lax.conv(row, three, (1,), "VALID")
    return lax.conv_general_dilated(three, row, (1,), [padding])[..., ::step]


def _cube(x: jax.Array) -> jax.Array:
    return x[:, :, None] * jnp.sin(x[0])


def _counting(start: int) -> Callable[..., Any]:
    """A loop that puts out what it counts, two numbers at a step."""

    def loop(x: jax.Array) -> jax.Array:
        rows = lax.scan(lambda i, _: (i + 1, i * 2), jnp.int32(start), None, length=3)[1]
        return x * rows

    return loop


def _index(x: jax.Array) -> jax.Array:
    return lax.stop_gradient(x[0, 0]).astype(jnp.int32)


def _sliced(x: jax.Array, index: jax.Array) -> jax.Array:
    """A row as JAX reads it at ints."""
    row = lax.dynamic_slice(x, (index, 0), (1, 3), allow_negative_indices=False)
    return lax.squeeze(row, (0,))


def _gathered(x: jax.Array, index: jax.Array, mode: Any = "promise_in_bounds") -> jax.Array:
    """A row by the gather that JAX makes of `x[index]` at symbolic sizes."""
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(0,), collapsed_slice_dims=(0,), start_index_map=(0,)
    )
    mode = lax.GatherScatterMode.from_any(mode)
    return lax.gather(x, index[None], numbers, (1, 3), unique_indices=True, mode=mode)


MUTATIONS: dict[str, Pair] = {
    "the last digit of a constant": (
        lambda x: x * 0.1,
        lambda x: x * np.nextafter(np.float32(0.1), 1),
    ),
    "the last digit of 1": (lambda x: x * 1.0, lambda x: x * np.nextafter(np.float32(1), 2)),
    "the last digit, further up": (
        lambda x: jnp.sin(x * 0.1).sum(),
        lambda x: jnp.sin(x * np.nextafter(np.float32(0.1), 1)).sum(),
    ),
    "the sign of a zero": (lambda x: x / 0.0, lambda x: x / -0.0),
    "an integer constant": (lambda x: jnp.minimum(x, 3), lambda x: jnp.minimum(x, 4)),
    "an element of a constant": (
        lambda x: x * np.float32([1, 2, 3]),
        lambda x: x * np.float32([1, 2, 4]),
    ),
    "an axis": (lambda x: x.sum(0), lambda x: x.T.sum(0)),
    "an axis of a maximum": (lambda x: x.max(0) + 1, lambda x: x.max(1) + 1),
    "operands of a difference": (lambda x: x - x.T, lambda x: x.T - x),
    "a missing equation": (lambda x: jnp.maximum(x, 0), lambda x: x),
    "a missing epsilon": (lambda x: x / (x.std() + 1e-12), lambda x: x / x.std()),
    "a clip that is seldom met": (lambda x: jnp.clip(x, -300, 300), lambda x: x),
    "another function": (jnp.sin, jnp.cos),
    "a permutation": (lambda x: x, lambda x: x.T),
    "a reversed axis": (lambda x: x[::-1], lambda x: x[:, ::-1]),
    "a slice": (lambda x: x[1:, 0], lambda x: x[:-1, 0]),
    "a step": (lambda x: x[::2].sum(), lambda x: x[:2].sum()),
    "where padding goes": (
        lambda x: jnp.pad(x, ((1, 0), (0, 0))),
        lambda x: jnp.pad(x, ((0, 1), (0, 0))),
    ),
    "the body of a scan": (
        _scan_of(lambda c, row: (c + row.sum(), None)),
        _scan_of(lambda c, row: (c + row.max(), None)),
    ),
    "a constant in the body of a scan": (
        _scan_of(lambda c, row: (c + 2 * row.sum(), None)),
        _scan_of(lambda c, row: (c + 3 * row.sum(), None)),
    ),
    "the direction of a scan": (
        lambda x: lax.scan(lambda c, row: (c * row, c), x[0], x)[1],
        lambda x: lax.scan(lambda c, row: (c * row, c), x[0], x, reverse=True)[1],
    ),
    "the test of a loop": (_while_of(lambda c: c < 9), _while_of(lambda c: c <= 9)),
    "a branch": (
        lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
        lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.tan, x),
    ),
    "branches changed over": (
        lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
        lambda x: lax.cond(x.sum() > 0, jnp.cos, jnp.sin, x),
    ),
    "the keys of a sort": (_sorted_by(1), _sorted_by(2)),
    "the contracted axis": (
        lambda x: jnp.einsum("ab,cb->ac", x, jnp.sin(x)),
        lambda x: jnp.einsum("ab,bc->ac", x, jnp.sin(x)),
    ),
    "the precision of a product": (
        lambda x: lax.dot(x, x, precision="highest"),
        lambda x: lax.dot(x, x, precision="default"),
    ),
    "the seed": (
        lambda x: x * jax.random.normal(jax.random.key(0), x.shape),
        lambda x: x * jax.random.normal(jax.random.key(1), x.shape),
    ),
    "what a callback does": (
        lambda x: jax.pure_callback(np.sin, x, x),
        lambda x: jax.pure_callback(np.cos, x, x),
    ),
    "what a callback closes over": (
        lambda x: jax.pure_callback(_scaled_by(2), x, x),
        lambda x: jax.pure_callback(_scaled_by(3), x, x),
    ),
    "the mask of an attention": (
        _masked_by_a_function,
        lambda x: sx.dot_product_attention(*[x[None, :, None, :]] * 3, mask=sx.Causal(align="end")),
    ),
    "how a scatter combines": (
        lambda x: x.at[jnp.argsort(x[0])].add(1.0),
        lambda x: x.at[jnp.argsort(x[0])].multiply(2.0),
    ),
    "the mode of an index": (
        lambda x: x.at[jnp.int32(x[0, 0])].get(mode="clip"),
        lambda x: x.at[jnp.int32(x[0, 0])].get(mode="fill"),
    ),
    "the stride of windows": (_in_windows(3, 2), _in_windows(3, 1)),
    "the width of windows": (_in_windows(3, 2), _in_windows(2, 2)),
    "the part of what is padded": (
        lambda x: jnp.pad(x, ((1, 1), (0, 0)))[:2],
        lambda x: jnp.pad(x, ((1, 1), (0, 0)))[2:4],
    ),
    "what is padded with": (
        lambda x: lax.pad(x, 1.0, ((-1, 1, 0), (0, 0, 0))),
        lambda x: lax.pad(x, 2.0, ((-1, 1, 0), (0, 0, 0))),
    ),
    "the layout of a convolution": (
        lambda x: _convolved(x, ("NCH", "OIH", "NCH")),
        lambda x: _convolved(x, ("NHC", "OIH", "NCH")),
    ),
    "which group a kernel is for": (
        lambda x: _of_groups(x, feature_group_count=2),
        lambda x: _of_groups(x, (1, 0), batch_group_count=2),
    ),
    "the stride of a convolution": (_by(2, 0, 0), _by(1, 0, 0)),
    "the padding of a convolution": (_by(2, 1, 0), _by(2, 0, 1)),
    "the dilation of a kernel": (_by(2, 0, 0, 2), _by(2, 0, 0, 1)),
    "the padding of operands changed over": (_correlated, lambda x: _correlated(x, (5, 7), -1)),
    "the order of what operands changed over give": (_correlated, lambda x: _correlated(x, (6, 6))),
    "a kernel read backwards": (
        lambda x: lax.conv(x[None], jnp.sin(x)[None, :, ::-1], (1,), "SAME"),
        lambda x: lax.conv(x[None], jnp.sin(x)[None], (1,), "SAME"),
    ),
    "which part of what is turned": (
        lambda x: _cube(x).transpose(2, 0, 1)[1:, :, ::-1],
        lambda x: _cube(x)[:, ::-1, :2].transpose(2, 0, 1),
    ),
    "how axes are split before they are turned": (
        lambda x: _cube(x).reshape(9, 3).T.reshape(3, 3, 3),
        lambda x: _cube(x).reshape(3, 9).T.reshape(3, 3, 3),
    ),
    "the order of axes in a reshape": (
        lambda x: lax.reshape(x, (9,), (1, 0)),
        lambda x: lax.reshape(x, (9,)),
    ),
    "the order of axes in a reshape of constants": (
        lambda x: x.ravel() * lax.reshape(jnp.arange(9.0).reshape(3, 3), (9,), (1, 0)),
        lambda x: x.ravel() * lax.reshape(jnp.arange(9.0).reshape(3, 3), (9,)),
    ),
    "the mode of an index in the gradient": (
        jax.grad(lambda x: jnp.sin(_sliced(x, _index(x))).sum()),
        jax.grad(lambda x: jnp.sin(_gathered(x, _index(x), "fill")).sum()),
    ),
    "what a loop counts from": (_counting(0), _counting(1)),
    "a cotangent that is summed": (
        jax.grad(lambda x: (jnp.sin(x) * x + jnp.cos(x) * x).sum()),
        jax.grad(lambda x: (jnp.sin(x) * x + jnp.tanh(x) * x).sum()),
    ),
    "results changed over": (lambda x: (x, x + 1), lambda x: (x + 1, x)),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_told(name):
    one, other = (plain_jaxpr(fn, f32(3, 3)) for fn in MUTATIONS[name])
    assert difference(instantiate(one, {}), instantiate(one, {})) is None
    told = difference(instantiate(one, {}), other)
    assert told is not None
    assert difference(instantiate(other, {}), one) is not None


def _with_aval(jaxpr: Any, **changes: Any) -> Any:
    """A jaxpr whose last equation claims another type of its result."""
    flat = instantiate(jaxpr, {})
    (out,) = flat.jaxpr.outvars
    out.aval = out.aval.update(**changes)
    return flat


def test_a_weak_type_of_a_result_is_told():
    jaxpr = plain_jaxpr(jnp.sin, f32(3))
    told = difference(_with_aval(jaxpr, weak_type=True), jaxpr)
    assert told is not None
    assert told.text == "result 0 is f32[3], weakly typed instead of f32[3]"


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
    "a function made anew in a parameter": (_masked_by_a_function, _masked_by_a_function),
    "a callback made anew": (
        lambda x: jax.pure_callback(_scaled_by(2), x, x),
        lambda x: jax.pure_callback(_scaled_by(2), x, x),
    ),
    "a branch that is known": (
        jnp.sin,
        lambda x: lax.cond(jnp.int32(1) > 0, jnp.sin, jnp.cos, x),
    ),
    "the gradient at an index": (
        jax.grad(lambda x: jnp.sin(_sliced(x, _index(x))).sum()),
        jax.grad(lambda x: jnp.sin(_gathered(x, _index(x))).sum()),
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
        lambda x: _convolved(x, ("NCH", "OIH", "NCH")),
        lambda x: _convolved(x.T, ("NHC", "OIH", "NHC")).transpose(0, 2, 1),
    ),
    "groups of features and of batches": (
        lambda x: _of_groups(x, feature_group_count=2),
        lambda x: _of_groups(x, batch_group_count=2),
    ),
    "what no window reaches": (_by(2, 0, 0), _by(2, 0, -1)),
    "a stride that is never taken": (_by(9, 0, 0), _by(8, 0, -1)),
    "the dilation of one element": (_by(1, 0, 0, 3, 1), _by(1, 0, 0, 1, 1)),
    "operands of a convolution changed over": (_correlated, lambda x: _correlated(x, (6, 6), -1)),
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
        lambda x: _cube(x).transpose(2, 0, 1)[1:, :, ::-1],
        lambda x: _cube(x)[:, ::-1, 1:].transpose(2, 0, 1),
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
        lambda x: _cube(x).reshape(9, 3).T.reshape(3, 3, 3).transpose(1, 2, 0),
        _cube,
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
        _counting(1),
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
