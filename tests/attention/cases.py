"""Calls of attention, each with what it means as plain arrays: pairs that are allowed, and a bias.

A call's meaning is written here without the library's masks, so that they are checked too.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

import shapeexec as sx

Random = np.random.Generator


@dataclasses.dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        name: What it shows.
        sizes: B, T, S, N, K, H, V.
        dtype: Of query, key and value.
        options: Makes the keyword arguments; a float array under `bias` is differentiated.
        allowed: Makes bool[B or 1, N or 1, T or 1, S or 1] of them; None: all.
        bias: Makes the bias of them; None: the array under `bias`, or none.
        plain: Whether `jax.nn.dot_product_attention` takes the same arguments, and no row is empty.
    """

    name: str
    sizes: tuple[int, int, int, int, int, int, int]
    dtype: str = "float32"
    options: Callable[["Case", Random], dict[str, Any]] = lambda case, random: {}
    allowed: Callable[["Case", Mapping[str, Any]], np.ndarray] | None = None
    bias: Callable[["Case", Mapping[str, Any]], np.ndarray] | None = None
    plain: bool = False

    def arrays(self, random: Random) -> tuple[Any, Any, Any, np.ndarray]:
        """Query, key, value, and a cotangent of the output."""
        b, t, s, n, k, h, v = self.sizes
        shapes = (b, t, n, h), (b, s, k, h), (b, s, k, v), (b, t, n, v)
        q, k, v, d_out = (jnp.asarray(random.normal(size=x), self.dtype) for x in shapes)
        return q, k, v, d_out

    @property
    def queries(self) -> np.ndarray:
        """[T, 1]."""
        return np.arange(self.sizes[1])[:, None]

    @property
    def keys(self) -> np.ndarray:
        """[S]."""
        return np.arange(self.sizes[2])


def always(**options: Any) -> Callable[[Case, Random], dict[str, Any]]:
    return lambda case, random: options


def random_mask(*axes: int, density: float = 0.5) -> Callable[[Case, Random], dict[str, Any]]:
    """A boolean array whose axes are full where `axes` says 0."""

    def options(case: Case, random: Random) -> dict[str, Any]:
        b, t, s, n, *_ = case.sizes
        full = [axis or length for axis, length in zip(axes, (b, n, t, s), strict=True)]
        mask = random.random(full) < density
        if full[2] > 1:
            mask[:, :, 0] = False  # a row with nothing to attend to
        return {"mask": jnp.asarray(mask)}

    return options


def random_bias(*axes: int, dtype: str = "float32") -> Callable[[Case, Random], dict[str, Any]]:
    def options(case: Case, random: Random) -> dict[str, Any]:
        b, t, s, n, *_ = case.sizes
        full = [axis or length for axis, length in zip(axes, (b, n, t, s), strict=True)]
        return {"bias": jnp.asarray(random.normal(size=full), dtype)}

    return options


def extreme_bias(case: Case, random: Random) -> dict[str, Any]:
    _, t, s, *_ = case.sizes
    bias = random.normal(size=(1, 1, t, s)).astype(np.float32)
    bias[..., ::3] = -np.inf
    bias[0, 0, 1] = -np.inf  # nothing to attend to
    bias[0, 0, 2, 1] = 1e30
    bias[0, 0, 3] = -1e30
    return {"bias": jnp.asarray(bias)}


def tiles_apart(case: Case, random: Random) -> dict[str, Any]:
    """Whole tiles of 128 are missing in the middle of rows and of columns, others for each head."""
    _, t, s, n, *_ = case.sizes
    pattern = np.array(
        [
            [[1, 0, 1, 1], [0, 0, 0, 0], [1, 0, 0, 1], [1, 0, 1, 0]],
            [[0, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1], [1, 0, 0, 1]],
        ],
        bool,
    )[np.arange(n) % 2]
    mask = np.kron(pattern, np.ones((128, 128), bool))[None, :, :t, :s]
    return {"mask": jnp.asarray(mask)}


def lengths(case: Case, random: Random) -> dict[str, Any]:
    b, t, s, *_ = case.sizes
    return {
        "query_seq_lengths": jnp.asarray(random.integers(0, t + 1, b), jnp.int32),
        "key_value_seq_lengths": jnp.asarray(random.integers(1, s + 1, b), jnp.int32),
    }


def within_lengths(case: Case, options: Mapping[str, Any]) -> np.ndarray:
    queries = case.queries < np.asarray(options["query_seq_lengths"])[:, None, None, None]
    return queries & (case.keys < np.asarray(options["key_value_seq_lengths"])[:, None, None, None])


def documents(case: Case, random: Random) -> dict[str, Any]:
    b, t, *_ = case.sizes
    ids = np.sort(random.integers(0, 5, (b, t)), axis=1).astype(np.int32)
    return {"mask": sx.Documents(jnp.asarray(ids)) & sx.Causal()}


def same_document(case: Case, options: Mapping[str, Any]) -> np.ndarray:
    ids = np.asarray(options["mask"].masks[0].query_ids)
    same = ids[:, None, :, None] == ids[:, None, None, :]
    return same & (case.keys <= case.queries)


def the_mask(case: Case, options: Mapping[str, Any]) -> np.ndarray:
    return np.asarray(options["mask"])


def causal(case: Case, options: Mapping[str, Any]) -> np.ndarray:
    return (case.keys <= case.queries)[None, None]


