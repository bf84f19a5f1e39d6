"""Kinds of tiles for kernels that make lists of them; the large ones take long without a GPU."""

import numpy as np

FIELDS = ("tiles", "full", "counts", "order")


def random_kinds(*shape):
    return np.random.default_rng(0).integers(0, 3, shape).astype(np.uint8)


CASES = {
    "random": random_kinds(2, 3, 5, 7),
    "empty": np.zeros((1, 2, 9, 40), np.uint8),
    "full": np.full((2, 1, 40, 9), 2, np.uint8),
    "partial": np.ones((1, 1, 6, 6), np.uint8),
    "causal": np.tril(np.full((32, 32), 2, np.uint8), -1)[None, None] + np.eye(32, dtype=np.uint8),
    "one tile": random_kinds(3, 1, 1, 1),
    "one row": random_kinds(1, 2, 1, 300),
    "one column": random_kinds(2, 1, 300, 1),
    "33 x 65": random_kinds(1, 3, 33, 65),
    "128 x 128": random_kinds(1, 1, 128, 128),
    "many rows": random_kinds(1, 1, 1000, 16),
    "heads and batches": random_kinds(4, 3, 32, 32),
}

LARGE = {
    "16384 rows": random_kinds(1, 1, 16384, 1),
    "16384 columns": random_kinds(1, 1, 1, 16384),
    "5461 rows": random_kinds(1, 1, 5461, 3),
    "many heads": random_kinds(16, 16, 32, 32),
    "many examples": random_kinds(64, 1, 1, 64),
}


def columns_of(kinds, side):
    """The number of tiles of a row."""
    return kinds.shape[-2 if side == "key" else -1]
