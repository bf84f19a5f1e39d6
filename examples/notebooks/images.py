# %% [markdown]
# # An image model at every resolution
#
# A small convolutional network tells whether a picture is sharp, soft or blurred. Pictures come in
# every resolution, and resizing them to one would change the very thing that is asked. So each
# batch runs at its own height and width, which for `jax.jit` is a compilation for each.
#
#     python examples/notebooks/images.py [--quick] [--plot images.png]

# %%
import itertools

import beside
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from matplotlib import cbook
from scipy import ndimage

import shapeexec as sx

# %% [markdown]
# ## The pictures
#
# Crops of the photograph that comes with matplotlib, in grey, blurred by a Gaussian of no, half or
# one and a half pixels, each batch of another height and width.

# %%
BATCH, COMPARED, STEPS = (3, 2, 4) if beside.QUICK else (12, 10, 100)
CHANNELS = (1, 4, 4) if beside.QUICK else (1, 8, 16, 32)
BLURS = (0.0, 0.6, 1.5)

rng = np.random.default_rng(0)
photograph = plt.imread(str(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)))
photograph = photograph.mean(axis=2) / 255
blurred = [ndimage.gaussian_filter(photograph, blur) for blur in BLURS]


def crops(height, width):
    labels = rng.integers(0, len(BLURS), BATCH)
    images = np.empty((BATCH, height, width, 1), np.float32)
    for image, label in zip(images, labels, strict=True):
        top = rng.integers(photograph.shape[0] - height)
        left = rng.integers(photograph.shape[1] - width)
        image[..., 0] = blurred[label][top : top + height, left : left + width]
    return images, labels


batches = [crops(*rng.integers(33, 97, 2)) for _ in range(STEPS)]
print(f"{len({images.shape for images, _ in batches})} resolutions in {len(batches)} batches")


def normal(*shape):
    scale = np.prod(shape[:-1]) ** 0.5
    return jnp.asarray(rng.normal(size=shape) / scale, jnp.float32)


layers = [
    {"kernel": normal(3, 3, i, o), "scale": jnp.ones(o), "shift": jnp.zeros(o)}
    for i, o in itertools.pairwise(CHANNELS)
]
start = {"layers": layers, "logits": normal(CHANNELS[-1], len(BLURS))}
optimizer = optax.adam(1e-2)

# %% [markdown]
# ## The model
#
# Convolutions of stride 1, 2 and 2, each with a norm over the positions of its picture; a maximum
# over 2 x 2; the mean over all positions.


# %%
def convolve(x, kernel, stride):
    dims = ("NHWC", "HWIO", "NHWC")
    edges = ((1, 1), (1, 1))
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), edges, dimension_numbers=dims)


def norm(x):
    x = x - x.mean(axis=(1, 2), keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(axis=(1, 2), keepdims=True) + 1e-5)


