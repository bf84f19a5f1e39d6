"""What an Exec has seen, as values: its analysis, and advice with evidence.

`_traffic` and `_stats` count, and `bucketing` finds better buckets.
"""
