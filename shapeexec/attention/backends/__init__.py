"""The back ends: one kernel family each, behind one protocol."""
