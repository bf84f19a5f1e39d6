"""FlashAttention 3: its CUDA kernels as calls of XLA, from the package dew-flash-attn-cu13.

`_run` times it.
"""

# The rivals are not installed here, so their types are unknown.
# pyright: reportUnknownMemberType=false

import functools
import importlib
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec.tools.benchmark.attention._contestant import JaxContestant, RefusalError
from shapeexec.tools.benchmark.attention._problems import Problem

Array = Any

MODULE = "dew_flash_attn"
"""The import name of the package; its version 0.3.6 has neither split keys nor paged caches."""


def _absence() -> str | None:
    if importlib.util.find_spec(MODULE) is None:
        return "not installed (dew-flash-attn-cu13)"
    if jax.default_backend() != "gpu":
        return "it needs an NVIDIA Hopper GPU"
    return None


def _attention(problem: Problem) -> tuple[Any, tuple[Any, ...]]:
    pattern, shape = problem.pattern, problem.shape
    is_array = pattern.density is not None or pattern.pair_share is not None
    if is_array or pattern.has_alibi:
        raise RefusalError("it has neither masks by tile, nor by pair, nor biases")
    module = importlib.import_module(MODULE)
    window = (-1, -1) if pattern.window is None else (pattern.window - 1, 0)
    options = {"is_causal": pattern.is_causal, "window_size": window}
    if not pattern.documents:
        return functools.partial(module.flash_mha, **options), ()
    lengths = np.tile(pattern.document_lengths(shape.length), shape.batch)
    starts = np.append(0, np.cumsum(lengths)).astype(np.int32)

    def attend(q: Array, k: Array, v: Array, starts: Array) -> Array:  # noqa: PLR0917 - the operands of attention
        flat = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
        out = module.flash_mha_varlen(*flat, starts, int(lengths.max()), **options)
        return out.reshape(q.shape)

    return attend, (jnp.asarray(starts),)


rival = JaxContestant("flash_attention_3", _attention, absence=_absence)
