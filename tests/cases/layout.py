"""Ragged axes that merge, split, shift and turn round."""

import jax
import jax.numpy as jnp

from tests.cases._case import Case

CASES = (
    Case("flatten [b, s]", lambda x: x.reshape(-1), ("b, s",)),
    Case("merge the leading axes", lambda x: x.reshape(-1, 4), ("b, s, 4",)),
    Case("split a merged axis", lambda x: x.reshape(x.shape[0], -1), ("b, s, 2",), naive="agrees"),
    Case("flatten the transposed", lambda x: x.T.reshape(-1), ("b, s",)),
    Case("swap factors", lambda x: x.reshape(2 * x.shape[1], -1), ("b, s, 6",)),
    Case("reverse both axes", lambda x: x[::-1, ::-1], ("b, s",)),
    Case("lax.rev", lambda x: jax.lax.rev(x, (1,)), ("b, s",)),
    Case("concatenate ragged parts", lambda x, y: jnp.concatenate([x, y, x], 1), ("b, s", "b, t")),
    Case(
        "pad in front and behind",
        lambda x: jnp.pad(x, ((0, 0), (2, 1)), constant_values=9),
        ("b, s",),
    ),
    Case(
        "pad inside",
        lambda x: jax.lax.pad(x, 9.0, ((1, 0, 0), (0, -1, 2))),
        ("b, s",),
        naive="agrees",
    ),
    Case("tile", lambda x: jnp.tile(x, (2, 3)), ("b, s",)),
    Case("repeat", lambda x: jnp.repeat(x, 2, axis=1), ("b, s",), naive="agrees"),
    Case("split in halves", lambda x: jnp.split(x, 2, axis=1)[1], ("b, 2*s",)),
    Case("triangle", lambda x: jnp.tril(x @ x.swapaxes(-1, -2)), ("b, s, 3",), naive="agrees"),
    Case("roll by one", lambda x: jnp.roll(x, 1, axis=1), ("b, s",)),
    Case("a size as data", lambda x: x * x.shape[1] + jnp.arange(x.shape[1]), ("b, s",)),
    Case(
        "a grid of sizes", lambda x: x + jnp.eye(x.shape[0], x.shape[1]), ("b, s",), naive="agrees"
    ),
    Case(
        "every other place",
        lambda x: jax.lax.slice_in_dim(x, 1, x.shape[1], 2, axis=1),
        ("b, s + 1",),
        naive="agrees",
    ),
)
