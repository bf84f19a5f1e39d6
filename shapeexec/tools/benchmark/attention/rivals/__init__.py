"""The rivals: each module here is one, and its `rival` is a `Contestant`.

`_run` knows which problems they are given, and times them.
"""

import importlib
import pkgutil

from shapeexec.tools.benchmark.attention._contestant import Contestant


def rivals() -> tuple[Contestant, ...]:
    """All of them, installed or not, by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(
        importlib.import_module(f"{__name__}.{name}").rival
        for name in names
        if not name.startswith("_")
    )
