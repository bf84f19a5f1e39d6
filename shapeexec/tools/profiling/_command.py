"""The command line of `profile`. `_profile` measures."""

import argparse
from pathlib import Path
from typing import Any

from shapeexec.tools import _output
from shapeexec.tools._device import add_device, on_device
from shapeexec.tools._examples import sizes_of
from shapeexec.tools._target import ABOUT, add_target, read_target
from shapeexec.tools.profiling._profile import profile

_ABOUT = f"""\
Reports for each bucket the time of making its graph, by part; the time of a call; the share of
padding; and the slowest operations. Writes a trace of jax.profiler for each bucket (TensorBoard,
XProf and Perfetto show them), and profile.md, into a directory.

{ABOUT}"""


def add_command(tools: Any) -> None:
    """Add `profile` to the tools of the command line.

    Args:
        tools: What `argparse.ArgumentParser.add_subparsers` returns.
    """
    parser = tools.add_parser(
        "profile",
        help="where the time goes, bucket by bucket",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_target(parser, "target")
    parser.add_argument(
        "--directory", type=Path, default=Path("profile"), help="for the traces; default profile"
    )
    parser.add_argument("--rounds", type=int, default=5, help="timings of each call; default 5")
    parser.add_argument("--quick", action="store_true", help="one round")
    add_device(parser)
    _output.add_json(parser)
    _output.add_plot(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    _output.check(options)
    with on_device(options.device):
        target = read_target(options.target, example=options.example)
        calls = [target.arguments(**at) for at in sizes_of(options.shapes, target.defaults)]
        rounds = 1 if options.quick else options.rounds
        found = profile(target.run, calls, directory=options.directory, rounds=rounds)
    print(found)
    page = options.directory / "profile.md"
    _output.write_text(page, found.to_markdown())
    print(f"page: {page}")

    def draw(path: Path) -> None:
        from shapeexec.tools.profiling._plot import save_plot  # noqa: PLC0415 - optional

        save_plot(found, path)

    _output.write(options, {"command": options.command, **found.to_dict()}, draw=draw)
    return 0
