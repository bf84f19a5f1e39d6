"""Advice on what runs: maps, validation, functions that are masked without an Exec."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from shapeexec.masking._registry import RULES
from tests.advice.row import Advice, exact_ways, option, somewhat, strategies, value

X = somewhat(5)
EXAMPLES = [somewhat(5), somewhat(3, seed=1)]


def total(x: Any, y: Any = 0.0) -> Any:
    return x.sum() + jnp.sum(y)


def mapped(
    name: str,
    broken: Callable[[], Any],
    fix: str,
    follow: Callable[[str], Any],
    expected: Callable[[], Any],
    *,
    error: type[sx.ShapeExecError] = sx.SpecError,
) -> Advice:
    return Advice(name, "maps", error, broken, fix, follow, expected)


def by_map(fn: Callable[..., Any], *args: Any, specs: Any = ("s",), **options: Any) -> Any:
    return sx.Exec(fn, specs, buckets=sx.Pow2()).map(*args, **options)


def branched(x: Any) -> Any:
    return x.sum() if x.shape[0] > 4 else x[:1]


def sums() -> float:
    return sum(x.sum() for x in EXAMPLES)


def unfilled(ctx: Any, *operands: Any, **params: Any) -> Any:
    return ctx.bind(*operands, **params)


def validated(strategy: Any) -> Any:
    """The sum of X by a validated Exec, while the rule of sums lets padding through."""
    kept = RULES["reduce_sum"]
    RULES["reduce_sum"] = dataclasses.replace(kept, apply=unfilled)
    try:
        ex = sx.Exec(jnp.sum, ("s",), buckets=strategy)
        sx.validate(ex, X, rounds=1, poisons=("max",))
        return ex(X)
    finally:
        RULES["reduce_sum"] = kept


def referred(x: Any) -> Any:
    return jax.new_ref(x)[...]


def looped(x: Any) -> Any:
    return sum(x[i] for i in range(x.shape[0]))


def padded(told_sizes: dict[str, int], size: int = 8) -> Any:
    """The sum of the first elements of a padded array."""
    fn = sx.masking.pad_safe(jnp.sum, in_shapes=("s",))
    return fn(told_sizes, np.ones(size, np.float32))


def donated(handle: Any) -> Any:
    """The sum of twice a handle's elements, after it was donated."""
    twice = sx.Exec(lambda x: 2 * x, ("s",), buckets=sx.Pow2(), donate_argnums=0, returns="padded")
    following = twice(handle)
    return following, sx.Exec(jnp.sum, ("s",), buckets=sx.Pow2())


def handed(**options: Any) -> Any:
    """A handle that an Exec has made of X, and the handle and Exec that follow its donation."""
    handle = sx.Exec(lambda x: x + 1, ("s",), buckets=sx.Pow2(), **options).padded(X)
    return handle, *donated(handle)


def used_after_donation() -> Any:
    handle, _, total = handed()
    return total(handle)


def follows_donation(told: str) -> Any:
    assert "use the handle that this call returned" in told
    _, following, total = handed()
    return total(following)


