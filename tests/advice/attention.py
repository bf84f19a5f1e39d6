"""Advice on attention: masks of numbers, biases, shapes, dropout, lengths, back ends."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from shapeexec.attention import flax_attention_fn
from tests.advice.row import Advice, option, quoted, runs, somewhat, value

Q = somewhat(2, 5, 4, 8)
KEEP = np.tril(np.ones((5, 5), bool))
ONES = KEEP.astype(np.float32)
ADDED = np.where(KEEP, 0, -np.inf).astype(np.float32)
LARGE = np.where(KEEP, 0, -1e9).astype(np.float32)
GRADED = np.where(KEEP, 0.5, -2).astype(np.float32)
BIAS = somewhat(5, 5)
KEY = jax.random.key(1)


def attend(query: Any = Q, key: Any = Q, value: Any = Q, **options: Any) -> Any:
    return sx.dot_product_attention(query, key, value, **options)


def plain(**options: Any) -> Any:
    return jax.nn.dot_product_attention(Q, Q, Q, **options)


def told(fix: str, *names: str, **given: Any) -> dict[str, Any]:
    """The arguments that a Fix line tells, by name."""
    return {name: option(fix, name, **given) for name in names}


def of_numbers(
    name: str,
    mask: Any,
    fix: str,
    names: tuple[str, ...],
    expected: Callable[[], Any],
    **beside: Any,
) -> Advice:
    """A mask of numbers, and each argument that the Fix line names in its place."""

    def follow(line: str) -> Any:
        given = [told(line, one, mask=np.asarray(mask), **beside) for one in names]
        return [attend(**beside | arguments) for arguments in given]

    return Advice(
        name,
        "masks",
        sx.ConfigError,
        lambda: attend(mask=mask, **beside),
        fix,
        follow,
        lambda: [expected()] * len(names),
    )


def traced_mask() -> Any:
    return jax.jit(lambda mask: attend(mask=mask))(ONES)


def in_exec(mask: Any, **options: Any) -> Any:
    """Attention of an Exec over 5 positions in a bucket of 8."""
    return runs(lambda x: attend(x, x, x, mask=mask, **options), Q, in_shapes=("b, 5, 4, 8",))


def replaced(  # noqa: PLR0917 - a row of the table
    name: str,
    kind: str,
    wrong: dict[str, Any],
    fix: str,
    right: Callable[[str], dict[str, Any]],
    expected: Callable[[], Any],
) -> Advice:
    """Arguments that are refused, and those that the Fix line tells in their place."""
    return Advice(
        name,
        kind,
        sx.ConfigError,
        lambda: attend(**wrong),
        fix,
        lambda line: attend(**wrong | right(line)),
        expected,
    )


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


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k <= q


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
    of_numbers(
        "1 and 0",
        ONES,
        "mask=mask != 0, for it holds 1 where a query may attend to a key, and 0 elsewhere",
        ("mask",),
        lambda: plain(mask=KEEP),
    ),
    of_numbers(
        "integers", KEEP.astype(int), "mask=mask != 0, for", ("mask",), lambda: plain(mask=KEEP)
    ),
    of_numbers("a list", ONES.tolist(), "mask=mask != 0, for", ("mask",), lambda: plain(mask=KEEP)),
    of_numbers(
        "0 and -inf",
        ADDED,
        "mask=mask == 0, for it holds 0 where a query may attend to a key, and -inf elsewhere; or "
        "bias=mask, which adds it to the scores",
        ("mask", "bias"),
        lambda: plain(mask=KEEP),
    ),
    of_numbers(
        "0 and a large negative",
        LARGE,
        "mask=mask == 0, for it holds 0 where a query may attend to a key, and -1e+09 elsewhere",
        ("mask", "bias"),
        lambda: plain(bias=LARGE),
    ),
    of_numbers(
        "0 and -inf beside a bias",
        ADDED,
        "or bias=bias + mask, which adds it to the scores",
        ("mask", "bias"),
        lambda: plain(bias=BIAS, mask=KEEP),
        bias=BIAS,
    ),
    of_numbers(
        "0 and -inf beside a score modifier",
        ADDED,
        "mask=mask == 0, for it holds 0",
        ("mask",),
        lambda: attend(mask=sx.Causal(), bias=sx.ALiBi.for_heads(4)),
        bias=sx.ALiBi.for_heads(4),
    ),
    of_numbers(
        "other numbers",
        GRADED,
        "bias=mask if it is to be added to the scores: 0 there, -inf elsewhere",
        ("bias",),
        lambda: plain(bias=GRADED),
    ),
    of_numbers(
        "nothing but 0, which may mean either",
        0 * ONES,
        "if it holds 1 where a query may attend to a key, and 0 elsewhere; bias=mask",
        ("bias",),
        plain,
    ),
    Advice(
        "traced",
        "masks",
        sx.ConfigError,
        traced_mask,
        "mask=mask != 0 if it holds 1 where a query may attend to a key, and 0 elsewhere; bias=mask"
        " if it is to be added to the scores: 0 there, -inf elsewhere",
        lambda line: [
            jax.jit(lambda mask: attend(**told(line, "mask", mask=mask)))(ONES),
            jax.jit(lambda mask: attend(**told(line, "bias", mask=mask)))(ADDED),
        ],
        lambda: [plain(mask=KEEP)] * 2,
    ),
    Advice(
        "in an Exec",
        "masks",
        sx.ConfigError,
        lambda: in_exec(ONES),
        "mask=mask != 0, for it holds 1",
        lambda line: in_exec(option(line, "mask", mask=ONES)),
        lambda: plain(mask=KEEP),
    ),
    Advice(
        "joined",
        "masks",
        sx.ConfigError,
        lambda: attend(mask=sx.SlidingWindow(2) & ONES),
        "array != 0, for it holds 1",
        lambda line: attend(mask=sx.SlidingWindow(2) & value(line.split(",")[0], array=ONES)),
        lambda: plain(mask=KEEP & np.triu(KEEP.T | KEEP, -2)),
    ),
    replaced(
        "a bias of booleans",
        "biases",
        {"bias": KEEP},
        "mask=bias, where True says that a query may attend to a key",
        lambda line: {"bias": None, "mask": value(line.split("mask=")[1].split(",")[0], bias=KEEP)},
        lambda: plain(mask=KEEP),
    ),
    replaced(
        "a complex bias",
        "biases",
        {"bias": BIAS * 1j + BIAS},
        "bias=bias.real",
        lambda line: told(line, "bias", bias=BIAS * 1j + BIAS),
        lambda: plain(bias=BIAS),
    ),
    replaced(
        "a mask as bias",
        "biases",
        {"bias": sx.Causal()},
        "mask=bias; or",
        lambda line: {"bias": None} | told(line, "mask", bias=sx.Causal()),
        lambda: plain(is_causal=True),
    ),
    replaced(
        "a score modifier as mask",
        "biases",
        {"mask": sx.ALiBi.for_heads(4)},
        "bias=mask; or",
        lambda line: {"mask": None} | told(line, "bias", mask=sx.ALiBi.for_heads(4)),
        lambda: attend(bias=sx.ALiBi.for_heads(4)),
    ),
    replaced(
        "a list of masks",
        "masks",
        {"mask": [sx.Causal(), sx.SlidingWindow(1)]},
        "mask=functools.reduce(operator.and_, mask), or with operator.or_",
        lambda line: told(line, "mask", mask=[sx.Causal(), sx.SlidingWindow(1)]),
        lambda: attend(mask=sx.Causal() & sx.SlidingWindow(1)),
    ),
    replaced(
        "a function",
        "masks",
        {"mask": causal},
        "mask=sx.MaskFunction(mask); or",
        lambda line: told(line, "mask", mask=causal),
        lambda: plain(is_causal=True),
    ),
    replaced(
        "a name",
        "masks",
        {"mask": "causal"},
        "or a mask such as Causal() & other",
        lambda line: {"mask": value("sx.Causal() & other", other=sx.Full())},
        lambda: plain(is_causal=True),
    ),
    replaced(
        "a mask of examples and keys",
        "masks",
        {"mask": np.arange(10).reshape(2, 5) % 3 > 0},
        "mask=mask[:, None, None, :]; give it 4 axes, [B, N, T, S], each 1 or of full length",
        lambda line: told(line, "mask", mask=np.arange(10).reshape(2, 5) % 3 > 0),
        lambda: plain(mask=(np.arange(10).reshape(2, 1, 1, 5) % 3 > 0)),
    ),
    replaced(
        "a mask of examples, queries and keys",
        "masks",
        {"mask": np.stack([KEEP, KEEP.T])},
        "mask=mask[:, None]; give it 4 axes",
        lambda line: told(line, "mask", mask=np.stack([KEEP, KEEP.T])),
        lambda: plain(mask=np.stack([KEEP, KEEP.T])[:, None]),
    ),
    replaced(
        "the shape of a bias",
        "biases",
        {"bias": np.ones((1, 3, 5, 5), np.float32)},
        "give it 4 axes, [B, N, T, S], each 1 or of full length",
        lambda line: {"bias": np.ones((1, 4, 5, 5), np.float32)},
        lambda: plain(bias=np.ones((1, 4, 5, 5), np.float32)),
    ),
    replaced(
        "lengths",
        "lengths",
        {"key_value_seq_lengths": [2.0, 5.0]},
        "key_value_seq_lengths=jnp.asarray(key_value_seq_lengths, jnp.int32), one length for each",
        lambda line: {
            "key_value_seq_lengths": value(
                line.split("key_value_seq_lengths=")[1].split(", one")[0],
                key_value_seq_lengths=[2.0, 5.0],
            )
        },
        lambda: plain(key_value_seq_lengths=jnp.array([2, 5])),
    ),
    replaced(
        "a window",
        "masks",
        {"local_window_size": "1"},
        "local_window_size=128, or (128, 0)",
        lambda line: told(line, "local_window_size"),
        lambda: plain(local_window_size=128),
    ),
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
        "a text for ids",
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
        lambda: sx.BlockMask.from_mask(sx.Causal(), 5, 5, tile=3),
        "tile=(128, 128), for 128 queries and 128 keys",
        lambda line: {"mask": sx.BlockMask.from_mask(sx.Causal(), 5, 5, tile=option(line, "tile"))},
        {"is_causal": True},
    ),
    made(
        "tiles of another length",
        lambda: attend(mask=sx.BlockMask.from_mask(sx.Causal(), 6, 6)),
        "make the block mask for T=5",
        lambda line: {"mask": sx.BlockMask.from_mask(sx.Causal(), 5, 5)},
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
