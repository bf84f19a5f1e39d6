"""Advice on the operands, dropout and back ends of attention, and on masks that cannot be made."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from shapeexec.attention import flax_attention_fn
from tests.advice.attention_rows import KEEP, Q, attend, plain, replaced, told
from tests.advice.row import Advice, option, quoted, value

KEY = jax.random.key(1)


def made(
    name: str, broken: Callable[[], Any], fix: str, right: Callable[[str], Any], expected: Any
) -> Advice:
    """A mask or score modifier that cannot be made, and attention by the one that is told."""
    return Advice(
        name,
        "masks",
        sx.ConfigError,
        broken,
        fix,
        lambda line: attend(**right(line)),
        lambda: attend(**expected),
    )


def refused_function(function: Any) -> Callable[[], Any]:
    return lambda: attend(mask=sx.MaskFunction(function))


def closed_over() -> Any:
    def fn(x: Any, keep: Any) -> Any:
        return attend(x, x, x, mask=sx.MaskFunction(lambda b, h, q, k: keep[q, k]))

    return jax.jit(fn)(Q, KEEP)


def curvature(attention: Any) -> Any:
    """The second derivative of attention's sum by one number of its query."""
    small = Q[:1, :2, :1, :1]

    def fn(number: Any) -> Any:
        return attention(small * number, small, small).sum()

    return jax.grad(jax.grad(fn))(1.0)


ALLOWED = np.array([0, 1, 1, 2, 4])


