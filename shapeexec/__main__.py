"""The command line: `python -m shapeexec TOOL --help`, and the script `shapeexec`.

What a tool measures is known to `tools`.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from shapeexec import _compat
from shapeexec._errors import ConfigError, ShapeExecError
from shapeexec.shape._attempt import OF_PLAIN
from shapeexec.tools import _doctor
from shapeexec.tools.benchmark import _command as benchmark
from shapeexec.tools.comparing import _command as comparing
from shapeexec.tools.explaining import _command as explaining
from shapeexec.tools.planning import _command as planning
from shapeexec.tools.profiling import _command as profiling
from shapeexec.tools.soaking import _command as soaking
from shapeexec.tools.tuning import _command as tuning


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a tool.

    Args:
        arguments: The command line; None: that of the process.

    Returns:
        The exit status: 0, 1 for a bad result, 2 for a bad call, 130 after Ctrl-C, and 141 where
        the reader of a pipe has gone.
    """
    parser = argparse.ArgumentParser(prog="python -m shapeexec", description=__doc__)
    tools = parser.add_subparsers(required=True, metavar="TOOL")
    _doctor.add_command(tools)
    benchmark.add_command(tools)
    tuning.add_command(tools)
    planning.add_command(tools)
    comparing.add_command(tools)
    explaining.add_command(tools)
    profiling.add_command(tools)
    soaking.add_command(tools)
    options = parser.parse_args(arguments)
    options.command = " ".join([parser.prog, *(sys.argv[1:] if arguments is None else arguments)])
    try:
        status = _run(options)
        sys.stdout.flush()
    except ShapeExecError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Python flushes once more at its end, and would print the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status


def _run(options: argparse.Namespace) -> int:
    """Run a tool; what the function at hand raises by itself is told as one error.

    Raises:
        ConfigError: The plain function fails at these sizes.
    """
    try:
        return options.run(options)
    except Exception as error:  # user code may raise anything
        whys = [note for note in getattr(error, "__notes__", ()) if note.startswith(OF_PLAIN)]
        if not whys:
            raise  # a bug, of ours or of JAX: its traceback is needed
        raise ConfigError(
            f"the function raises {type(error).__name__}: {error}",
            where=_compat.error_line(error),
            why=whys[-1].removeprefix("shapeexec: "),
            fix="make it run under jax.jit at these sizes, or pass others: --shapes",
        ) from error


if __name__ == "__main__":
    sys.exit(main())
