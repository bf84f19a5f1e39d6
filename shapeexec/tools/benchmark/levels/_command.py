"""The command line of `benchmark levels`. `_run` measures."""

import argparse
from pathlib import Path
from typing import Any

from shapeexec._errors import ConfigError
from shapeexec.tools import _output
from shapeexec.tools._device import add_device, on_device
from shapeexec.tools._machine import machine
from shapeexec.tools.benchmark.levels._run import benchmark_levels

_ABOUT = """\
A transformer op by op with a loop over examples, with jax.jit at exact shapes, compiled ahead, in
an Exec, with the attention of this library, with a layer norm and a GELU in Pallas, and with
options of XLA. All results are compared. Kernels that Pallas interprets (except on a GPU) are not
timed.
"""


def add_command(names: Any) -> None:
    """Add `levels` to the benchmarks of the command line."""
    parser = names.add_parser(
        "levels",
        help="a model from op by op to kernels of one's own",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config",
        metavar="NAME",
        default="small_transformer",
        help="small_transformer (the default), medium_transformer, large, xlarge",
    )
    parser.add_argument("--shapes", metavar="SIZES", help='all combinations of "b=2,4 s=50..52"')
    parser.add_argument("--buckets", default="pow2", metavar="STRATEGY", help="default pow2")
    parser.add_argument(
        "--options", metavar="NAME=VALUE,...", help="options of XLA; default: one for this platform"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds once compiled; default 3")
    parser.add_argument("--quick", action="store_true", help="a small model, for a run of seconds")
    add_device(parser)
    _output.add_json(parser)
    _output.add_plot(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    _output.check(options)
    with on_device(options.device) as device:
        where = {**machine(), "device": device.device_kind}
        report = benchmark_levels(
            options.config,
            shapes=options.shapes,
            buckets=options.buckets,
            options=None if options.options is None else _options(options.options),
            rounds=options.rounds,
            is_quick=options.quick,
            tell=lambda line: print(line, flush=True),
        )
    print(", ".join(f"{name} {value}" for name, value in where.items()))
    print(report)

    def draw(path: Path) -> None:
        from shapeexec.tools.benchmark.levels._plot import save_plot  # noqa: PLC0415 - optional

        save_plot(report, path)

    figures = {"command": options.command, "machine": where, **report.to_dict()}
    _output.write(options, figures, draw=draw)
    return int(not report.are_equal)


def _options(text: str) -> dict[str, str | int | bool]:
    found: dict[str, str | int | bool] = {}
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if not (name and equals and value):
            raise ConfigError(
                f"--options {item} is not NAME=VALUE.",
                option="options",
                fix="--options xla_cpu_prefer_vector_width=512",
            )
        truth = {"true": True, "false": False}.get(value.lower())
        found[name] = truth if truth is not None else int(value) if value.isdecimal() else value
    return found
