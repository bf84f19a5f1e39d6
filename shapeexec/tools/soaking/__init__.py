"""A soak that anyone can run: `python -m shapeexec soak --minutes 10 --threads 32`.

`_models` holds the functions, `_services` the options under which each is served, `_traffic` what
threads call, `_faults` what fails, `_damage` what happens to files, `_compare` what is right,
`_watch` what is measured meanwhile. `_run` does it, `_outcome` is what it finds, `_report` and
`_plot` show it.
"""
