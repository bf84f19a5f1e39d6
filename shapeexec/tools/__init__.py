"""What people run on their own models, and what nothing else in the library needs."""

from shapeexec.tools._validate import Validation, validate

__all__ = ["Validation", "validate"]
