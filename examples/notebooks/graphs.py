# %% [markdown]
# # A graph network
#
# A graph network learns the largest eigenvalue of a graph's adjacency matrix from its degrees and
# edges. Graphs have any number of nodes and of edges; a batch of them is one graph of many parts,
# with `n` nodes and `e` edges. Hardly two batches have the same n and e, and `jax.jit` compiles
# for each pair.
#
#     python examples/notebooks/graphs.py [--quick] [--plot graphs.png]

# %%
import beside
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jax.ops import segment_max, segment_sum

import shapeexec as sx

# %% [markdown]
# ## The graphs
#
# Random ones, with 5 to 40 nodes and a random share of all edges. A node knows its degree and
# nothing else. `joined` makes one graph of a batch: `of` says to which graph a node belongs.

# %%
BATCH, COMPARED, STEPS = (3, 2, 3) if beside.QUICK else (16, 20, 200)
WIDTH, LAYERS = (8, 1) if beside.QUICK else (32, 3)

rng = np.random.default_rng(0)


def drawn():
    n = rng.integers(5, 41)
    upper = np.triu(rng.random((n, n)) < rng.uniform(0.05, 0.6), 1)
    adjacency = upper | upper.T
    senders, receivers = np.nonzero(adjacency)
    return {
        "x": np.log1p(adjacency.sum(axis=1, keepdims=True)).astype(np.float32),
        "senders": senders.astype(np.int32),
        "receivers": receivers.astype(np.int32),
        "y": np.float32(np.linalg.eigvalsh(adjacency).max() / 10),
    }


def joined(graphs):
    sizes = [len(graph["x"]) for graph in graphs]
    starts = np.cumsum([0, *sizes[:-1]], dtype=np.int32)
    ends = {
        name: np.concatenate([g[name] + s for g, s in zip(graphs, starts, strict=True)])
        for name in ("senders", "receivers")
    }
    return {
        "x": np.concatenate([graph["x"] for graph in graphs]),
        **ends,
        "of": np.repeat(np.arange(len(graphs), dtype=np.int32), sizes),
        "y": np.array([graph["y"] for graph in graphs]),
    }


batches = [joined([drawn() for _ in range(BATCH)]) for _ in range(STEPS)]
shapes = {(len(batch["x"]), len(batch["senders"])) for batch in batches}
print(f"{len(shapes)} pairs of n and e in {len(batches)} batches")


def normal(*shape):
    return jnp.asarray(rng.normal(size=shape) / shape[0] ** 0.5, jnp.float32)


start = {
    "enter": normal(1, WIDTH),
    "layers": [
        {"message": normal(WIDTH, WIDTH), "shift": jnp.zeros(WIDTH), "update": normal(WIDTH, WIDTH)}
        for _ in range(LAYERS)
    ],
    "leave": normal(2 * WIDTH, 1),
}

# %% [markdown]
# ## The model
#
# Messages along edges, weighted by a softmax over the edges that enter a node; a norm over all
# nodes of the batch; a mean and a maximum over the nodes of each graph.


# %%
def exchange(layer, x, senders, receivers):
    n = x.shape[0]
    scores = (x[senders] * x[receivers]).mean(axis=1)
    scores = jnp.exp(scores - segment_max(scores, receivers, n)[receivers])
    weights = scores / segment_sum(scores, receivers, n)[receivers]
    messages = jax.nn.relu(x[senders] @ layer["message"] + layer["shift"])
    return segment_sum(weights[:, None] * messages, receivers, n) @ layer["update"]


def norm(x):
    x = x - x.mean(axis=0)
    return x * jax.lax.rsqrt((x * x).mean(axis=0) + 1e-3)


def predict(params, graph):
    x = graph["x"] @ params["enter"]
    for layer in params["layers"]:
        x = x + norm(exchange(layer, x, graph["senders"], graph["receivers"]))
    of = graph["of"]
    mean = segment_sum(x, of, BATCH) / segment_sum(jnp.ones(x.shape[0]), of, BATCH)[:, None]
    return (jnp.concatenate([mean, segment_max(x, of, BATCH)], axis=1) @ params["leave"])[:, 0]


def loss(params, graph):
    return ((predict(params, graph) - graph["y"]) ** 2).mean()


