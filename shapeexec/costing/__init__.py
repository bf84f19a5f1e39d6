"""What a traced program costs: FLOPs and bytes as polynomials in the sizes, and seconds.

It reads traces, and measures devices. Graphs are not known here.
"""

from shapeexec.costing._hardware import HardwareAware
from shapeexec.costing._model import Cost, CostLine, CostModel, bytes_needed, in_seconds, model_of
from shapeexec.costing._speed import Speed, speed_of
from shapeexec.costing._table import Row, Use, add_row

__all__ = [
    "Cost",
    "CostLine",
    "CostModel",
    "HardwareAware",
    "Row",
    "Speed",
    "Use",
    "add_row",
    "bytes_needed",
    "in_seconds",
    "model_of",
    "speed_of",
]
