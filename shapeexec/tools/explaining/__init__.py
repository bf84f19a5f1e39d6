"""`python -m shapeexec explain`: prints `Exec.explain` and `Exec.trace` from a command line.

`execution` knows the masks and their reasons.
"""
