"""Advice on what is static, donation, objects, warm-up and frozen Execs."""

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from tests.advice.functions import X, double, flagged
from tests.advice.row import Advice, option, quoted, runs, somewhat, value


def scaled(x: Any, n: Any) -> Any:
    return x * n[0]


def swapped(x: Any, y: Any) -> Any:
    return y + 1, x + 2


def donating(told: str) -> Any:
    """A donated array and its copy."""
    array = jnp.asarray(somewhat(8))
    copy = value(quoted(told)[0], x=array)
    ex = sx.Exec(swapped, ("s", "s"), buckets=sx.Pow2(), donate_argnums=0)
    return ex(array, copy)


def donated_twice() -> Any:
    array = jnp.asarray(somewhat(8))
    return sx.Exec(swapped, ("s", "s"), buckets=sx.Pow2(), donate_argnums=0)(array, array)


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
    ex = sx.Exec(double, ("s",), buckets=sx.Pow2())
    return value(f"ex.warmup(*args, {told})", ex=ex, args=args)


def frozen(told: str, dtype: Any) -> Any:
    """A call of a frozen Exec that is warmed up as a Fix line says."""
    ex = sx.Exec(double, ("s",), buckets=sx.Pow2())
    ex(X)
    args = (np.arange(20, dtype=dtype),)
    value(f"ex.{quoted(told)[0]}", ex=ex, args=args)
    ex.freeze()
    return ex(*args)


def break_frozen(dtype: Any) -> Any:
    ex = sx.Exec(double, ("s",), buckets=sx.Pow2())
    ex(X)
    ex.freeze()
    return ex(np.arange(20, dtype=dtype))


def map_frozen(first: bool) -> Any:
    ex = sx.Exec(jnp.sum, ("s",), buckets=sx.Pow2())
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
        "an array of strings",
        "statics",
        sx.ConfigError,
        lambda: sx.Exec(scaled, ("s", None))(X, np.array(["a"])),
        "pass numbers in the place of strings, such as their positions in a vocabulary",
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
            sx.Exec(double, ("s",), buckets=sx.Pow2())
            .plan(jax.ShapeDtypeStruct((5,), np.float32))
            .buckets
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
        lambda told: sx.Exec(double, ("s",), buckets=sx.Pow2(maximum=8)).warmup(X),
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
        "sizes in no mapping",
        "frozen",
        sx.ConfigError,
        lambda: sx.Exec(double, ("sizes",)).warmup(X, sizes=8),
        "sizes={'sizes': 8}, if there is a symbol `sizes`",
        lambda told: sx.Exec(double, ("sizes",)).warmup(X, sizes=option(told, "sizes")),
        lambda: 1,
    ),
    Advice(
        "sizes that are given twice",
        "frozen",
        sx.ConfigError,
        lambda: sx.Exec(double, ("s",)).warmup(X, s=4, sizes={"s": 8}),
        "leave out s=...",
        lambda told: sx.Exec(double, ("s",)).warmup(X, sizes={"s": 8}),
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
