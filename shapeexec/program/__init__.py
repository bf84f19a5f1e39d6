"""The shape IR to look at: each operation with its symbolic shapes, masks and the user's line."""

from shapeexec.program._content import Equation
from shapeexec.program._program import Program
from shapeexec.program._trace import trace

__all__ = ["Equation", "Program", "trace"]