ROWS = [
    Advice(
        "a donated handle",
        "handles",
        sx.ConfigError,
        used_after_donation,
        "use the handle that this call returned",
        follows_donation,
        lambda: 2 * X.sum() + 2 * len(X),
    ),
    Advice(
        "a handle of NumPy's",
        "handles",
        sx.ConfigError,
        lambda: sx.Padded(X, (3,)),
        "Padded(jax.numpy.asarray(array), shape)",
        lambda told: np.asarray(value(f"sx.{told.split(', outside')[0]}", array=X, shape=(3,))),
        lambda: X[:3],
    ),
    Advice(
        "a handle longer than its array",
        "handles",
        sx.ConfigError,
        lambda: sx.Padded(jnp.asarray(X), (9,)),
        "the true shape: 1 ints, none above (5,)",
        lambda told: np.asarray(sx.Padded(jnp.asarray(X), (5,))),
        lambda: X,
    ),
    Advice(
        "a handle that shrinks",
        "handles",
        sx.ConfigError,
        lambda: sx.Padded(jnp.asarray(X), (5,)).grown(-1),
        "by an int from 0 on, and an axis from -1 to 0",
        lambda told: np.asarray(sx.Padded(jnp.asarray(X), (5,)).grown(2, axis=-1)),
        lambda: np.append(X, [0, 0]),
    ),
    mapped(
        "no list",
        lambda: by_map(total, X),
        "pass a list with one entry per example",
        lambda told: by_map(total, [X]),
        lambda: [X.sum()],
    ),
    mapped(
        "what all share",
        lambda: by_map(total, EXAMPLES, X, specs=("s", "t")),
        "or make the spec None: what all share",
        lambda told: by_map(total, EXAMPLES, X, specs=("s", None)),
        lambda: [total(x, X) for x in EXAMPLES],
    ),
    mapped(
        "no argument is a list",
        lambda: by_map(total, EXAMPLES, specs=(None,)),
        'give it a spec that is not None, such as in_shapes=("s",)',
        lambda told: by_map(total, EXAMPLES, specs=value(told.split("in_shapes=")[1])),
        lambda: [x.sum() for x in EXAMPLES],
    ),
    mapped(
        "lists of other lengths",
        lambda: by_map(total, EXAMPLES, [X], specs=("s", "t")),
        "pass lists of one length, one entry per example",
        lambda told: by_map(total, EXAMPLES, [X, X], specs=("s", "t")),
        lambda: [total(x, X) for x in EXAMPLES],
    ),
    mapped(
        "no examples",
        lambda: by_map(total, [], reduce="sum"),
        "pass at least one example",
        lambda told: by_map(total, [X], reduce="sum"),
        X.sum,
    ),
    mapped(
        "a mean",
        lambda: by_map(total, EXAMPLES, reduce="mean"),
        'reduce="sum", divided by their number for a mean, or None for a list',
        lambda told: by_map(total, EXAMPLES, reduce=option(told, "reduce")) / 2,
        lambda: sums() / 2,
        error=sx.ConfigError,
    ),
    mapped(
        "a ragged result",
        lambda: by_map(lambda x: 2 * x, EXAMPLES, reduce="sum"),
        "return a sum over the axis; or leave reduce= out",
        lambda told: [
            by_map(lambda x: 2 * x.sum(), EXAMPLES, reduce="sum"),
            by_map(lambda x: 2 * x, EXAMPLES),
        ],
        lambda: [2 * sums(), [2 * x for x in EXAMPLES]],
    ),
    mapped(
        "a result of booleans",
        lambda: by_map(lambda x: (x > 1).any(), EXAMPLES, reduce="sum"),
        "convert it, as by x.astype(int)",
        lambda told: by_map(
            lambda x: value(told.split("as by ")[1].split(";")[0], x=(x > 1).any()),
            EXAMPLES,
            reduce="sum",
        ),
        lambda: sum((x > 1).any() for x in EXAMPLES),
    ),
    mapped(
        "results of other shapes",
        lambda: by_map(branched, EXAMPLES, reduce="sum"),
        "return one tree of one shape for all examples, or leave reduce= out",
        lambda told: by_map(branched, EXAMPLES),
        lambda: [branched(x) for x in EXAMPLES],
    ),
    Advice(
        "a rule that is wrong",
        "validation",
        sx.ValidationError,
        lambda: validated(sx.Pow2()),
        'report this equation; until it is mended, "s": sx.Exact() in buckets=',
        lambda told: validated(strategies(told)),
        X.sum,
    ),
    Advice(
        "no rounds",
        "validation",
        sx.ConfigError,
        lambda: sx.validate(sx.Exec(jnp.sum, ("s",)), X, rounds=0),
        "rounds=5",
        lambda told: len(sx.validate(sx.Exec(jnp.sum, ("s",)), X, rounds=1).sizes),
        lambda: 1,
    ),
    Advice(
        "a primitive without a rule",
        "pad_safe",
        sx.UnsupportedPrimitiveError,
        lambda: sx.masking.pad_safe(referred, ("s",))({"s": 3}, X),
        "run the function by sx.Exec, and make `s` exact",
        lambda told: [sx.Exec(referred, ("s",), **ways)(X[:3]) for ways in exact_ways(told)],
        lambda: [X[:3]] * 2,
    ),
    Advice(
        "a question that only a number answers",
        "pad_safe",
        sx.InconclusiveShapeError,
        lambda: sx.masking.pad_safe(looped, ("s",))({"s": 3}, X),
        "or run the function by sx.Exec, and make `s` exact",
        lambda told: [sx.Exec(looped, ("s",), **ways)(X[:3]) for ways in exact_ways(told)],
        lambda: [X[:3].sum()] * 2,
    ),
    Advice(
        "other sizes",
        "pad_safe",
        sx.SpecError,
        lambda: padded({"t": 3}),
        "sizes={'s': ...}",
        lambda told: padded(value(told.split("sizes=")[1].replace("...", "3"))),
        lambda: 3.0,
    ),
    Advice(
        "a size past the array",
        "pad_safe",
        sx.SpecError,
        lambda: padded({"s": 9}),
        "a size of at least 1 that the padded arguments can hold",
        lambda told: [padded({"s": size}) for size in (1, 8)],
        lambda: [1.0, 8.0],
    ),
]
