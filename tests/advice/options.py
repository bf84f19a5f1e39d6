"""Advice on options: buckets and strategies, constraints, statics, donation, limits, back ends."""

import math
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from shapeexec.bucketing import Custom
from tests.advice.row import Advice, option, quoted, runs, somewhat, value

X = somewhat(5)


def double(x: Any) -> Any:
    return 2 * x


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
    return sx.Exec(double, ("s",), strategy).plan(X).buckets["s"]


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
        lambda: sx.Exec(double, ("s",), wrong),
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


def scaled(x: Any, n: Any) -> Any:
    return x * n[0]


def flagged(x: Any, flag: Any = True, *, mask: Any = None) -> Any:
    return x if mask is None else x * mask


def swapped(x: Any, y: Any) -> Any:
    return y + 1, x + 2


def donating(told: str) -> Any:
    """A donated array and its copy."""
    array = jnp.asarray(somewhat(8))
    copy = value(quoted(told)[0], x=array)
    ex = sx.Exec(swapped, ("s", "s"), sx.Pow2(), donate_argnums=0)
    return ex(array, copy)


def donated_twice() -> Any:
    array = jnp.asarray(somewhat(8))
    return sx.Exec(swapped, ("s", "s"), sx.Pow2(), donate_argnums=0)(array, array)


class Layer:
    """An object with an array, and methods that are refused."""

    def __init__(self) -> None:
        self.w = 3 * jnp.ones(())
        self.count = 0

    @sx.bucketed((None, "s"), donate_argnums=0)
    def gives_itself(self, x: Any) -> Any:
        return self.w * x

    @sx.bucketed((None, "s"), donate_argnums=1)
    def gives_x(self, x: Any) -> Any:
        return self.w * x

    @sx.bucketed((None, "s"))
    def counts(self, x: Any) -> Any:
        self.count = self.count + 1
        return self.w * x

    @sx.bucketed((None, "s"))
    def returns_count(self, x: Any) -> Any:
        return self.w * x, self.count + 1


def counted() -> Any:
    layer = Layer()
    out, layer.count = layer.returns_count(X)
    return out, layer.count


def warm(told: str, *args: Any) -> Any:
    """How many graphs a warm-up compiles by the sizes of a Fix line."""
    ex = sx.Exec(double, ("s",), sx.Pow2())
    return value(f"ex.warmup(*args, {told})", ex=ex, args=args)


def frozen(told: str, dtype: Any) -> Any:
    """A call of a frozen Exec that is warmed up as a Fix line says."""
    ex = sx.Exec(double, ("s",), sx.Pow2())
    ex(X)
    args = (np.arange(20, dtype=dtype),)
    value(f"ex.{quoted(told)[0]}", ex=ex, args=args)
    ex.freeze()
    return ex(*args)


def break_frozen(dtype: Any) -> Any:
    ex = sx.Exec(double, ("s",), sx.Pow2())
    ex(X)
    ex.freeze()
    return ex(np.arange(20, dtype=dtype))


def map_frozen(first: bool) -> Any:
    ex = sx.Exec(jnp.sum, ("s",), sx.Pow2())
    if first:
        ex.map([X, X])
    else:
        ex(X)
    ex.freeze()
    return ex.map([X, X])


def at_top_level(x: Any) -> Any:
    return 2 * x


