"""Calls inside somebody's trace, where shapes are static and the plain function runs.

They are only counted here; `_exec` runs the function.
"""

import warnings

from shapeexec import _compat
from shapeexec.execution import _options
from shapeexec.execution._runner import Runner
from shapeexec.execution._split import is_running


def count_plain(runner: Runner, count: int) -> None:
    """Count calls of the plain function in somebody's trace; warn of the first."""
    runner.store.count(plain_calls=count)
    if is_running() or not runner.store.is_first("plain"):
        return  # what runs in another Exec is padded there
    called = _options.name_of(runner.settings.fn)
    name = called if called.isidentifier() else "fn"
    file, line = _compat.caller_place() or ("<unknown>", 0)
    warnings.warn_explicit(
        f"shapeexec: the Exec of {called} was called inside a transformation (jit, grad, vmap, "
        "scan, ...), where shapes are fixed: the plain function runs, nothing is padded, and "
        "each size is compiled anew.\n"
        f"  Where: {_compat.describe_line(f'{file}:{line}')}\n"
        f"  Fix:   transform first, pad last: Exec(jax.grad({name})), not "
        f"jax.grad(Exec({name})); for jit, use the Exec in its place",
        RuntimeWarning,
        file,
        line,
    )
