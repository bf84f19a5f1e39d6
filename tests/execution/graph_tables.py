"""An Exec with some graphs, whose table tests look at."""

import shapeexec as sx

P = sx.Pow2()
L = sx.Linear


def total(x, mode="sum"):
    return x.sum() if mode == "sum" else x.max()


def made(**options):
    """An Exec with a graph per dtype, constant and bucket that tests ask for."""
    return sx.Exec(
        total, ("b, s, 2",), buckets={"b": P, "s": L(8)}, static_argnames=("mode",), **options
    )
