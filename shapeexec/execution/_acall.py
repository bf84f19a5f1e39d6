"""Calls for asyncio: a thread waits for the graph and the device, and the event loop does not.

`_runner` runs the calls.
"""

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

from shapeexec import _compat


async def in_thread(call: Callable[[], Any]) -> Any:
    """The result of a call, computed when it is there.

    The loop's default executor runs it. JAX's configuration is in part a thread's own, so a call
    under `with jax.enable_x64()` and the like, or within a trace, runs in the loop's thread.

    Raises:
        Exception: Whatever the call raises.
    """
    if not _compat.trace_state_clean():
        return call()
    wanted = _compat.config_fingerprint()

    def run() -> tuple[Any] | None:
        if _compat.config_fingerprint() != wanted:
            return None
        return (_compat.block_until_ready(call()),)

    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(None, contextvars.copy_context().run, run)
    return call() if found is None else found[0]
