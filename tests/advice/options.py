"""Advice on options: buckets and strategies, constraints, statics, donation, limits, back ends."""

import math
from collections.abc import Callable
from typing import Any

import shapeexec as sx
from shapeexec.bucketing import Custom
from tests.advice.functions import X, double, flagged
from tests.advice.row import Advice, option, quoted, runs, somewhat, value


def graph_limit(graphs: Any, fix: str, meant: int) -> Advice:
    """A number of graphs that is no limit, and the one that the Fix line tells."""
    return Advice(
        f"graphs={graphs}",
        "options",
        sx.ConfigError,
        lambda: sx.CacheLimits(graphs=graphs),
        fix,
        lambda told: sx.CacheLimits(graphs=option(told, "graphs")).graphs,
        lambda: meant,
    )


def config(
    name: str,
    kind: str,
    options: dict[str, Any],
    fix: str,
    follow: Callable[[str], dict[str, Any]],
    *,
    error: type[sx.ShapeExecError] = sx.ConfigError,
) -> Advice:
    """Options that are refused, and those that the Fix line tells."""
    return Advice(
        name,
        kind,
        error,
        lambda: runs(double, X, **options),
        fix,
        lambda told: runs(double, X, **follow(told)),
        lambda: double(X),
    )


def bucket(strategy: Any) -> int:
    """The bucket of 5 that an Exec takes."""
    return sx.Exec(double, ("s",), buckets=strategy).plan(X).buckets["s"]


def strategy(
    name: str,
    broken: Callable[[], Any],
    fix: str,
    follow: Callable[[str], Any],
    expected: Any,
    *,
    error: type[sx.ShapeExecError] = sx.ConfigError,
) -> Advice:
    """A strategy that is refused; what follows tells something of the one told."""
    return Advice(name, "strategies", error, broken, fix, follow, lambda: expected)


def unlawful(name: str, wrong: Any, fix: str, right: Callable[[str], Any], expected: int) -> Advice:
    return strategy(
        name,
        lambda: sx.Exec(double, ("s",), buckets=wrong),
        fix,
        lambda told: bucket(right(told)),
        expected,
        error=sx.StrategyError,
    )


def past_the_end(name: str, buckets: Any, fix: str, follow: Callable[[str], Any]) -> Advice:
    return config(
        name,
        "strategies",
        {"buckets": buckets},
        fix,
        lambda told: {"buckets": follow(told)},
        error=sx.BucketOverflowError,
    )


