"""Programs in processes of their own, for what a process decides once: how many devices it has."""

import os
import pathlib
import subprocess
import sys

_ROOT = pathlib.Path(__file__).parents[1]


def on_devices(count: int, *arguments: str) -> str:
    """What Python prints with these arguments, where there are as many CPU devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    own = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(_ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
