"""Measures of histograms: entropy, and how far two are apart. `_traffic` counts calls."""

import math
from collections.abc import Iterable, Mapping

import numpy as np


def entropy(counts: Iterable[float]) -> float:
    """The Shannon entropy of a histogram, in bits: the sum of -p log2 p over its shares p.

    2 to its power is how many equally frequent values are as uncertain.

    Source: C. E. Shannon, A Mathematical Theory of Communication, 1948, section 6.
    """
    own = np.array([count for count in counts if count > 0], float)
    shares = own / own.sum() if len(own) else own
    return max(0.0, float(-(shares * np.log2(shares)).sum()))


def distance(one: Mapping[int, float], other: Mapping[int, float]) -> float:
    """How far the sizes of one histogram have to move to become the other, on average.

    The Wasserstein distance of order 1, in elements: the area between the two distribution
    functions. Unlike distances of shares it is small for two samples of one distribution.

    Source: A. Ramdas, N. Garcia Trillos, M. Cuturi, On Wasserstein Two-Sample Testing and Related
    Families of Nonparametric Tests, Entropy 19(2), 2017, section 3.
    """
    sizes = np.array(sorted(one.keys() | other.keys()), float)
    if len(sizes) < 2:
        return 0.0
    shares = [_cumulative(counts, sizes) for counts in (one, other)]
    return math.fsum(np.abs(shares[0] - shares[1])[:-1] * np.diff(sizes))


def _cumulative(counts: Mapping[int, float], sizes: np.ndarray) -> np.ndarray:
    total = np.cumsum([counts.get(int(size), 0.0) for size in sizes])
    return total / total[-1]
