"""Small functions with the known traps of padding, and their values by NumPy.

A model is a function, its specs, and data of any sizes. It knows nothing of buckets.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx

Array = Any
Sizes = Mapping[str, int]

BATCH, LENGTH = 8, 64
"""The largest sizes of the symbols `b` and `s`."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """A function, and data for it.

    Attributes:
        name: Unique.
        fn: The function, as users write it.
        specs: Its `in_shapes`; None where the shape is fixed.
        make: Makes its NumPy arguments for some sizes; arguments without a spec never change.
        numpy: The same function in NumPy; None: plain `jax.jit` gives the expected results.
        is_example: Whether it takes one example, and so can be mapped.
        donates: The positions of the arguments that a decode loop donates.
    """

    name: str
    fn: Callable[..., Any]
    specs: tuple[str | None, ...]
    make: Callable[[np.random.Generator, Sizes], tuple[Any, ...]]
    numpy: Callable[..., Any] | None = None
    is_example: bool = False
    donates: tuple[int, ...] = ()

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names of its sizes."""
        return tuple(s for s in ("b", "s") if any(s in spec.split(", ") for spec in self._texts))

    @property
    def _texts(self) -> tuple[str, ...]:
        return tuple(spec for spec in self.specs if spec is not None)


def _weights(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32) / 2 for shape in shapes]


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


# A mean of a softmax: two reductions along padding, the first of which is not a sum.

_QUERY, _IN, _OUT, _TOKENS, _KEYS, _VALUES, _EXAMPLE, _TABLE = _weights(
    (4,), (8, 6), (6,), (20, 16), (16, 16), (16, 16), (4,), (20, 5)
)


def _pooled(w: Array, x: Array) -> Array:  # x: f32[b, s, 4]
    return (jax.nn.softmax(x @ w, axis=1)[..., None] * x).mean(axis=1)


def _pooled_numpy(w: Array, x: Array) -> Any:
    logits = x @ w
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return (weights[..., None] * x).mean(axis=1)


# The gradient of a small network: biases are summed over the batch.


def _loss(w: Mapping[str, Array], x: Array) -> Array:  # x: f32[b, s, 8]
    hidden = jnp.tanh(x @ w["in"] + w["bias"])
    return ((hidden @ w["out"] - x[..., 0]) ** 2).mean()


# Results with the ragged axes of the argument.


def _running(x: Array) -> Array:  # x: f32[b, s]
    centred = x - x.mean(axis=1, keepdims=True)
    return jax.lax.cummax(centred, axis=1), jnp.sort(x, axis=1)[:, ::-1], x.min(axis=0)


def _running_numpy(x: Array) -> Any:
    centred = x - x.mean(axis=1, keepdims=True)
    return np.maximum.accumulate(centred, axis=1), np.sort(x, axis=1)[:, ::-1], x.min(axis=0)


# Branches on a size.


def _branching(x: Array) -> Array:  # x: f32[s]
    size = x.shape[0]
    if size % 2:
        return x[::2].prod()
    return x.max() - x.mean() if size > 20 else (x * x).sum()


def _branching_numpy(x: Array) -> Any:
    size = len(x)
    if size % 2:
        return x[::2].prod()
    return x.max() - x.mean() if size > 20 else (x * x).sum()


# Numbers that Python computes from a size.


def _counting(x: Array) -> Array:  # x: f32[s]
    size = x.shape[0]
    return x.sum() / (size * (size + 1) / 2) + 0.9**size, x * jnp.arange(size) / size


def _counting_numpy(x: Array) -> Any:
    size = len(x)
    return x.sum() / (size * (size + 1) / 2) + 0.9**size, x * np.arange(size) / size


# A function of one example, with its gradient by a shared parameter.


def _example(w: Array, x: Array) -> Array:  # x: f32[s, 4]
    return (jax.nn.softmax(x @ w)[:, None] * jnp.tanh(x)).sum(axis=0).var()


# A step of a decode loop: the last row of the cache is written, and all of it is read.


def _decode(w: Mapping[str, Array], cache: Array, token: Array) -> Any:  # noqa: PLR0917 - a model as users write it
    # cache: f32[s, 2, 16]
    x = w["tokens"][token]
    row = jnp.stack([x @ w["keys"], x @ w["values"]])
    cache = jax.lax.dynamic_update_index_in_dim(cache, row, cache.shape[0] - 1, axis=0)
    return cache, jax.nn.softmax(cache[:, 0] @ x) @ cache[:, 1]