ROWS = [
    # buckets= and strategies
    config(
        "a key that is no name",
        "buckets",
        {"buckets": {1: sx.Pow2()}},
        "buckets={'b': sx.Pow2(), ...}",
        lambda told: {"buckets": {"s": value("{" + told.split("{")[1].split(",")[0] + "}")["b"]}},
    ),
    config(
        "a symbol that no spec has",
        "buckets",
        {"buckets": {"t": sx.Pow2()}},
        "or give one strategy for all: buckets=sx.Pow2()",
        lambda told: {"buckets": option(told, "buckets")},
    ),
    config(
        "a class",
        "buckets",
        {"buckets": sx.Pow2},
        "sx.Pow2(), an instance of it",
        lambda told: {"buckets": value(told.split(", ")[0])},
    ),
    config(
        "two strategies",
        "buckets",
        {"buckets": {"s": 8, sx.Dim("s"): 4}},
        "name each symbol once, as a string or as a Dim",
        lambda told: {"buckets": {sx.Dim("s"): 4}},
    ),
    strategy(
        "a string that is none",
        lambda: sx.Exec(double, ("s",), buckets="pow3"),
        "or a strategy, which has options: Pow2(minimum=16)",
        lambda told: [
            *map(bucket, quoted(told, '"')),
            bucket(value(f"sx.{told.split('options: ')[1]}")),
        ],
        [5, 8, 8, 5, 8, 30, 16],
    ),
    strategy(
        "a custom strategy of a number",
        lambda: Custom(3),
        "pass a function from size to bucket",
        lambda told: bucket(Custom(lambda size: size + size % 2)),
        6,
    ),
    strategy(
        "no strategy",
        lambda: sx.Exec(double, ("s",), buckets=3.5),
        "32 for multiples of 32, [8, 16] for these buckets",
        lambda told: [bucket(given) for given in (sx.Pow2(), 32, [8, 16])],
        [8, 32, 8],
    ),
    unlawful(
        "a bucket below the size",
        lambda size: size - 1,
        "return a bucket of at least 1 for size 1",
        lambda told: lambda size: size,
        5,
    ),
    unlawful(
        "a float",
        lambda size: size * 1.5,
        "return an int, by // rather than /",
        lambda told: lambda size: -(-size // 4) * 4,
        8,
    ),
    unlawful(
        "a bucket in another bucket",
        lambda size: size + 1,
        "return 2 for size 2",
        lambda told: lambda size: size + size % 2,
        6,
    ),
    unlawful(
        "buckets that fall",
        lambda size: 40 if size < 30 else max(size, 30),
        "let larger sizes never get smaller buckets",
        lambda told: lambda size: max(size, 40),
        40,
    ),
    unlawful(
        "a function that raises",
        lambda size: {8: 8}[size],
        "use a Ladder or maximum= for an end",
        lambda told: sx.Ladder([8]),
        8,
    ),
    past_the_end(
        "a maximum",
        sx.Pow2(maximum=4),
        "maximum=5 or more",
        lambda told: sx.Pow2(maximum=option(told, "maximum")),
    ),
    past_the_end(
        "no maximum",
        sx.Pow2(maximum=4),
        "maximum=None for no end",
        lambda told: sx.Pow2(maximum=value(told.rsplit("maximum=", 1)[1].split()[0])),
    ),
    config(
        "a class that needs a number",
        "buckets",
        {"buckets": sx.Linear},
        "sx.Linear(...), an instance of it",
        lambda told: {"buckets": value(told.split(", ")[0].replace("...", "8"))},
    ),
    config(
        "a number below 1",
        "buckets",
        {"buckets": 0},
        "pass buckets as an int, 1 or more",
        lambda told: {"buckets": 1},
    ),
    past_the_end(
        "an end past the end",
        sx.Ladder([2], beyond=[4]),
        'give beyond= a strategy that holds 5, such as beyond="exact"',
        lambda told: sx.Ladder([2], beyond=option(told, "such as beyond")),
    ),
    strategy(
        "beyond without an end",
        lambda: sx.Pow2(beyond="exact"),
        "maximum=1024, beyond=sx.Exact()",
        lambda told: value(f"sx.Pow2({told.split(', say')[0]})").bucket(1025),
        1025,
    ),
    past_the_end("a ladder", [2, 4], "add a bucket of 5 or more", lambda told: [2, 4, 5]),
    strategy(
        "a ratio", lambda: sx.Geometric(1), "ratio=1.5", lambda t: bucket(sx.Geometric(1.5)), 5
    ),
    strategy(
        "a minimum above the maximum",
        lambda: sx.Pow2(minimum=8, maximum=4),
        "minimum=4, maximum=8",
        lambda told: value(f"sx.Pow2({told.split(', or')[0]})").buckets_up_to(8),
        (4, 8),
    ),
    strategy(
        "a ladder of an int",
        lambda: sx.Ladder(3),
        "Ladder([30, 60, 90])",
        lambda t: bucket([30]),
        30,
    ),
    strategy("an empty ladder", lambda: sx.Ladder([]), "at least one", lambda t: bucket([8]), 8),
    strategy("a step", lambda: sx.Linear(0), "step as an int, 1 or more", lambda t: bucket(1), 5),
    strategy(
        "a range that is turned",
        lambda: sx.Pow2().ladder(9, 3),
        "ladder(3, 9)",
        lambda told: value(f"sx.Pow2().{told}"),
        (4, 8, 16),
    ),
    strategy(
        "no bucket",
        lambda: sx.Pow2().lower_bound(9),
        "pass 16, the bucket that size 9 falls in",
        lambda told: sx.Pow2().lower_bound(16),
        9,
    ),
    strategy(
        "no sizes",
        lambda: sx.Pow2().expected_waste([]),
        "at least one size",
        lambda told: sx.Pow2().expected_waste([3, 4, 5]),
        0.25,
    ),
    strategy(
        "one size",
        lambda: sx.Pow2().expected_waste(5),
        "or a mapping from size to count",
        lambda told: sx.Pow2().expected_waste({3: 1, 4: 1, 5: 1}),
        0.25,
    ),
    strategy(
        "a count below 0",
        lambda: sx.Pow2().expected_waste({5: -1}),
        "a finite number, 0 or more",
        lambda told: sx.Pow2().expected_waste({5: 0, 3: 1}),
        0.25,
    ),
    strategy(
        "a cost",
        lambda: sx.Ladder.fit([3, 4], graphs=1, cost="cubic"),
        '"linear", "quadratic", or a function',
        lambda told: sx.Ladder.fit([3, 4], graphs=1, cost=value(told.split(",")[0])).buckets,
        (4,),
    ),
    strategy(
        "a cost that falls",
        lambda: sx.Ladder.fit([3, 4], graphs=1, cost=lambda size: -size),
        "a cost that never falls",
        lambda told: sx.Ladder.fit([3, 4], graphs=1, cost=lambda size: size**2).buckets,
        (4,),
    ),
    strategy(
        "a cost of NaN",
        lambda: sx.Ladder.fit([3, 4], graphs=1, cost=lambda size: math.nan),
        "return a finite number",
        lambda told: sx.Ladder.fit([3, 4], graphs=1, cost=lambda size: 1.0 * size).buckets,
        (4,),
    ),
    # constraints=
    config(
        "no comparison",
        "constraints",
        {"constraints": "s >> 2"},
        'constraints=("s >= 2", "mod(s, 8) == 0")',
        lambda told: {"constraints": value(told.split("constraints=")[1])[:1]},
    ),
    config(
        "no text",
        "constraints",
        {"constraints": 3},
        'constraints="s >= 2", or constraints=("s >= 2", "mod(s, 8) == 0")',
        lambda told: {"constraints": option(told, "constraints")},
    ),
    Advice(
        "a constraint that does not hold",
        "constraints",
        sx.ConstraintError,
        lambda: runs(double, X, constraints="s >= 8"),
        "call the plain function at these sizes, or loosen constraints=",
        lambda told: [double(X), runs(double, X, constraints="s >= 4")],
        lambda: [double(X)] * 2,
    ),
    config(
        "a symbol for a constraint",
        "constraints",
        {"constraints": "s"},
        'write a comparison of dims, such as constraints=("s >= 2", "mod(s, 8) == 0")',
        lambda told: {"constraints": value(told.split("constraints=")[1])[:1]},
    ),
    # choices and kinds
    config(
        "on_unsupported",
        "options",
        {"on_unsupported": "ignore"},
        'on_unsupported="raise" or "exact"',
        lambda told: {"on_unsupported": option(told, "on_unsupported")},
    ),
    config(
        "check",
        "options",
        {"check": "always"},
        'check="graphs", "sizes", "worker" or "off"',
        lambda told: {"check": value(told.split("check=")[1].split(",")[0])},
    ),
    config(
        "poison",
        "options",
        {"poison": "bad"},
        "one of nan, max, min, garbage",
        lambda told: {"poison": told.removeprefix("one of ").split(",")[0]},
    ),
    config(
        "limits",
        "options",
        {"limits": 3},
        "limits=sx.CacheLimits(graphs=256)",
        lambda told: {"limits": option(told, "limits")},
    ),
    graph_limit(0, "graphs=1 or None", 1),
    graph_limit(1.5, "graphs=256 or None", 256),
    Advice(
        "kwarg_shapes",
        "options",
        sx.ConfigError,
        lambda: sx.Exec(flagged, ("s",), kwarg_shapes="s"),
        'kwarg_shapes={"mask": "b, s"}',
        lambda told: sx.Exec(flagged, ("b, s",), kwarg_shapes=option(told, "kwarg_shapes"))(
            somewhat(2, 3), mask=somewhat(2, 3)
        ),
        lambda: somewhat(2, 3) ** 2,
    ),
    Advice(
        "a keyword that there is not",
        "options",
        sx.ConfigError,
        lambda: sx.Exec(flagged, ("s",), kwarg_shapes={"maks": "s"}),
        "name one of these",
        lambda told: sx.Exec(flagged, ("s",), kwarg_shapes={"mask": "s"})(X, mask=X),
        lambda: X**2,
    ),
    config(
        "an option of another library's",
        "options",
        {"bucket_sizes": [8]},
        'sx.Exec(double, in_shapes=("s, ...",), buckets=[8])',
        lambda told: value(f"dict({told.partition(', ')[2]}"),
    ),
    Advice(
        "no function",
        "options",
        sx.ConfigError,
        lambda: sx.Exec(3),
        "pass a function of arrays",
        lambda told: sx.Exec(double)(X),
        lambda: double(X),
    ),
]
