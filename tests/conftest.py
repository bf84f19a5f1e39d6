"""Profiles and devices for all tests."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from hypothesis import HealthCheck, settings

_QUIET = tuple(HealthCheck)
settings.register_profile("dev", max_examples=2, deadline=None, suppress_health_check=_QUIET)
settings.register_profile(
    "ci", max_examples=2, deadline=None, derandomize=True, suppress_health_check=_QUIET
)
settings.register_profile("deep", max_examples=200, deadline=None, suppress_health_check=_QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
