"""Run one JAX function at every input size, from a handful of compiled graphs."""
