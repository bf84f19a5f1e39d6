"""The benchmark of attention: our function beside its rivals, in one run.

`_problems` defines the problems, `_contestant` the interface of contestants, `_ours` and `rivals`
the contestants, `_run` the order of measurements; `_report` and `_plot` show the results.
"""
