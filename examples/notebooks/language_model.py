# %% [markdown]
# # Train a small language model on ragged batches
#
# A causal transformer learns to write the docstrings of Python's standard library, byte by byte.
# Each batch holds 8 of them, and each of these has its own length, so no two batches have the
# same shape. The loss of a docstring is the mean over its own bytes; that of a batch is the mean
# over its docstrings.
#
#     python examples/notebooks/language_model.py [--quick] [--plot language_model.png]

# %%
import argparse
import collections
import decimal
import functools
import inspect
import logging
import pathlib
import string
import subprocess

import beside
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import shapeexec as sx

# %% [markdown]
# ## The text

# %%
LONGEST = 32 if beside.QUICK else 192
BATCH, COMPARED, STEPS = (4, 2, 3) if beside.QUICK else (8, 12, 120)
WIDTH, HEADS, LAYERS = (8, 2, 1) if beside.QUICK else (64, 4, 2)


def docstrings(module):
    places = [module, *(value for _, value in inspect.getmembers(module, inspect.isclass))]
    values = [value for place in places for value in vars(place).values()]
    found = {inspect.getdoc(value) for value in values if callable(value)} - {None}
    return [text.encode() for text in sorted(map(str, found)) if 8 < len(text) <= LONGEST]


modules = [argparse, collections, decimal, inspect, logging, pathlib, string, subprocess]
texts = [np.frombuffer(t, np.uint8).astype(np.int32) for m in modules for t in docstrings(m)]
rng = np.random.default_rng(0)
batches = [[texts[i] for i in rng.choice(len(texts), BATCH, replace=False)] for _ in range(STEPS)]
print(f"{len(texts)} docstrings of {len({len(text) for text in texts})} lengths")


def normal(*shape):
    return jnp.asarray(rng.normal(size=shape) / shape[0] ** 0.5, jnp.float32)


start = {
    "bytes": normal(256, WIDTH),
    "places": normal(256, WIDTH),
    "layers": [
        {
            "qkv": normal(WIDTH, 3 * WIDTH),
            "out": normal(WIDTH, WIDTH),
            "up": normal(WIDTH, 4 * WIDTH),
            "down": normal(4 * WIDTH, WIDTH),
        }
        for _ in range(LAYERS)
    ],
    "logits": normal(WIDTH, 256),
}
optimizer = optax.adam(3e-3)


# %% [markdown]
# ## The model
#
# Written for one docstring, which has no batch axis, no mask and no padding.


# %%
def norm(x):
    x = x - x.mean(axis=-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)


def attend(layer, x):
    q, k, v = jnp.split((x @ layer["qkv"]).reshape(x.shape[0], HEADS, -1), 3, axis=-1)
    scores = jnp.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    causal = jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))
    return jnp.einsum("hqk,khd->qhd", weights, v).reshape(x.shape) @ layer["out"]


def surprises(params, text):  # i32[s] -> f32[s - 1], of each byte after the first
    x = params["bytes"][text[:-1]] + params["places"][: text.shape[0] - 1]
    for layer in params["layers"]:
        x = x + attend(layer, norm(x))
        x = x + jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]
    logits = norm(x) @ params["logits"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, text[1:])


def loss(params, text):
    return surprises(params, text).mean()


# %% [markdown]
# ## Without the library
#
# Pad to the longest of the batch, or to a power of two; `vmap`, and a mask at the mean. Attention
# is causal, so nothing before the padding reads it, and one mask is enough. (With attention in both
# directions, or with a norm over positions, it would not be.)


# %%
def loss_by_hand(params, text, length):
    valid = jnp.arange(text.shape[0] - 1) < length - 1
    return jnp.where(valid, surprises(params, text), 0).sum() / (length - 1)


def batch_loss_by_hand(params, padded, lengths):
    return jax.vmap(loss_by_hand, (None, 0, 0))(params, padded, lengths).mean()


def pad(batch, size):
    padded = np.stack([np.pad(text, (0, size - len(text))) for text in batch])
    return padded, np.array([len(text) for text in batch], np.int32)


jit_longest = jax.jit(jax.value_and_grad(batch_loss_by_hand))
jit_pow2 = jax.jit(jax.value_and_grad(functools.partial(batch_loss_by_hand)))  # graphs of its own


def gradient_longest(params, batch):
    return jit_longest(params, *pad(batch, max(map(len, batch))))


def gradient_pow2(params, batch):
    longest = max(map(len, batch))
    return jit_pow2(params, *pad(batch, 1 << (longest - 1).bit_length()))


# %% [markdown]
# ## With it
#
# `map` runs the gradient of one docstring over a list of them, in one graph, and adds up.

# %%
ex = sx.Exec(jax.value_and_grad(loss), (None, "s"), buckets=sx.Pow2())


def gradient_mapped(params, batch):
    summed = ex.map(params, batch, reduce="sum")
    return jax.tree.map(lambda x: x / len(batch), summed)


# %% [markdown]
# ## Beside each other
#
# Loss and gradient of the first batches. Cold is the first round, with the compilations; warm is
# the second. The truth is computed for one batch, one docstring after the other at its true length;
# the difference is the largest of all losses and gradients to those of the first way.

# %%
plain, masked = [norm, attend, surprises], [loss_by_hand, batch_loss_by_hand, pad]
calls = [(start, batch) for batch in batches[:COMPARED]]
ways = [
    beside.measured(name, gradient, calls, code=[*plain, *code, gradient], compiled=compiled)
    for name, gradient, code, compiled in [
        ("jax.jit at each longest", gradient_longest, masked, jit_longest),
        ("padded by hand, Pow2", gradient_pow2, masked, jit_pow2),
        ("sx.Exec.map, Pow2", gradient_mapped, [loss], ex),
    ]
]
each = [jax.jit(jax.value_and_grad(loss))(start, text) for text in batches[0]]
truth = jax.tree.map(lambda *leaves: sum(leaves) / BATCH, *each)
assert beside.difference(ways[0].results[0], truth) < 1e-4
beside.table(ways, truth=ways[0].results)

# %% [markdown]
# The function by hand is as short here, for one mask suffices, and it is one that people know.
# It was faster, too, when docs/examples.md was made: cold, and warm.
# What `map` spares is the batch axis and the padding; where the loss reads across positions in
# another way (a mean, a norm, attention in both directions), it spares each further mask.
#
# The graphs are warm, so training goes on with `map`.


# %%
@jax.jit
def update(params, state, gradient):
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(params, updates), state


params, state, losses = start, optimizer.init(start), []
for batch in batches:
    value, slope = gradient_mapped(params, batch)
    params, state = update(params, state, slope)
    losses.append(float(value))
print(f"bits per byte: {losses[0] / np.log(2):.2f}, then {np.mean(losses[-5:]) / np.log(2):.2f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for way in ways:
    left.plot(np.arange(1, COMPARED + 1), np.cumsum(way.cold), label=way.name)
left.set(title="From a cold start", xlabel="batches", ylabel="seconds")
left.legend(fontsize="small")
right.plot(np.array(losses) / np.log(2), color="C2")
right.set(title="Training with sx.Exec.map", xlabel="steps", ylabel="bits per byte")
beside.show(figure)
