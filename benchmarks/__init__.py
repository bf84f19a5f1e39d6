"""Measurements; each runs by itself: `python -m benchmarks.compilations --json result.json`.

Ratios are taken within one run, between calls that take turns. Nothing here is asserted: a claim
says whether it held.
"""