def causal_at_the_end(case: Case, options: Mapping[str, Any]) -> np.ndarray:
    _, t, s, *_ = case.sizes
    return (case.keys - s <= case.queries - t)[None, None]


def window(before: int, behind: int) -> Callable[[Case, Mapping[str, Any]], np.ndarray]:
    return lambda case, options: (
        (case.queries <= case.keys + before) & (case.queries >= case.keys - behind)
    )[None, None]


def sink_or_window(case: Case, options: Mapping[str, Any]) -> np.ndarray:
    near = abs(case.keys - case.queries) <= 2
    return (near | (case.keys < 3) | (case.queries < 3))[None, None]


def every_third(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q + k + h + b) % 3 == 0


def where_every_third(case: Case, options: Mapping[str, Any]) -> np.ndarray:
    b, _, _, n, *_ = case.sizes
    example, head = np.arange(b)[:, None, None, None], np.arange(n)[:, None, None]
    return every_third(example, head, case.queries, case.keys)


def alibi(case: Case, options: Mapping[str, Any]) -> np.ndarray:
    slopes = 2.0 ** -np.arange(2, 10, 2)
    return -slopes[:, None, None] * abs(case.keys - case.queries)


def relative(case: Case, random: Random) -> dict[str, Any]:
    table = jnp.asarray(random.normal(size=(case.sizes[3], 7)), jnp.float32)
    return {"bias": sx.RelativeBias(table, left=4)}


def by_distance(case: Case, options: Mapping[str, Any]) -> np.ndarray:
    table = np.asarray(options["bias"].table, np.float64)[0]
    return table[:, np.clip(case.keys - case.queries, -4, 2) + 4][None]


CASES = (
    Case("one query and one key", (2, 1, 1, 2, 2, 40, 40), plain=True),
    Case("full, few key heads", (2, 63, 65, 4, 2, 40, 40), plain=True),
    Case("full, one key head, bf16", (1, 65, 129, 4, 1, 64, 64), "bfloat16", plain=True),
    Case(
        "causal, f16",
        (1, 129, 129, 2, 2, 64, 64),
        "float16",
        always(is_causal=True),
        causal,
        None,
        True,
    ),
    Case(
        "causal, bf16",
        (2, 64, 127, 4, 2, 128, 128),
        "bfloat16",
        always(is_causal=True),
        causal,
        None,
        True,
    ),
    Case(
        "the last query at the last key",
        (1, 3, 129, 2, 1, 256, 256),
        options=always(mask=sx.Causal(align="end")),
        allowed=causal_at_the_end,
    ),
    Case(
        "window, wider keys than values",
        (1, 127, 130, 2, 2, 48, 24),
        options=always(local_window_size=(5, 3)),
        allowed=window(5, 3),
    ),
    Case(
        "window of one number",
        (1, 64, 64, 2, 2, 40, 40),
        options=always(local_window_size=6, scale=0.3),
        allowed=window(6, 6),
        plain=True,
    ),
    Case(
        "a mask of each head",
        (2, 65, 63, 2, 2, 40, 40),
        "float32",
        random_mask(0, 0, 0, 0),
        the_mask,
    ),
    Case("a mask of keys", (3, 5, 130, 2, 1, 40, 40), "float32", random_mask(0, 1, 1, 0), the_mask),
    Case("a mask of all", (2, 7, 9, 2, 1, 40, 40), "bfloat16", random_mask(1, 1, 0, 0), the_mask),
    Case("tiles apart", (1, 400, 400, 4, 2, 40, 40), "float32", tiles_apart, the_mask),
    Case("lengths", (4, 127, 129, 2, 2, 40, 40), "float32", lengths, within_lengths),
    Case("documents", (2, 300, 300, 2, 1, 40, 40), "float32", documents, same_document),
    Case(
        "sink or window",
        (1, 140, 140, 2, 2, 40, 40),
        options=always(mask=sx.SlidingWindow(2, 2) | sx.Global(3)),
        allowed=sink_or_window,
    ),
    Case(
        "a function",
        (2, 20, 30, 4, 2, 40, 40),
        options=always(mask=sx.MaskFunction(every_third)),
        allowed=where_every_third,
    ),
    Case(
        "bias of each head",
        (2, 65, 129, 4, 2, 40, 40),
        "float32",
        random_bias(1, 0, 0, 0),
        plain=True,
    ),
    Case(
        "bias of keys", (2, 9, 130, 4, 2, 40, 40), "bfloat16", random_bias(0, 1, 1, 0), plain=True
    ),
    Case(
        "bias of all, bf16 itself",
        (2, 130, 9, 2, 2, 40, 40),
        "bfloat16",
        random_bias(1, 1, 0, 0, dtype="bfloat16"),
        plain=True,
    ),
    Case(
        "bias of queries", (2, 130, 9, 2, 1, 40, 40), "float32", random_bias(0, 0, 0, 1), plain=True
    ),
    Case("extreme biases", (2, 9, 20, 2, 2, 40, 40), options=extreme_bias),
    Case(
        "ALiBi",
        (1, 131, 131, 4, 2, 40, 40),
        options=always(bias=sx.ALiBi.for_heads(4), is_causal=True),
        allowed=causal,
        bias=alibi,
    ),
    Case("bias by distance", (2, 20, 150, 4, 2, 40, 40), options=relative, bias=by_distance),
    Case(
        "many small examples",
        (40, 3, 5, 4, 2, 40, 40),
        options=always(is_causal=True),
        allowed=causal,
    ),
)