def pickled(ex: Any) -> Any:
    return pickle.loads(pickle.dumps(ex))(X)


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
        "name each symbol once, as a text or as a Dim",
        lambda told: {"buckets": {sx.Dim("s"): 4}},
    ),
    strategy(
        "a text that is none",
        lambda: sx.Exec(double, ("s",), "pow3"),
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
        lambda: sx.Exec(double, ("s",), 3.5),
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
        "one with an end is a Ladder or has a maximum",
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
    # what is static
    Advice(
        "static positions",
        "statics",
        sx.ConfigError,
        lambda: sx.Exec(scaled, ("s", None), static_argnums=-1),
        "static_argnums=1 or static_argnums=(0, 2)",
        lambda told: sx.Exec(scaled, ("s", None), static_argnums=option(told, "static_argnums"))(
            X, (2.0,)
        ),
        lambda: 2 * X,
    ),
    Advice(
        "a position that there is not",
        "statics",
        sx.ConfigError,
        lambda: sx.Exec(scaled, ("s", None), static_argnums=2),
        "positions counted from 0",
        lambda told: sx.Exec(scaled, ("s", None), static_argnums=1)(X, (2.0,)),
        lambda: 2 * X,
    ),
    Advice(
        "static names",
        "statics",
        sx.ConfigError,
        lambda: sx.Exec(flagged, ("s",), static_argnames=3),
        'static_argnames="flag", or static_argnames=("flag", "mode")',
        lambda told: sx.Exec(flagged, ("s",), static_argnames=option(told, "static_argnames"))(
            X, flag=False
        ),
        lambda: X,
    ),
    Advice(
        "a list",
        "statics",
        sx.ConfigError,
        lambda: sx.Exec(scaled, ("s", None), static_argnums=1)(X, [2.0]),
        "pass a hashable value (a tuple for a list), or do not make it static",
        lambda told: [
            sx.Exec(scaled, ("s", None), static_argnums=1)(X, (2.0,)),
            sx.Exec(scaled, ("s", None))(X, [2.0]),
        ],
        lambda: [2 * X] * 2,
    ),
    Advice(
        "an array of texts",
        "statics",
        sx.ConfigError,
        lambda: sx.Exec(scaled, ("s", None))(X, np.array(["a"])),
        "pass numbers in the place of texts, such as their positions in a vocabulary",
        lambda told: sx.Exec(scaled, ("s", None))(X, np.array([2])),
        lambda: 2 * X,
    ),
    Advice(
        "arrays of objects",
        "statics",
        sx.ConfigError,
        lambda: sx.Exec(scaled, ("s", None))(X, np.array([2, None])[:1]),
        "pass numbers: `x.astype(np.float32)`",
        lambda told: sx.Exec(scaled, ("s", None))(X, value(quoted(told)[0], x=np.array([2, 0]))),
        lambda: 2 * X,
    ),
    # donation and objects
    Advice(
        "an array that is given twice",
        "donation",
        sx.ConfigError,
        donated_twice,
        "pass a copy (`x.copy()`), or donate neither",
        donating,
        lambda: (somewhat(8) + 1, somewhat(8) + 2),
    ),
    Advice(
        "self",
        "donation",
        sx.ConfigError,
        lambda: Layer().gives_itself(X),
        "donate arrays that are arguments of the method",
        lambda told: Layer().gives_x(jnp.asarray(X)),
        lambda: 3 * X,
    ),
    Advice(
        "a method without an instance",
        "objects",
        sx.ConfigError,
        Layer.counts,
        "call it on an instance, or pass one as the first argument",
        lambda told: [Layer().returns_count(X)[0], Layer.returns_count(Layer(), X)[0]],
        lambda: [3 * X] * 2,
    ),
    Advice(
        "an attribute that changes",
        "objects",
        sx.ConfigError,
        lambda: Layer().counts(X),
        "return the new value and assign it outside",
        lambda told: counted(),
        lambda: (3 * X, 1),
    ),
    Advice(
        "pickling a lambda",
        "objects",
        sx.ConfigError,
        lambda: pickled(sx.Exec(lambda x: 2 * x, ("s",))),
        "define the function at the top level of a module",
        lambda told: pickled(sx.Exec(at_top_level, ("s",))),
        lambda: 2 * X,
    ),
    Advice(
        "a shape for an array",
        "options",
        sx.ConfigError,
        lambda: runs(double, jax.ShapeDtypeStruct((5,), np.float32)),
        "pass an array; `plan`, `explain` and `warmup` take shapes alone",
        lambda told: (
            sx.Exec(double, ("s",), sx.Pow2()).plan(jax.ShapeDtypeStruct((5,), np.float32)).buckets
        ),
        lambda: {"s": 8},
    ),
    Advice(
        "a token",
        "options",
        sx.ConfigError,
        lambda: runs(lambda x: (jax.lax.create_token(x), x), X),
        "return arrays only",
        lambda told: runs(lambda x: x, X),
        lambda: X,
    ),
    # warm-up and frozen Execs
    Advice(
        "no example",
        "frozen",
        sx.ConfigError,
        lambda: sx.Exec(double, ("s",)).warmup(s=3),
        "pass example arguments, such as jax.ShapeDtypeStruct, or call once before",
        lambda told: warm("s=3", jax.ShapeDtypeStruct((5,), np.float32)),
        lambda: 1,
    ),
    Advice(
        "sizes of no symbol",
        "frozen",
        sx.ConfigError,
        lambda: sx.Exec(double, ("s",)).warmup(X),
        "give sizes for each symbol: s=...",
        lambda told: warm(told.split(": ")[1].split(";")[0].replace("...", "8"), X),
        lambda: 1,
    ),
    Advice(
        "strategies with an end",
        "frozen",
        sx.ConfigError,
        lambda: sx.Exec(double, ("s",)).warmup(X),
        "or strategies with maximum=, whose buckets are then all of them",
        lambda told: sx.Exec(double, ("s",), sx.Pow2(maximum=8)).warmup(X),
        lambda: 4,
    ),
    Advice(
        "sizes that are none",
        "frozen",
        sx.ConfigError,
        lambda: sx.Exec(double, ("s",)).warmup(X, s="x"),
        "s=range(1, 513), or s=128",
        lambda told: warm(told.split("or ")[1], X),
        lambda: 1,
    ),
    Advice(
        "a size that is not warm",
        "frozen",
        sx.FrozenError,
        lambda: break_frozen(np.float32),
        "warm up these sizes before freeze(), by `warmup(*args, s=20)` with args such as these",
        lambda told: frozen(told, np.float32),
        lambda: 2 * np.arange(20.0),
    ),
    Advice(
        "a dtype that is not warm",
        "frozen",
        sx.FrozenError,
        lambda: break_frozen(np.int32),
        "or do not freeze",
        lambda told: frozen(told, np.int32),
        lambda: 2 * np.arange(20),
    ),
    Advice(
        "a map that is not warm",
        "frozen",
        sx.FrozenError,
        lambda: map_frozen(first=False),
        "warm up these sizes before freeze(), by a map over as many examples",
        lambda told: map_frozen(first=True),
        lambda: [X.sum()] * 2,
    ),
]
