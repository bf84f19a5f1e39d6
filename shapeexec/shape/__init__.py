"""Dimensions, shapes and specs: what people write of the sizes of their arguments."""

from shapeexec.shape._binding import BoundSpec
from shapeexec.shape._dim import BATCH, SEQ_LEN, UNKNOWN, Dim
from shapeexec.shape._pattern import Spec, parse_spec
from shapeexec.shape._propagate import eval_shape
from shapeexec.shape._shape import Shape
from shapeexec.shape._spec import compile_spec, default_in_shapes, default_kwarg_shapes

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