def _decode_numpy(w: Mapping[str, Array], cache: Array, token: Array) -> Any:  # noqa: PLR0917 - a model as users write it
    x = w["tokens"][token]
    cache = np.concatenate([cache[:-1], np.stack([x @ w["keys"], x @ w["values"]])[None]])
    logits = cache[:, 0] @ x
    weights = np.exp(logits - logits.max())
    return cache, weights / weights.sum() @ cache[:, 1]


# Attention, whose tiles behind the true length are not visited.


def _attending(x: Array) -> Array:  # x: f32[b, s, 2, 8]
    return sx.dot_product_attention(x, x, x, mask=sx.Causal() & sx.SlidingWindow(7))


def _attending_numpy(x: Array) -> Any:
    logits = np.einsum("bqnd,bknd->bnqk", x, x) / np.sqrt(x.shape[-1])
    apart = np.arange(x.shape[1])[:, None] - np.arange(x.shape[1])
    logits = np.where((apart >= 0) & (apart <= 7), logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.einsum("bnqk,bknd->bqnd", weights / weights.sum(axis=-1, keepdims=True), x)


# Integers, which must be equal to the last bit.


def _integers(table: Array, tokens: Array) -> Any:  # tokens: i32[b, s]
    best = table[tokens].sum(axis=2).argmax(axis=1)
    return best, jnp.cumsum(tokens, axis=1), (tokens % 3 == 0).sum(axis=0), tokens.min(axis=1)


def _integers_numpy(table: Array, tokens: Array) -> Any:
    best = table[tokens].sum(axis=2).argmax(axis=1)
    return best, np.cumsum(tokens, axis=1), (tokens % 3 == 0).sum(axis=0), tokens.min(axis=1)


_NETWORK = {"in": _IN, "bias": np.zeros(6, np.float32), "out": _OUT}
_LANGUAGE = {"tokens": _TOKENS, "keys": _KEYS, "values": _VALUES}

MODELS = (
    Model(
        name="pooled",
        fn=_pooled,
        specs=(None, "b, s, 4"),
        make=lambda rng, at: (_QUERY, _normal(rng, at["b"], at["s"], 4)),
        numpy=_pooled_numpy,
    ),
    Model(
        name="gradient",
        fn=jax.value_and_grad(_loss),
        specs=(None, "b, s, 8"),
        make=lambda rng, at: (_NETWORK, _normal(rng, at["b"], at["s"], 8)),
    ),
    Model(
        name="ragged",
        fn=_running,
        specs=("b, s",),
        make=lambda rng, at: (_normal(rng, at["b"], at["s"]),),
        numpy=_running_numpy,
    ),
    Model(
        name="guards",
        fn=_branching,
        specs=("s",),
        make=lambda rng, at: (_normal(rng, at["s"]),),
        numpy=_branching_numpy,
    ),
    Model(
        name="sizes",
        fn=_counting,
        specs=("s",),
        make=lambda rng, at: (_normal(rng, at["s"]),),
        numpy=_counting_numpy,
    ),
    Model(
        name="examples",
        fn=jax.value_and_grad(_example),
        specs=(None, "s, 4"),
        make=lambda rng, at: (_EXAMPLE, _normal(rng, at["s"], 4)),
        is_example=True,
    ),
    Model(
        name="decode",
        fn=_decode,
        specs=(None, "s, 2, 16", None),
        make=lambda rng, at: (_LANGUAGE, _normal(rng, at["s"], 2, 16), np.int32(rng.integers(20))),
        numpy=_decode_numpy,
        donates=(1,),
    ),
    Model(
        name="attention",
        fn=_attending,
        specs=("b, s, 2, 8",),
        make=lambda rng, at: (_normal(rng, at["b"], at["s"], 2, 8),),
        numpy=_attending_numpy,
    ),
    Model(
        name="integers",
        fn=_integers,
        specs=(None, "b, s"),
        make=lambda rng, at: (_TABLE, rng.integers(20, size=(at["b"], at["s"]), dtype=np.int32)),
        numpy=_integers_numpy,
    ),
)
