"""The invariant: valid elements come first along each axis; what lies behind is unspecified."""

from shapeexec.masking import rules as _rules  # noqa: F401 - registers every rule
