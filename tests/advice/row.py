"""A row of the table of advice, and how code is taken out of a Fix line."""

import ast
import dataclasses
import functools
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx


def somewhat(*shape: int, seed: int = 0) -> np.ndarray:
    """f32[shape] of numbers from 0.5 to 1.5."""
    return np.random.default_rng(seed).uniform(0.5, 1.5, shape).astype(np.float32)


NAMES: dict[str, Any] = {
    "functools": functools,
    "jax": jax,
    "jnp": jnp,
    "math": math,
    "np": np,
    "operator": operator,
    "sx": sx,
}
_ENDS = re.compile(
    r"; |, which|, then|, for |, if |, or | or | if | with |, one |, another|, divided|: keys"
)


@dataclasses.dataclass(frozen=True)
class Advice:
    """A broken program, the way out that its error tells, and what following that gives.

    Attributes:
        name: Of the row.
        kind: What the advice is about.
        error: The class of the error, exactly.
        broken: Raises it.
        fix: What the Fix line holds, as a user reads it.
        follow: Does as the Fix line says, which it is given.
        expected: What the plain function gives.
    """

    name: str
    kind: str
    error: type[sx.ShapeExecError]
    broken: Callable[[], Any]
    fix: str
    follow: Callable[[str], Any]
    expected: Callable[[], Any]


def value(code: str, **names: Any) -> Any:
    """What code of a Fix line is."""
    return eval(code, NAMES | names)


def option(fix: str, name: str, **names: Any) -> Any:
    """What stands behind `name=` in a Fix line."""
    return value(_ENDS.split(fix.split(f"{name}=", 1)[1])[0], **names)


def quoted(fix: str, mark: str = "`") -> list[str]:
    """The strings between marks in a Fix line."""
    return re.findall(f"{mark}([^{mark}]+){mark}", fix)


def strategies(fix: str) -> Mapping[str, Any]:
    """The strategies of a Fix line that makes symbols exact: `"s": sx.Exact()`."""
    return value("{" + ", ".join(re.findall(r'"\w+": sx\.Exact\(\)', fix)) + "}")


def exact_ways(fix: str) -> list[dict[str, Any]]:
    """The options of an Exec by which a Fix line makes symbols exact, which is told last."""
    told = fix[fix.rindex("make `") :]
    return [{"on_unsupported": option(told, "on_unsupported")}, {"buckets": strategies(told)}]


def instead(fix: str) -> Callable[[Any], Any]:
    """What is to be written in place of a call, as a function of its `x`.

    The first code is it; what follows says what its names are.
    """
    code, *given = quoted(fix.split("; or make", 1)[0])
    body = [*map(ast.parse, given), ast.parse(f"result = {code}")]
    compiled = [compile(part, "<advice>", "exec") for part in body]

    def fn(x: Any) -> Any:
        names = NAMES | {"x": x, "detrend": jax.scipy.signal.detrend}
        for part in compiled:
            exec(part, names)
        return names["result"]

    return fn


def runs(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What an Exec of a function gives; by default `s` is axis 0 of each argument."""
    options = {"in_shapes": ("s, ...",) * len(args), "buckets": sx.Pow2(minimum=8)} | options
    return sx.Exec(fn, **options)(*args)


def rewritten(
    name: str,
    kind: str,
    error: type[sx.ShapeExecError],
    *,
    fn: Callable[[Any], Any],
    fix: str,
    mended: Callable[[Any], Any],
    x: Any,
    plain: Callable[[Any], Any],
) -> Advice:
    """A function, and what one makes of it who follows advice that is no code; `plain` is right."""
    return Advice(
        name,
        kind,
        error,
        lambda: runs(fn, x),
        fix,
        lambda told: runs(mended, x),
        lambda: plain(x),
    )
