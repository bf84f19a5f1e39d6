"""The ready-made models by name: their widths and depths, and the sizes they are called at.

To add a model, add a row to `CONFIGS`.
"""

# NumPy's generators have partly unknown types.
# pyright: reportUnknownMemberType=false

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from shapeexec._errors import ConfigError
from shapeexec.execution import Exec
from shapeexec.tools._target import Target
from shapeexec.tools.benchmark.models import _others
from shapeexec.tools.benchmark.models._transformer import TOKENS, Parts, init, transformer


@dataclasses.dataclass(frozen=True)
class Config:
    """A ready-made model.

    Attributes:
        kind: A key of `_KINDS`.
        width: The width of its layers.
        layers: The number of layers.
        heads: The number of attention heads.
        shapes: The sizes that it is called at, in the format of `--shapes`.
        quick: The sizes for a run of seconds, whose model is small.
    """

    kind: str
    width: int
    layers: int
    heads: int = 1
    shapes: str = "b=1,3,6 s=20,45,70,100,130,180,220,250"
    quick: str = "b=1,3 s=5,9"


CONFIGS = {
    "small_transformer": Config("transformer", width=128, layers=2, heads=4),
    "medium_transformer": Config("transformer", width=512, layers=6, heads=8),
    "large": Config("transformer", width=1024, layers=12, heads=16),
    "xlarge": Config("transformer", width=1536, layers=24, heads=24),
    "vision_cnn": Config(
        "cnn", width=32, layers=3, shapes="b=1,3,6 h=40,56,72 w=40,64,90", quick="b=2 h=5,9 w=6,9"
    ),
    "rnn": Config("rnn", width=128, layers=2),
    "dense_linear": Config("dense", width=512, layers=4, shapes="b=1..24", quick="b=1,3,5,6"),
}
_QUICK_WIDTH = 16


@dataclasses.dataclass(frozen=True)
class _Kind:
    """A model without its sizes.

    Attributes:
        fn: Returns for a config the function of parameters and data.
        init: Draws parameters.
        spec: The spec of the data.
        data: Returns for a width the static axes of the data; None: the data are tokens.
    """

    fn: Callable[[Config], Callable[..., Any]]
    init: Callable[..., Any]
    spec: str
    data: Callable[[int], tuple[int, ...]] | None


_KINDS = {
    "transformer": _Kind(
        lambda config: transformer(heads=config.heads, parts=Parts()), init, "b, s", None
    ),
    "cnn": _Kind(lambda _: _others.cnn, _others.init_cnn, "b, h, w, 3", lambda _: (3,)),
    "rnn": _Kind(lambda _: _others.rnn, _others.init_rnn, "b, s, _", lambda width: (width,)),
    "dense": _Kind(lambda _: _others.dense, _others.init_dense, "b, _", lambda width: (width,)),
}


def config_of(name: str, *, is_quick: bool) -> Config:
    """A ready-made model; if `is_quick`, a small one of its kind.

    Raises:
        ConfigError: There is no model of this name.
    """
    if name not in CONFIGS:
        raise ConfigError(
            f"--config {name}: there is no such model.", option="config", fix=", ".join(CONFIGS)
        )
    config = CONFIGS[name]
    if not is_quick:
        return config
    small = dataclasses.replace(config, width=_QUICK_WIDTH, heads=min(config.heads, 2))
    return dataclasses.replace(small, layers=1, shapes=config.quick)


def config_target(name: str, *, is_quick: bool = False) -> tuple[Target, str]:
    """A ready-made model with examples of its arguments, and the shapes it is called at.

    Args:
        name: A key of `CONFIGS`.
        is_quick: Whether to take a small model, which runs for seconds.

    Raises:
        ConfigError: There is no model of this name.
    """
    config = config_of(name, is_quick=is_quick)
    kind = _KINDS[config.kind]
    params = functools.cache(
        lambda: kind.init(jax.random.key(0), width=config.width, layers=config.layers)
    )

    def example(**sizes: int) -> tuple[Any, ...]:
        random = np.random.default_rng(list(sizes.values()))
        shape = tuple(sizes.values())
        if kind.data is None:
            return params(), random.integers(0, TOKENS, shape, np.int32)
        data = random.normal(size=shape + kind.data(config.width)).astype(np.float32)
        return params(), data

    symbols = [item.partition("=")[0] for item in config.shapes.split()]
    run = Exec(kind.fn(config), (None, kind.spec))
    return Target(name, run, example, dict.fromkeys(symbols, 8)), config.shapes