# %% [markdown]
# ## Without the library
#
# Jit at each pair of sizes, or pad as graph libraries do: nodes behind the last belong to a graph
# too many, which is cut off, and edges behind the last lead from such a node to itself. That keeps
# messages and the readout clean with one line in the model. The norm over all nodes is not clean:
# it needs a mask, and nothing says so when one forgets it.


# %%
def norm_by_hand(x, valid):
    x = x - jnp.where(valid, x, 0).sum(axis=0) / valid.sum()
    return x * jax.lax.rsqrt(jnp.where(valid, x * x, 0).sum(axis=0) / valid.sum() + 1e-3)


def predict_by_hand(params, graph):
    of = graph["of"]
    x = graph["x"] @ params["enter"]
    for layer in params["layers"]:
        new = exchange(layer, x, graph["senders"], graph["receivers"])
        x = x + norm_by_hand(new, (of < BATCH)[:, None])
    counts = segment_sum(jnp.ones(x.shape[0]), of, BATCH + 1)[:BATCH]
    mean = segment_sum(x, of, BATCH + 1)[:BATCH] / counts[:, None]
    most = segment_max(x, of, BATCH + 1)[:BATCH]
    return (jnp.concatenate([mean, most], axis=1) @ params["leave"])[:, 0]


def loss_by_hand(params, graph):
    return ((predict_by_hand(params, graph) - graph["y"]) ** 2).mean()


jitted_by_hand = jax.jit(jax.value_and_grad(loss_by_hand))


def gradient_by_hand(params, graph):
    n, e = len(graph["x"]), len(graph["senders"])
    nodes = 1 << n.bit_length()  # at least one more than there are
    edges = 1 << (e - 1).bit_length()
    padded = {
        "x": np.pad(graph["x"], ((0, nodes - n), (0, 0))),
        "senders": np.pad(graph["senders"], (0, edges - e), constant_values=n),
        "receivers": np.pad(graph["receivers"], (0, edges - e), constant_values=n),
        "of": np.pad(graph["of"], (0, nodes - n), constant_values=BATCH),
        "y": graph["y"],
    }
    return jitted_by_hand(params, padded)


# %% [markdown]
# ## With it


# %%
def padded():
    spec = {"x": "n, 1", "senders": "e", "receivers": "e", "of": "n", "y": None}
    return sx.Exec(jax.value_and_grad(loss), (None, spec), buckets=sx.Pow2())


# %% [markdown]
# ## Beside each other
#
# Loss and gradient of the first batches. Cold is the first round, with the compilations; warm is
# the second. The difference is the largest of all losses and gradients to those of the unpadded
# function.

# %%
calls = [(start, batch) for batch in batches[:COMPARED]]
exact, ex = jax.jit(jax.value_and_grad(loss)), padded()
plain = [exchange, norm, predict, loss]
masked = [exchange, norm_by_hand, predict_by_hand, loss_by_hand, gradient_by_hand]
ways = [
    beside.measured(name, fn, calls, code=code, compiled=compiled)
    for name, fn, code, compiled in [
        ("jax.jit at each n and e", exact, plain, exact),
        ("padded by hand, Pow2", gradient_by_hand, masked, jitted_by_hand),
        ("sx.Exec, Pow2", ex, [*plain, padded], ex),
    ]
]
beside.table(ways, truth=ways[0].results)

# %% [markdown]
# ## Train on
#
# The graphs are warm; a new pair of sizes compiles only where it opens a new bucket.

# %%
optimizer = optax.adam(3e-3)


@jax.jit
def update(params, state, gradient):
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(params, updates), state


params, state, losses = start, optimizer.init(start), []
for batch in batches:
    value, slope = ex(params, batch)
    params, state = update(params, state, slope)
    losses.append(float(value))
print(
    f"mean squared error: {losses[0]:.2f}, then {np.mean(losses[-10:]):.4f}; {ex.cache_size} graphs"
)

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for way in ways:
    left.plot(np.arange(1, COMPARED + 1), np.cumsum(way.cold), label=way.name)
left.set(title="From a cold start", xlabel="batches", ylabel="seconds")
left.legend(fontsize="small")
right.plot(losses, color="C2")
right.set(title="Training with sx.Exec", xlabel="steps", ylabel="squared error", yscale="log")
beside.show(figure)
