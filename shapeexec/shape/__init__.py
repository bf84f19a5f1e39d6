"""Dimensions, shapes and specs, and tracing at symbolic sizes.

It wraps JAX's symbolic shapes. Padding, buckets and compiling are not known here.
"""

from shapeexec.shape._binding import BoundSpec
from shapeexec.shape._dim import BATCH, SEQ_LEN, Dim
from shapeexec.shape._pattern import Spec, parse_spec
from shapeexec.shape._propagate import eval_shape
from shapeexec.shape._shape import Shape
from shapeexec.shape._spec import compile_spec, default_in_shapes, default_kwarg_shapes
from shapeexec.shape._unknown import UNKNOWN

__all__ = [
    "BATCH",
    "SEQ_LEN",
    "UNKNOWN",
    "BoundSpec",
    "Dim",
    "Shape",
    "Spec",
    "compile_spec",
    "default_in_shapes",
    "default_kwarg_shapes",
    "eval_shape",
    "parse_spec",
]
