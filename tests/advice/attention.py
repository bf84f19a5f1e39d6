"""Advice on masks and biases of attention: arrays, their shapes and dtypes, and their numbers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from tests.advice.attention_rows import KEEP, Q, attend, plain, replaced, told
from tests.advice.row import Advice, option, runs, somewhat, value

ONES = KEEP.astype(np.float32)
ADDED = np.where(KEEP, 0, -np.inf).astype(np.float32)
LARGE = np.where(KEEP, 0, -1e9).astype(np.float32)
GRADED = np.where(KEEP, 0.5, -2).astype(np.float32)
BIAS = somewhat(5, 5)


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


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k <= q


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
]
