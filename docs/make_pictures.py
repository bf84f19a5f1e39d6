"""Draw docs/images/graphs.png, the picture of `graphs.plot()` in docs/concepts.md.

    python docs/make_pictures.py

It shows what the function of that page has run in after the calls of `LENGTHS`.
"""

import pathlib
from typing import Any

import matplotlib as mpl
import numpy as np

import shapeexec as sx

IMAGES = pathlib.Path(__file__).parent / "images"
# Per batch and length how many calls there were.
LENGTHS = {
    (1, 9): 14,
    (1, 27): 31,
    (1, 41): 22,
    (1, 58): 12,
    (2, 23): 17,
    (2, 50): 26,
    (2, 61): 9,
    (3, 60): 19,
    (4, 64): 8,
    (3, 75): 5,
}


def smooth(x: Any) -> Any:
    """The function of the page."""
    return x - x.mean(axis=1, keepdims=True)


def called() -> sx.Exec:
    """What has met these lengths, under the strategies of the page."""
    run = sx.Exec(smooth, ("b, s",), buckets={"b": sx.Pow2(), "s": sx.Linear(32)})
    for shape, count in LENGTHS.items():
        for _ in range(count):
            run(np.ones(shape, np.float32))
    return run


def draw(folder: pathlib.Path) -> pathlib.Path:
    """Write the picture; the path of it."""
    path = folder / "graphs.png"
    figure = called().graphs.plot()
    figure.savefig(path, dpi=110, metadata={"Software": None})  # it would tell the version
    return path


if __name__ == "__main__":
    mpl.use("agg")
    print(draw(IMAGES))
