"""The command line: `python -m shapeexec TOOL --help`, and the script `shapeexec`.

What a tool measures is known to `tools`.
"""

import argparse
import sys
from collections.abc import Sequence

from shapeexec._errors import ShapeExecError
from shapeexec.tools import _doctor
from shapeexec.tools.benchmark import _command as benchmark
from shapeexec.tools.comparing import _command as comparing
from shapeexec.tools.explaining import _command as explaining
from shapeexec.tools.planning import _command as planning
from shapeexec.tools.profiling import _command as profiling
from shapeexec.tools.soak import _command as soak


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a tool; return what the process exits with: 0, 1 for a bad result, 2 for a bad call.

    Args:
        arguments: The command line; None: that of the process.
    """
    parser = argparse.ArgumentParser(prog="python -m shapeexec", description=__doc__)
    tools = parser.add_subparsers(required=True, metavar="TOOL")
    _doctor.add_command(tools)
    benchmark.add_command(tools)
    planning.add_command(tools)
    comparing.add_command(tools)
    explaining.add_command(tools)
    profiling.add_command(tools)
    soak.add_command(tools)
    options = parser.parse_args(arguments)
    options.command = " ".join([parser.prog, *(sys.argv[1:] if arguments is None else arguments)])
    try:
        return options.run(options)
    except ShapeExecError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