def pool(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def logits(params, images):
    x = images
    for i, layer in enumerate(params["layers"]):
        x = norm(convolve(x, layer["kernel"], stride=2 if i else 1))
        x = jax.nn.relu(x * layer["scale"] + layer["shift"])
    return pool(x).mean(axis=(1, 2)) @ params["logits"]


def loss(params, images, labels):
    losses = optax.softmax_cross_entropy_with_integer_labels(logits(params, images), labels)
    return losses.mean()


# %% [markdown]
# ## Without the library
#
# Jit at each resolution, or pad with zeros and carry a mask down through the strides: what a
# convolution reads behind the edge has to be zero again after each layer, the norms and the mean
# count valid positions alone, and a stride and a window each have their own formula for the size
# that is left.


# %%
def mask_of(x, height, width):
    rows = jnp.arange(x.shape[1]) < height
    columns = jnp.arange(x.shape[2]) < width
    return (rows[:, None] & columns)[:, :, None]


def mean_by_hand(x, height, width):
    x = jnp.where(mask_of(x, height, width), x, 0)
    return x.sum(axis=(1, 2), keepdims=True) / (height * width)


def norm_by_hand(x, height, width):
    x = x - mean_by_hand(x, height, width)
    return x * jax.lax.rsqrt(mean_by_hand(x * x, height, width) + 1e-5)


def logits_by_hand(params, images, height, width):
    x = images
    for i, layer in enumerate(params["layers"]):
        x = convolve(x, layer["kernel"], stride=2 if i else 1)
        if i:
            height, width = (height + 1) // 2, (width + 1) // 2
        x = norm_by_hand(x, height, width)
        x = jax.nn.relu(x * layer["scale"] + layer["shift"])
        x = jnp.where(mask_of(x, height, width), x, 0)
    x = mean_by_hand(pool(x), height // 2, width // 2)
    return x[:, 0, 0] @ params["logits"]


def loss_by_hand(params, images, labels, *, size):
    scores = logits_by_hand(params, images, *size)
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


jitted_by_hand = jax.jit(jax.value_and_grad(loss_by_hand))


def gradient_by_hand(params, images, labels):
    size = images.shape[1:3]
    pads = [(0, 0), *((0, -n % 32) for n in size), (0, 0)]
    return jitted_by_hand(params, np.pad(images, pads), labels, size=np.array(size))


# %% [markdown]
# ## With it


# %%
def padded():
    return sx.Exec(jax.value_and_grad(loss), (None, f"{BATCH}, h, w, 1", None), buckets=32)


# %% [markdown]
# ## Beside each other
#
# The loss and the gradient of the first batches. Cold is the first round, with the compilations;
# warm is the second. The difference is the largest of all losses and gradients to those of the
# unpadded function.

# %%
calls = [(start, *batch) for batch in batches[:COMPARED]]
exact, ex = jax.jit(jax.value_and_grad(loss)), padded()
plain = [convolve, norm, pool, logits, loss]
masked = [convolve, mask_of, mean_by_hand, norm_by_hand, pool, logits_by_hand, loss_by_hand]
ways = [
    beside.measured(name, fn, calls, code=code, compiled=compiled)
    for name, fn, code, compiled in [
        ("jax.jit at each resolution", exact, plain, exact),
        ("padded by hand to 32", gradient_by_hand, [*masked, gradient_by_hand], jitted_by_hand),
        ("sx.Exec, multiples of 32", ex, [*plain, padded], ex),
    ]
]
beside.table(ways, truth=ways[0].results)

# %% [markdown]
# ## Native, or resized
#
# What one does to have one shape: resize each picture to 48 x 48. It needs no mask, and it is one
# graph; what it costs is the answer. Both train on the same crops.


# %%
@jax.jit
def update(params, state, gradient):
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(params, updates), state


def train(gradient, batches):
    params, state, losses = start, optimizer.init(start), []
    for images, labels in batches:
        value, slope = gradient(params, images, labels)
        params, state = update(params, state, slope)
        losses.append(float(value))
    return losses


def resized(images):
    zoom = (1, 48 / images.shape[1], 48 / images.shape[2], 1)
    return np.asarray(ndimage.zoom(images, zoom, order=1), np.float32)


losses = train(ex, batches)
losses_resized = train(exact, [(resized(images), labels) for images, labels in batches])
last = len(batches) // 4
print(
    f"loss of the last {last} batches: {np.mean(losses[-last:]):.2f} at each resolution, "
    f"{np.mean(losses_resized[-last:]):.2f} resized; {ex.cache_size} graphs"
)

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for way in ways:
    left.plot(np.arange(1, COMPARED + 1), np.cumsum(way.cold), label=way.name)
left.set(title="From a cold start", xlabel="batches", ylabel="seconds")
left.legend(fontsize="small")
window = np.ones(min(10, len(batches))) / min(10, len(batches))
for curve, label in [(losses, "each at its resolution"), (losses_resized, "resized to 48 x 48")]:
    right.plot(np.convolve(curve, window, "valid"), label=label)
right.set(title="Training", xlabel="steps", ylabel="loss, mean of 10 steps")
right.legend(fontsize="small")
beside.show(figure)
