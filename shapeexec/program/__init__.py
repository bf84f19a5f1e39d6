"""Programs to print and search: each operation with symbolic shapes, masks and the user's line.

It reads traces and the notes of a graph. Tracing and compiling are not known here.
"""

from shapeexec.program._content import Equation
from shapeexec.program._program import Program
from shapeexec.program._trace import trace

__all__ = ["Equation", "Program", "trace"]
