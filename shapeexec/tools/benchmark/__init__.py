"""Benchmarks that anyone can run: `python -m shapeexec benchmark NAME`.

Each is a package beside this module.
"""

from shapeexec.tools.benchmark._contest import ContestRow

__all__ = ["ContestRow"]
