"""The back ends: one kernel family each, behind one protocol.

`_registry` names them, and `_choose` picks one for a call.
"""
