"""Translation validation: each symbolic trace is proven equal to the plain one at its sizes.

It compares jaxprs. How a trace is made, padded or compiled is not known here.
"""

from shapeexec.checking._check import Difference, Outcome, check, compare, difference, examine
from shapeexec.checking._handled import handled_exceptions
from shapeexec.checking._instantiate import EXPANSIONS, instantiate, register_expansion

__all__ = [
    "EXPANSIONS",
    "Difference",
    "Outcome",
    "check",
    "compare",
    "difference",
    "examine",
    "handled_exceptions",
    "instantiate",
    "register_expansion",
]
