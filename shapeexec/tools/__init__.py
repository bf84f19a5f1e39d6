"""Tools for users' models, such as `validate`. Nothing else in the library imports them."""

from shapeexec.tools._fit import fit
from shapeexec.tools._metrics import prometheus_metrics
from shapeexec.tools._validate import Validation, validate

__all__ = ["Validation", "fit", "prometheus_metrics", "validate"]
