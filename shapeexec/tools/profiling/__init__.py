"""Reports where the time of an Exec goes, bucket by bucket: `python -m shapeexec profile`.

The times of XLA's operations are read from traces of `jax.profiler`.
"""

from shapeexec.tools.profiling._profile import profile
from shapeexec.tools.profiling._report import Profile, ProfileRow

__all__ = ["Profile", "ProfileRow", "profile"]
