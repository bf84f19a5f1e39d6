"""A byte-level transformer serves real text of every length: `python -m demo`.

`model` knows nothing of padding, `text` makes the requests, `contest` runs them, `report` shows it.
"""
