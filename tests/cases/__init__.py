"""The table of programs that drives the tests of rules, of Exec and of the docs.

One module per family; each lists its programs as `CASES`.
"""

import importlib
import pkgutil

from tests.cases._case import Case

ALL: tuple[Case, ...] = tuple(
    case
    for module in pkgutil.iter_modules(__path__)
    if not module.name.startswith("_")
    for case in importlib.import_module(f"{__name__}.{module.name}").CASES
)

__all__ = ["ALL", "Case"]
