"""The command line of `explain`. `Exec.explain` explains."""

import argparse
import html
import json
from pathlib import Path
from typing import Any

from shapeexec.program._html import html as table_of
from shapeexec.tools import _output
from shapeexec.tools._device import add_device, on_device
from shapeexec.tools._examples import shown, sizes_of
from shapeexec.tools._target import ABOUT, add_target, read_target

_ABOUT = f"""\
Prints the plan of a call, its guards, and each mask with the reason and the line of code. Nothing
is compiled or run.

{ABOUT}"""
_PAGE = '<!doctype html>\n<meta charset="utf-8">\n<title>{title}</title>\n{body}\n'


def add_command(tools: Any) -> None:
    """Add `explain` to the tools of the command line.

    Args:
        tools: What `argparse.ArgumentParser.add_subparsers` returns.
    """
    parser = tools.add_parser(
        "explain",
        help="the masks of a call, and why they are there",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_target(parser, "target")
    parser.add_argument("--program", action="store_true", help="print all equations, too")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the programs as a page")
    add_device(parser)
    _output.add_json(parser, "the programs")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    _output.check(options)
    with on_device(options.device):
        target = read_target(options.target, example=options.example)
        found = {
            shown(at): target.run.explain(*target.arguments(**at))
            for at in sizes_of(options.shapes, target.defaults)
        }
    for text in found.values():
        print(text)
        if options.program:
            print(text.program)
    programs = {at: one.program for at, one in found.items()}
    if options.html is not None:
        parts = [f"<h2>{html.escape(at)}</h2>\n{table_of(one)}" for at, one in programs.items()]
        page = _PAGE.format(title=html.escape(target.name), body="\n".join(parts))
        _output.write_text(options.html, page)
    figures = {at: json.loads(one.to_json()) for at, one in programs.items()}
    _output.write(options, {"command": options.command, "programs": figures})
    return 0
