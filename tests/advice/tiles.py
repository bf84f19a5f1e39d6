"""Advice on tiles of block masks, and on the kernels of a TPU, which are lowered without one."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from shapeexec.attention.backends.mosaic_tpu import _MosaicTpu, _steps
from tests.advice.row import Advice, exact_ways, option, quoted, somewhat, value
from tests.attention.kernels import Case, signature_of, work_of
from tests.attention.lowering import Bucketed, lowered

Q = somewhat(2, 40, 2, 8)
SCORES = somewhat(3, 3, seed=1)
WINDOW = sx.SlidingWindow(0, 1)


def attend(x: Any = Q, **options: Any) -> Any:
    return sx.dot_product_attention(x, x, x, **options)


def best(scores: Any = SCORES, k: int = 3, **options: Any) -> sx.BlockMask:
    """The best tiles of 16 for 40 positions, all of them by default."""
    return sx.BlockMask.from_topk(scores, k, tile=(16, 16), length=(40, 40), **options)


def tiled(
    name: str,
    broken: Callable[[], Any],
    fix: str,
    follow: Callable[[str], Any],
    expected: Callable[[], Any] = attend,
) -> Advice:
    """A block mask that cannot be made, and attention by the one that is told."""
    return Advice(
        name,
        "masks",
        sx.ConfigError,
        broken,
        fix,
        lambda told: attend(mask=follow(told)),
        expected,
    )


def mapped(x: Any) -> Any:
    """Causal attention by a mask function, for each of the first axis."""
    return jax.vmap(lambda x: attend(x, mask=sx.MaskFunction(lambda b, h, q, k: k <= q)))(x)


def by_table(platform: str, **options: Any) -> Any:
    """Attention by a score modifier of a user's that looks up a table, on a TPU or on the CPU."""

    def fn(x: Any) -> Any:
        return attend(x, bias=Bucketed(jnp.ones((1, 2, 4))), **options)

    return jax.jit(fn)(Q) if platform == "cpu" else lowered(fn, jnp.asarray(Q), platform=platform)


def listed(tile: tuple[int, int], heads: int) -> Any:
    """Attention by the TPU's kernel in the interpreter, with room for 100 bytes of scalars."""
    kinds = np.full((1, heads, 32 // tile[0], 32 // tile[1]), 2, np.uint8)
    mask = sx.BlockMask(kinds, tile, (32, 32))
    case = Case("listed", (1, 32, 32, 2, 2, 8, 8), tile=tile)
    work = work_of(case, mask, (np.full(1, 32, np.int32),) * 2)
    x = Q[:1, :32]
    with mock.patch.object(_steps, "SCALAR_BYTES", 100):
        backend = _MosaicTpu(interpret=True)
        return jax.jit(
            lambda x: backend.forward(signature_of(case, None), work, q=x, k=x, v=x, bias=None)[0]
        )(x)


def exported(size: Any) -> Any:
    """Attention as a program for one size, or for each."""
    struct = jax.ShapeDtypeStruct((2, size, 2, 8), np.float32)
    return jax.export.export(jax.jit(attend))(struct)


ROWS = [
    tiled(
        "scores of other tiles",
        lambda: best(SCORES[:2]),
        "pass scores as [B, N, 3, 3]: one for each pair of tiles",
        lambda told: best(SCORES[None, None]),
    ),
    tiled("no tile", lambda: best(k=0), "k=1 or more", lambda told: best(k=3)),
    tiled(
        "more tiles than k",
        lambda: best(k=1, always=WINDOW),
        "k=2 or more",
        lambda told: best(k=option(told, "k"), always=WINDOW, within=WINDOW),
        lambda: attend(mask=WINDOW),
    ),
    tiled(
        "kinds that there are not",
        lambda: sx.BlockMask(np.full((3, 3), 3), (16, 16), (40, 40)),
        "0 for an empty, 1 for a partial, 2 for a full tile",
        lambda told: sx.BlockMask(np.full((3, 3), 2), (16, 16), (40, 40)),
    ),
    Advice(
        "positions past all numbers",
        "masks",
        sx.ConfigError,
        lambda: sx.BlockMask.from_mask(sx.Full(), query_size=2**31, key_size=40),
        "cut the sequences into parts",
        lambda told: np.concatenate(
            [sx.dot_product_attention(part, Q, Q) for part in (Q[:, :16], Q[:, 16:])], axis=1
        ),
        attend,
    ),
    Advice(
        "a mask function under vmap",
        "masks",
        sx.InconclusiveShapeError,
        lambda: sx.Exec(mapped, ("n, b, s, _, _",))(Q[None]),
        "map over single examples, [T, N, H], or give the batch one size; or make `b` exact",
        lambda told: [
            sx.Exec(mapped, ("b, s, _, _",))(Q)[None],
            sx.Exec(mapped, ("n, 2, s, _, _",))(Q[None]),
            *(sx.Exec(mapped, ("n, b, s, _, _",), **ways)(Q[None]) for ways in exact_ways(told)),
        ],
        lambda: [attend(Q, is_causal=True)[None]] * 4,
    ),
    Advice(
        "a table on a TPU",
        "back ends",
        sx.BackendError,
        lambda: by_table("tpu", implementation="mosaic_tpu"),
        'name implementation="xla"',
        lambda told: [
            "tpu_custom_call" in by_table("tpu", implementation=option(told, "implementation")),
            by_table("cpu", implementation=option(told, "implementation")),
        ],
        lambda: [False, attend()],
    ),
    Advice(
        "more lists than a TPU's scalar memory holds",
        "back ends",
        sx.BackendError,
        lambda: listed((8, 32), heads=2),
        "share the mask between heads or examples, or pass a larger tile to BlockMask",
        lambda told: [listed((8, 32), heads=1), listed((32, 32), heads=2)],
        lambda: [attend(Q[:1, :32])] * 2,
    ),
    Advice(
        "symbolic sizes",
        "back ends",
        sx.BackendError,
        lambda: exported(*jax.export.symbolic_shape("s")),
        "export it at each size, or run it by `Exec`, one graph for each bucket",
        lambda told: [
            exported(40).call(Q),
            value(f"sx.{quoted(told)[0]}")(attend, ("_, s, _, _",))(Q),
        ],
        lambda: [attend()] * 2,
    ),
]
