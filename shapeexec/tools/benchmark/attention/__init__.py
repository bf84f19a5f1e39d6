"""The benchmark of attention: our function beside its rivals, in one run.

`_problems` defines the problems, `_contestant` who may compute it, `_ours` and `rivals` who does,
`_run` in which order, `_report` and `_plot` how it is shown.
"""
