# %% [markdown]
# # Serve mixed lengths
#
# A service grades the answers of a chat model with a small transformer, one request at a time.
# Nearly each answer has another length, and `jax.jit` compiles for each length that it meets.
# Here the same requests run in three ways: jitted as they are, padded by hand, and by shapeexec.
#
#     python examples/notebooks/serving.py [--quick] [--plot serving.png]

# %%
import beside
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import shapeexec as sx

# %% [markdown]
# ## The requests
#
# Lengths in tokens of generated answers, drawn from the Azure LLM inference trace 2023,
# conversations (Patel et al., "Splitwise", ISCA 2024, CC-BY 4.0). Those of yesterday tell which
# buckets are good; those of today are served.

# %%
YESTERDAY = """
411 396 107 86 133 104 397 91 121 165 427 131 89 396 189 85 427 560 402 425 92 393 423 375 119 54
109 183 428 498 121 414 86 401 150 18 390 103 406 363 12 127 414 84 93 415 76 160 83 501 401 112
50 93 132 436 56 151 386 149 403 145 483 179 167 112 174 101 162 90 75 75 183 224 121 52 396 416
429 411 423 429 146 101 385 88 402 411 421 169 451 163 113 239 662 429 399 50 183 124 202 411 84
393 58 81 399 94 403 54 66 383 40 162 428 143 375 30 207 180
"""
TODAY = """
112 86 68 140 124 157 396 418 127 92 117 402 416 402 75 992 205 50 391 583 103 375 92 80 388 12
405 140 53 59 217 415 89 535 54 412 102 50 88 113 398 414 63 137 217 96 415 88 18 38 375 154 448
441 427 38 395 384 221 388 426 217 99 144 79 167 14 67 94 398 389 95 191 38 70 554 90 102 150 90
121 84 41 73 138 47 103 94 106 54
"""
history = [int(length) for length in YESTERDAY.split()]
lengths = [int(length) for length in TODAY.split()][: 4 if beside.QUICK else None]
WIDTH, HEADS, LAYERS, LONGEST = (16, 2, 1, 1024) if beside.QUICK else (128, 4, 3, 1024)

rng = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(rng.normal(size=shape) / shape[0] ** 0.5, jnp.float32)


params = {
    "embed": normal(256, WIDTH),
    "places": normal(LONGEST, WIDTH),
    "layers": [
        {
            "qkv": normal(WIDTH, 3 * WIDTH),
            "out": normal(WIDTH, WIDTH),
            "up": normal(WIDTH, 4 * WIDTH),
            "down": normal(4 * WIDTH, WIDTH),
        }
        for _ in range(LAYERS)
    ],
    "grades": normal(WIDTH, 5),
}
requests = [(params, rng.integers(0, 256, n).astype(np.int32)) for n in lengths]
print(f"{len(requests)} requests of {len(set(lengths))} lengths")

# %% [markdown]
# ## The model
#
# It is written for the true length: no mask, no padding.


# %%
def norm(x):
    x = x - x.mean(axis=-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)


def attend(layer, x):
    q, k, v = jnp.split((x @ layer["qkv"]).reshape(x.shape[0], HEADS, -1), 3, axis=-1)
    scores = jnp.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    read = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), v)
    return read.reshape(x.shape) @ layer["out"]


def grade(params, tokens):  # i32[s] -> f32[5]
    x = params["embed"][tokens] + params["places"][: tokens.shape[0]]
    for layer in params["layers"]:
        x = x + attend(layer, norm(x))
        x = x + jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]
    return jax.nn.softmax(norm(x).mean(axis=0) @ params["grades"])


# %% [markdown]
# ## Without the library
#
# The first way is `jax.jit(grade)`. The second pads to powers of two. It needs the length as an
# argument, a mask in the softmax, and another in the mean.


# %%
def attend_by_hand(layer, x, valid):
    q, k, v = jnp.split((x @ layer["qkv"]).reshape(x.shape[0], HEADS, -1), 3, axis=-1)
    scores = jnp.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    scores = jnp.where(valid, scores, -jnp.inf)
    read = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), v)
    return read.reshape(x.shape) @ layer["out"]


@jax.jit
def grade_by_hand(params, tokens, length):
    valid = jnp.arange(tokens.shape[0]) < length
    x = params["embed"][tokens] + params["places"][: tokens.shape[0]]
    for layer in params["layers"]:
        x = x + attend_by_hand(layer, norm(x), valid)
        x = x + jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]
    mean = jnp.where(valid[:, None], norm(x), 0).sum(axis=0) / length
    return jax.nn.softmax(mean @ params["grades"])


def serve_by_hand(params, tokens):
    bucket = 1 << (len(tokens) - 1).bit_length()
    padded = np.pad(tokens, (0, bucket - len(tokens)))
    return grade_by_hand(params, padded, len(tokens))


# %% [markdown]
# ## With it
#
# One line around the model as it is. Buckets that are fitted to the lengths of yesterday, and to
# the longest that is allowed, are another.


# %%
def served():
    return sx.Exec(grade, (None, "s"), buckets=sx.Pow2())


def served_fitted():
    ladder = sx.Ladder.fit([*history, LONGEST], graphs=8)
    return sx.Exec(grade, (None, "s"), buckets=ladder)


# %% [markdown]
# ## Beside each other
#
# Cold is the first round of all requests, with the compilations; warm is the second. The
# difference is to the unpadded function.

# %%
exact, pow2, fitted = jax.jit(grade), served(), served_fitted()
plain, masked = [norm, attend, grade], [norm, attend_by_hand, grade_by_hand, serve_by_hand]
ways = [
    beside.measured(name, fn, requests, code=code, compiled=compiled)
    for name, fn, code, compiled in [
        ("jax.jit at each length", exact, plain, exact),
        ("padded by hand, Pow2", serve_by_hand, masked, grade_by_hand),
        ("sx.Exec, Pow2", pow2, [*plain, served], pow2),
        ("sx.Exec, 8 fitted buckets", fitted, [*plain, served_fitted], fitted),
    ]
]
beside.table(ways, truth=ways[0].results)
print(f"padding: Pow2 {pow2.stats.waste['s']:.0%}, fitted {fitted.stats.waste['s']:.0%}")

# %% [markdown]
# Once all is compiled, powers of two are slower than exact shapes: padding is work, and fitted
# buckets leave less of it. Padded by hand is as fast as `sx.Exec` with the same buckets; what the
# library spares is the second model with masks, which must stay equal to the first.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for way in ways:
    left.plot(np.arange(1, len(way.cold) + 1), np.cumsum(way.cold), label=way.name)
left.set(title="From a cold start", xlabel="requests served", ylabel="seconds", yscale="log")
left.legend(fontsize="small")
right.hist(lengths, bins=40, color="lightgrey")
for graph in fitted.graphs:
    right.axvline(graph.buckets["s"], color="C3", linewidth=1)
right.set(
    title="Lengths, and the fitted buckets that were used", xlabel="tokens", ylabel="requests"
)
beside.show(figure)
