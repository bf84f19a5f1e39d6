"""`tune`: measure the tilings that attention can have on this device, and keep what gains.

`_tune` chooses and keeps, `_trial` measures, `_report` tells; where tilings are kept is known to
the back ends.
"""
