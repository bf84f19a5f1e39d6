"""Tools for users' models, such as `validate`. Nothing else in the library imports them."""

from shapeexec.tools._doctor import Diagnosis, Finding, doctor
from shapeexec.tools._fit import fit
from shapeexec.tools._metrics import prometheus_metrics
from shapeexec.tools._optimize import optimize
from shapeexec.tools._validate import Validation, validate
from shapeexec.tools.planning import LengthPlan, LengthRow, plan_lengths, read_lengths

__all__ = [
    "Diagnosis",
    "Finding",
    "LengthPlan",
    "LengthRow",
    "Validation",
    "doctor",
    "fit",
    "optimize",
    "plan_lengths",
    "prometheus_metrics",
    "read_lengths",
    "validate",
]
