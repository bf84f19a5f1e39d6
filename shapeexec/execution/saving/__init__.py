"""Graphs that outlast a process: what names them, their files, saving and loading.

_content      digests of traced programs
_fingerprint  all that decides which program XLA makes
_files        files that are written whole, and read with suspicion
_written      options as text
_saved        which saved graph a call runs in, and how it is loaded
_save         writing
_load         an Exec from a directory
"""
