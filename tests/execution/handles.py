"""Handles for tests, and what stands in their padding."""

import jax.numpy as jnp
import numpy as np

import shapeexec as sx


def handle(x, capacity, *, fill=0):
    """A handle that a user makes, with anything for padding."""
    array = np.full(capacity, fill, x.dtype)
    array[tuple(map(slice, x.shape))] = x
    return sx.Padded(jnp.asarray(array), x.shape)


def padding(padded):
    """All elements of the array of a handle that are not valid."""
    is_valid = np.zeros(padded.array.shape, bool)
    is_valid[tuple(map(slice, padded.shape))] = True
    return np.asarray(padded.array)[~is_valid]
