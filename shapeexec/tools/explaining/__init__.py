"""`python -m shapeexec explain`: what `Exec.explain` and `Exec.trace` print, from a command line.

There is nothing else to it: masks and their reasons are known to `execution`.
"""