ROWS = [
    replaced(
        "scale",
        "attention",
        {"scale": "x"},
        "0.125",
        lambda line: {"scale": 0.125},
        lambda: plain(scale=0.125),
    ),
    replaced(
        "an integer query",
        "attention",
        {"query": Q.astype(int), "key": Q, "value": Q},
        "query=query.astype(jnp.float32)",
        lambda line: told(line, "query", query=Q.astype(int)),
        lambda: jax.nn.dot_product_attention(np.trunc(Q), Q, Q),
    ),
    replaced(
        "a key of another dtype",
        "attention",
        {"key": Q.astype(np.float16)},
        "key=key.astype(query.dtype)",
        lambda line: {
            "key": value(line.split("key=")[1].split(", or")[0], key=Q.astype(np.float16), query=Q)
        },
        lambda: jax.nn.dot_product_attention(Q, Q.astype(np.float16).astype(np.float32), Q),
    ),
    replaced(
        "heads",
        "attention",
        {"key": Q[:, :, :3], "value": Q[:, :, :3]},
        "give query 3 heads",
        lambda line: {"query": Q[:, :, :3]},
        lambda: jax.nn.dot_product_attention(*[Q[:, :, :3]] * 3),
    ),
    replaced(
        "two axes",
        "attention",
        {"query": Q[0, 0]},
        "or the same without the batch",
        lambda line: dict.fromkeys(("query", "key", "value"), Q[0]),
        lambda: plain()[0] * 0 + jax.nn.dot_product_attention(Q[0], Q[0], Q[0]),
    ),
    replaced(
        "batches",
        "attention",
        {"key": Q[:1]},
        "one batch, such as of 2 examples",
        lambda line: {"key": Q},
        plain,
    ),
    replaced(
        "a rate of 1",
        "dropout",
        {"dropout_rate": 1, "dropout_key": KEY},
        "dropout_rate=0.1",
        lambda line: told(line, "dropout_rate"),
        lambda: attend(dropout_rate=0.1, dropout_key=KEY),
    ),
    replaced(
        "no key",
        "dropout",
        {"dropout_rate": 0.1},
        "dropout_key=jax.random.key(0), another one for each call",
        lambda line: {"dropout_key": value(line.split("dropout_key=")[1].split(", another")[0])},
        lambda: attend(dropout_rate=0.1, dropout_key=jax.random.key(0)),
    ),
    replaced(
        "evaluation",
        "dropout",
        {"dropout_rate": 0.1, "dropout_key": KEY, "deterministic": True},
        "or dropout_rate=0 for no dropout",
        lambda line: {"dropout_rate": int(line.split("dropout_rate=")[1][0])},
        plain,
    ),
    replaced(
        "a share of tiles in per cent",
        "attention",
        {"expected_density": 25},
        "expected_density=0.25, as BlockMask.from_mask(...).density tells for a typical mask, or",
        lambda line: {"expected_density": value(line.split("expected_density=")[1].split(", ")[0])},
        plain,
    ),
    replaced(
        "a back end that there is not",
        "back ends",
        {"implementation": "cuda"},
        'leave implementation= out, or name one of "mosaic_gpu", "triton", ',
        lambda line: {"implementation": quoted(line, '"')[-1]},
        plain,
    ),
    Advice(
        "a back end that cannot",
        "back ends",
        sx.BackendError,
        lambda: attend(implementation="cudnn"),
        "leave implementation= out",
        lambda line: attend(),
        plain,
    ),
    Advice(
        "a second derivative",
        "back ends",
        sx.BackendError,
        lambda: curvature(attend),
        "call jax.nn.dot_product_attention where a Hessian is needed",
        lambda line: curvature(value(line.removeprefix("call ").split()[0])),
        lambda: curvature(jax.nn.dot_product_attention),
    ),
    Advice(
        "weights of Flax",
        "back ends",
        sx.ConfigError,
        lambda: flax_attention_fn(Q, Q, Q, module=object()),
        "sow_weights=False",
        lambda line: flax_attention_fn(Q, Q, Q),
        plain,
    ),
    Advice(
        "an einsum of Flax",
        "back ends",
        sx.ConfigError,
        lambda: flax_attention_fn(Q, Q, Q, einsum_dot_general=jax.lax.dot_general),
        "leave it out",
        lambda line: flax_attention_fn(Q, Q, Q),
        plain,
    ),
    replaced(
        "lengths of keys and values",
        "attention",
        {"value": Q[:, :3]},
        "pass key as [B, S, K, H] and value as [B, S, K, V]",
        lambda line: {"value": Q},
        plain,
    ),
    replaced(
        "sizes of heads",
        "attention",
        {"query": Q[..., :4]},
        "give query and key one head size, their last axis; the value's may differ",
        lambda line: {"query": Q, "value": Q},
        plain,
    ),
    replaced(
        "two scales",
        "attention",
        {"scale": np.ones(2)},
        "pass one number",
        lambda line: {"scale": np.float32(0.5)},
        lambda: plain(scale=0.5),
    ),
    Advice(
        "two traced scales",
        "attention",
        sx.ConfigError,
        lambda: jax.jit(lambda scale: attend(scale=scale))(np.ones(2)),
        "pass one number",
        lambda line: jax.jit(lambda scale: attend(scale=scale))(0.5),
        lambda: plain(scale=0.5),
    ),
    replaced(
        "a number for a key",
        "dropout",
        {"dropout_rate": 0.1, "dropout_key": 3},
        "dropout_key=jax.random.key(0), another one for each call",
        lambda line: {"dropout_key": value(line.split("dropout_key=")[1].split(", another")[0])},
        lambda: attend(dropout_rate=0.1, dropout_key=jax.random.key(0)),
    ),
    # masks that cannot be made
    made(
        "a side",
        lambda: sx.Causal(align="mid"),
        'align="start" or "end"',
        lambda line: {"mask": sx.Causal(align=option(line, "align"))},
        {"is_causal": True},
    ),
    made(
        "a window of nothing",
        lambda: sx.SlidingWindow(-3, 1),
        "left=0 or more",
        lambda line: {"mask": sx.SlidingWindow(0, 1)},
        {"local_window_size": (0, 1)},
    ),
    made(
        "a window of text",
        lambda: sx.SlidingWindow("1"),
        "pass left as an int",
        lambda line: {"mask": sx.SlidingWindow(1)},
        {"local_window_size": (1, 0)},
    ),
    made(
        "a step", lambda: sx.Dilated(0), "step=1 or more", lambda line: {"mask": sx.Dilated(1)}, {}
    ),
    made(
        "ids of floats",
        lambda: sx.Documents(np.zeros(5)),
        "as [T] or [B, T]",
        lambda line: {"mask": sx.Documents(np.zeros(5, int))},
        {},
    ),
    made(
        "a string for ids",
        lambda: sx.Documents("aaabb"),
        "pass an integer for each position",
        lambda line: {"mask": sx.Documents(["ab".index(letter) for letter in "aaaaa"])},
        {},
    ),
    made(
        "ids that no dtype holds",
        lambda: attend(mask=sx.Documents(jnp.arange(5, dtype=jnp.uint32), np.arange(5) - 1)),
        "give both one dtype, such as int32, with ids that it holds",
        lambda line: {"mask": sx.Documents(jnp.zeros(5, jnp.int32), np.zeros(5, np.int32))},
        {},
    ),
    made(
        "windows of floats",
        lambda: sx.SlidingWindow(np.ones(2)),
        "or as int32[B]: one for each example",
        lambda line: {"mask": sx.SlidingWindow(np.ones(2, np.int32))},
        {"local_window_size": (1, 0)},
    ),
    made(
        "ids of another length",
        lambda: attend(mask=sx.Documents(np.zeros((2, 7), int))),
        "pass it as [B, T]",
        lambda line: {"mask": sx.Documents(np.zeros((2, 5), int))},
        {},
    ),
    made(
        "slopes",
        lambda: sx.ALiBi(np.ones(4, int)),
        "or ALiBi.for_heads(N)",
        lambda line: {"bias": value("sx.ALiBi.for_heads(N)", N=4)},
        {"bias": sx.ALiBi.for_heads(4)},
    ),
    made(
        "no heads",
        lambda: sx.ALiBi.for_heads(0),
        "heads=1 or more",
        lambda line: {"bias": sx.ALiBi.for_heads(4)},
        {"bias": sx.ALiBi.for_heads(4)},
    ),
    made(
        "a table",
        lambda: sx.RelativeBias(np.ones(3)),
        "pass float[N, left + 1 + right]",
        lambda line: {"bias": sx.RelativeBias(np.zeros((4, 3), np.float32))},
        {},
    ),
    made(
        "a table without a middle",
        lambda: sx.RelativeBias(np.ones((4, 4), np.float32)),
        "pass left from 0 to 3, or an odd number of distances",
        lambda line: {"bias": sx.RelativeBias(np.zeros((4, 4), np.float32), left=3)},
        {},
    ),
    made(
        "few buckets",
        lambda: sx.RelativeBias.t5(np.zeros((1, 4), np.float32), bidirectional=True),
        "pass a table of 4 buckets or more, and max_distance=128 or more",
        lambda line: {
            "bias": sx.RelativeBias.t5(jnp.zeros((4, 4)), bidirectional=True, max_distance=128)
        },
        {},
    ),
    made(
        "a function of no mask",
        lambda: sx.MaskFunction(3),
        "`lambda b, h, q, k: k <= q`",
        lambda line: {"mask": sx.MaskFunction(value(quoted(line)[0]))},
        {"is_causal": True},
    ),
    made(
        "a function of numbers",
        refused_function(lambda b, h, q, k: k - q),
        "return bool, by a comparison",
        lambda line: {"mask": sx.MaskFunction(lambda b, h, q, k: k - q <= 0)},
        {"is_causal": True},
    ),
    made(
        "a function of NumPy",
        refused_function(lambda b, h, q, k: k <= ALLOWED[q]),
        "jnp.asarray(array)[q]",
        lambda line: {
            "mask": sx.MaskFunction(
                lambda b, h, q, k: k <= value(line.split(",")[0], array=ALLOWED, q=q)
            )
        },
        {"mask": np.arange(5) <= ALLOWED[:, None]},
    ),
    Advice(
        "a function of a traced array",
        "masks",
        sx.ConfigError,
        closed_over,
        "make the array a mask of its own: `mask=array` of bool",
        lambda line: jax.jit(
            lambda x, keep: attend(x, x, x, mask=option(quoted(line)[0], "mask", array=keep))
        )(Q, KEEP),
        lambda: plain(mask=KEEP),
    ),
    made(
        "a tile",
        lambda: sx.BlockMask.from_mask(sx.Causal(), query_size=5, key_size=5, tile=3),
        "tile=(128, 128), for 128 queries and 128 keys",
        lambda line: {
            "mask": sx.BlockMask.from_mask(
                sx.Causal(), query_size=5, key_size=5, tile=option(line, "tile")
            )
        },
        {"is_causal": True},
    ),
    made(
        "tiles of another length",
        lambda: attend(mask=sx.BlockMask.from_mask(sx.Causal(), query_size=6, key_size=6)),
        "make the block mask for T=5",
        lambda line: {"mask": sx.BlockMask.from_mask(sx.Causal(), query_size=5, key_size=5)},
        {"is_causal": True},
    ),
    made(
        "kinds",
        lambda: sx.BlockMask(np.zeros((2, 2), np.uint8), (128, 128), (5, 5)),
        "pass uint8[B or 1, N or 1, 1, 1]",
        lambda line: {"mask": sx.BlockMask(np.full((1, 1), 2, np.uint8), (128, 128), (5, 5))},
        {},
    ),
]
