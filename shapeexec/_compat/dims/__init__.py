"""Symbolic dims while a listener hears the questions that code asks of them.

Most of it stands in the place of methods and functions of JAX, NumPy and `math`, for as long as
anybody listens: `methods`, `functions`, `stand_ins`, `transposes` and `bounds` say what, `exchange`
puts it there. `listening` knows who listens; what the answers are is for `shape`.
"""
