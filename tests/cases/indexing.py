"""Reads and writes at computed positions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.cases._case import Case

ROWS = lax.GatherDimensionNumbers((1,), (0,), (0,))
F, I = np.float32, np.int32  # noqa: E741 - one letter per argument keeps a case on a line


def write_part_of_an_axis(x: Any, y: Any) -> Any:
    """Windows that are ragged, and cover their axis but for its ends."""
    return x.at[1:-1].set(y[1:-1]), x.at[1:].add(y[:-1]), x.at[:, 1:].multiply(y[:, :-1])


def read_beyond_the_end(x: Any, i: Any) -> Any:
    """Rows that exist in the bucket only, in each mode."""
    modes = ("clip", "fill")
    return tuple(jnp.take(x, i - 5, axis=0, mode=mode) for mode in modes)


def write_beyond_the_end(x: Any, i: Any, y: Any) -> Any:
    """Rows that exist in the bucket only, dropped or clamped."""
    return x.at[i].set(y[0], mode="drop"), x.at[i].add(y, mode="clip")


def window_of_each_row(x: Any, i: Any) -> Any:
    return jax.vmap(lambda row, start: lax.dynamic_slice(row, (start,), (2,)))(x, i)


def add_to_a_window_of_each_row(x: Any, i: Any, y: Any) -> Any:
    return jax.vmap(lambda row, start, u: lax.dynamic_update_slice(row, u, (start,)))(x, i, y)


CASES = (
    Case(
        "a constant that is set in a loop",
        lambda x: lax.fori_loop(
            0,
            x.shape[0] // 2,
            lambda i, marks: marks.at[2 * i].set(True),
            jnp.zeros(x.shape[0], bool),
        ),
        ("s",),
    ),
    Case("reversed and strided", lambda x: (x[::-1], x[:, ::-2]), ("b, s",)),
    Case("shifted by one", lambda x: x[1:] - x[:-1], ("s, b",), naive="agrees"),
    Case("last element", lambda x: x[-1] + x[..., -1:], ("s, s",)),
    Case("third element", lambda x: x[2], ("s, b",), least={"s": 3}, naive="agrees"),
    Case("ragged indices from the end", lambda x, i: x[i - 9], ("s, 2", "b"), dtypes=(F, I)),
    Case("embedding", lambda x, i: x[i], ("5, 4", "b, s"), dtypes=(F, I), naive="agrees"),
    Case(
        "take_along_axis",
        lambda x, i: jnp.take_along_axis(x, i, 1),
        ("b, s", "b, 3"),
        dtypes=(F, I),
        integers=(-3, 9),
    ),
    Case(
        "one-hot rows",
        lambda x, i: jax.nn.one_hot(i, x.shape[0]) @ x,
        ("s, 2", "b"),
        dtypes=(F, I),
        naive="agrees",
    ),
    Case(
        "indices out of bounds", read_beyond_the_end, ("s, 2", "b"), dtypes=(F, I), integers=(0, 12)
    ),
    Case(
        "start of a slice clamped at the end",
        lambda x, i: lax.dynamic_slice_in_dim(x, i, 2),
        ("s, b", ""),
        dtypes=(F, np.uint8),
        integers=(3, 250),
        least={"s": 2},
    ),
    Case(
        "ragged update at a clamped start",
        lambda x, y, i: lax.dynamic_update_slice(x, y[::2], (i, 0)),
        ("s, b", "s, b", ""),
        dtypes=(F, F, I),
        integers=(2, 9),
    ),
    Case(
        "ragged window of a static axis",
        lambda x, y, i: (
            lax.dynamic_slice_in_dim(x, i, y.shape[0]),
            lax.dynamic_update_slice(x, y, (i, 0)),
        ),
        ("9, b", "s, b", ""),
        dtypes=(F, F, I),
        integers=(2, 9),
    ),
    Case("window of each row", window_of_each_row, ("b, s", "b"), dtypes=(F, I), least={"s": 2}),
    Case(
        "update of a window of each row",
        add_to_a_window_of_each_row,
        ("b, s", "b", "b, 2"),
        dtypes=(F, I, F),
        least={"s": 2},
    ),
    Case(
        "ragged rows added",
        lambda x, i, y: x.at[i].add(y + 1),
        ("5, b", "s", "s, b"),
        dtypes=(F, I, F),
    ),
    Case(
        "indices beyond the end dropped or clamped",
        write_beyond_the_end,
        ("s, 2", "4", "4, 2"),
        dtypes=(F, I, F),
        integers=(3, 9),
    ),
    Case(
        "unsigned numbers and keys out of bounds",
        lambda x, i: (
            x.at[i].get(mode="fill"),
            lax.gather(x, i[:, None], ROWS, (1, 2), mode="fill"),
            jax.random.key_data(
                jax.random.split(jax.random.key(0), x.shape[0]).at[i].get(mode="fill")
            ),
        ),
        ("s, 2", "b"),
        dtypes=(np.uint32, I),
        integers=(0, 12),
    ),
    Case("part of an axis written", write_part_of_an_axis, ("s, b", "s, b"), least={"s": 2}),
    Case("last row written", lambda x: x.at[-1].set(2.0), ("s, b",)),
    Case(
        "least and greatest of rows",
        lambda x, i, y: (x.at[:, i].min(jnp.abs(y[0]) - 9), x.at[:, i].max(9 - jnp.abs(y))),
        ("b, 5", "s", "b, s"),
        dtypes=(F, I, F),
    ),
    Case(
        "searchsorted",
        lambda x, y: (
            jnp.searchsorted(jnp.sort(x), y),
            jnp.searchsorted(jnp.sort(x), y, "right", method="sort"),
        ),
        ("s", "b, t"),
    ),
    Case("interp", lambda x, p, f: jnp.interp(x, jnp.sort(p), f), ("b, t", "s", "s")),
    Case(
        "segment sum",
        lambda x, i: jax.ops.segment_sum(x, i, 4),
        ("s, b", "s"),
        dtypes=(F, I),
        naive="agrees",
    ),
    Case(
        "rows subtracted",
        lambda x, i, y: x.at[i].subtract(y),
        ("5, b", "s", "s, b"),
        dtypes=(F, I, F),
        naive="agrees",
    ),
)
