"""The rows of an analysis: calls by bucket, and calls by time. `_analyze` computes them."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class BucketUse:
    """One combination of buckets: the calls that ran in it, and what its graphs took.

    Attributes:
        buckets: By symbol.
        calls: Calls that ran in it, and examples of maps, also in graphs that are gone.
        waste: By symbol the share of the bucket that was padding, 0 to 1.
        graphs: How many graphs are kept of it: they differ in dtypes, constants or guards.
        hits: Calls that found one of these.
        made_seconds: The time that making them took, without the trace that graphs share.
        run_seconds: From these hits to their results, in seconds by the clock; an accelerator may
            still have worked on them.

    Example:
        >>> run = sx.Exec(jnp.sum, ("s",))
        >>> _ = run(np.ones(5, np.float32)), run(np.ones(7, np.float32))
        >>> (use,) = run.analysis().uses
        >>> use.buckets, use.calls, use.waste
        ({'s': 8}, 2, {'s': 0.25})
    """

    buckets: Mapping[str, int]
    calls: int
    waste: Mapping[str, float]
    graphs: int = 0
    hits: int = 0
    made_seconds: float = 0.0
    run_seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class TrafficWindow:
    """A run of consecutive calls, or all calls of one hour of the day.

    Attributes:
        began: The time of the first call, in seconds since 1970.
        calls: How many there are.
        mean: By symbol the mean size.
        waste: By symbol the share of the buckets that was padding, 0 to 1.
        entropy: Of the combinations of sizes, in bits.
        shift: By symbol the distance of its sizes from the sizes of all calls: the Wasserstein
            distance of order 1, divided by the mean size of all calls. 0 is no change.

    Example:
        >>> run = sx.Exec(jnp.sum, ("s",))
        >>> _ = run(np.ones(5, np.float32)), run(np.ones(7, np.float32))
        >>> (window,) = run.analysis().windows
        >>> window.calls, window.mean, window.entropy, window.shift
        (2, {'s': 6.0}, 1.0, {'s': 0.0})
    """

    began: float
    calls: int
    mean: Mapping[str, float]
    waste: Mapping[str, float]
    entropy: float
    shift: Mapping[str, float]
