"""Calls: by a graph, or inside somebody's trace, where shapes are static, by the plain function.

`_runner` runs those that have a graph.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from shapeexec import _compat
from shapeexec.execution import _options
from shapeexec.execution._handle import cut_all
from shapeexec.execution._result import Result
from shapeexec.execution._runner import Runner
from shapeexec.execution._split import is_running


def called(runner: Runner, args: Sequence[Any], *, kwargs: Mapping[str, Any]) -> Any:
    """The result of a call: see `Exec.__call__`."""
    if not _compat.trace_state_clean():
        count_plain(runner, 1)
        args, kwargs = cut_all(args, kwargs)
        return runner.settings.fn(*args, **kwargs)
    result, call = runner.run(args, kwargs)
    return result.whole(call.nodes) if type(result) is Result else result


def count_plain(runner: Runner, count: int) -> None:
    """Count calls of the plain function in somebody's trace; warn of the first."""
    runner.store.count(plain_calls=count)
    if is_running() or not runner.store.claim_warning("plain"):
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
