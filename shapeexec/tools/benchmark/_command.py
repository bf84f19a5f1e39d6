"""The command line of all benchmarks: `python -m shapeexec benchmark NAME`.

Each has a `_command` in its package.
"""

from typing import Any

from shapeexec.tools.benchmark.attention import _command as attention
from shapeexec.tools.benchmark.levels import _command as levels
from shapeexec.tools.benchmark.shapes import _command as shapes


def add_command(tools: Any) -> None:
    """Add `benchmark` to the tools of the command line.

    Args:
        tools: What `argparse.ArgumentParser.add_subparsers` returns.
    """
    parser = tools.add_parser("benchmark", help="measure the library, beside others")
    names = parser.add_subparsers(required=True, metavar="NAME")
    attention.add_command(names)
    shapes.add_command(names)
    levels.add_command(names)
