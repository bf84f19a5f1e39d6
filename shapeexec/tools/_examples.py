"""Sizes of examples: parsed from a command line, and turned into specs by comparing examples.

It knows nothing of files and functions.
"""

# The arguments of users' functions may be of any type.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from shapeexec._errors import ConfigError

_MOST = 10_000
_FORM = '"b=1,3 s=5..8", each with sizes of 1 or more; a..b: all from a to b'
_STEPS = (1, 2)


def sizes_of(text: str | None, defaults: Mapping[str, int]) -> list[dict[str, int]]:
    """All combinations of the sizes that a string names.

    Args:
        text: A string such as `"b=1,3 s=5..8"`; None: the defaults.
        defaults: The sizes of symbols that `text` does not name.

    Raises:
        ConfigError: `text` cannot be parsed, names unknown symbols, or gives too many combinations.
    """
    given: dict[str, list[int]] = {}
    for item in (text or "").split():
        symbol, equals, sizes = item.partition("=")
        if symbol not in defaults or symbol in given:
            raise ConfigError(
                f"--shapes {item}: {symbol!r} is given twice."
                if symbol in given
                else f"--shapes {item}: there is no size {symbol!r}.",
                option="shapes",
                got=f"sizes {', '.join(defaults) or 'none'}",
                fix=_FORM,
            )
        given[symbol] = _numbers(item, sizes if equals else "")
    lists = [given.get(symbol, [size]) for symbol, size in defaults.items()]
    count = math.prod(map(len, lists))
    if count > _MOST:
        raise ConfigError(
            f"--shapes {text}: {count} combinations.", option="shapes", fix=f"at most {_MOST}"
        )
    return [dict(zip(defaults, each, strict=True)) for each in itertools.product(*lists)]


def _numbers(item: str, text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        ends = (first, last) if dots else (first, first)
        if not all(end.isdecimal() and int(end) for end in ends) or int(ends[0]) > int(ends[1]):
            raise ConfigError(
                f"--shapes {item}: {part!r} is not a size.", option="shapes", fix=_FORM
            )
        found += range(int(ends[0]), int(ends[1]) + 1)
    return list(dict.fromkeys(found))


def shown(sizes: Mapping[str, int]) -> str:
    """Sizes as a string: `b=3, s=100`."""
    return ", ".join(f"{symbol}={size}" for symbol, size in sizes.items()) or "no sizes"


def specs_of_examples(
    example: Callable[..., tuple[Any, ...]], sizes: Mapping[str, int]
) -> tuple[Any, ...]:
    """Find the specs by comparing examples: which axes grow with which size, and how fast.

    Args:
        example: Returns the arguments for sizes given by keyword.
        sizes: The sizes of the first example.

    Raises:
        ConfigError: An axis is not a sum of multiples of the sizes, or the arguments change in
            another way.
    """
    base = example(**sizes)
    leaves, tree = jax.tree.flatten(base)
    dims = [list(np.shape(leaf)) for leaf in leaves]
    slopes = [[dict[str, int]() for _ in shape] for shape in dims]
    for symbol, step in itertools.product(sizes, _STEPS):
        others, other_tree = jax.tree.flatten(example(**{**sizes, symbol: sizes[symbol] + step}))
        shapes = [list(np.shape(leaf)) for leaf in others]
        if other_tree != tree or list(map(len, shapes)) != list(map(len, dims)):
            raise _refused(symbol, "the arguments have another structure")
        for i, j in ((i, j) for i, shape in enumerate(dims) for j in range(len(shape))):
            grown = shapes[i][j] - dims[i][j]
            if step == _STEPS[0]:
                slopes[i][j][symbol] = grown
            elif grown != step * slopes[i][j][symbol]:
                raise _refused(symbol, f"axis {j} of array {i} is not a multiple of it")
    texts = [
        ", ".join(_dim(size, slope, sizes=sizes) for size, slope in zip(*pair, strict=True))
        if any(any(slope.values()) for slope in pair[1])
        else None
        for pair in zip(dims, slopes, strict=True)
    ]
    return tuple(map(_spec, jax.tree.unflatten(tree, [text or _STATIC for text in texts])))


_STATIC = ""


def _spec(tree: Any) -> Any:
    """The spec of an argument; None if none of its axes changes."""
    if all(text == _STATIC for text in jax.tree.leaves(tree)):
        return None
    return jax.tree.map(lambda text: text or None, tree)


def _dim(size: int, slope: Mapping[str, int], *, sizes: Mapping[str, int]) -> str:
    rest = size - sum(factor * sizes[symbol] for symbol, factor in slope.items())
    terms = [
        symbol if factor == 1 else f"{factor}*{symbol}"
        for symbol, factor in slope.items()
        if factor
    ]
    text = " + ".join(terms)
    if not text:
        return str(size)
    return f"{text} {'+' if rest > 0 else '-'} {abs(rest)}" if rest else text


def _refused(symbol: str, why: str) -> ConfigError:
    return ConfigError(
        f"no spec describes how the arguments change with example({symbol}=).",
        option="example",
        why=why,
        fix='name the specs: FUNCTION = sx.Exec(fn, (None, "b, s"))',
    )
