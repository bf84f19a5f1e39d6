"""The command line of `benchmark shapes`. `_run` measures."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shapeexec._errors import ConfigError
from shapeexec.tools import _output
from shapeexec.tools._device import add_device, on_device
from shapeexec.tools._examples import sizes_of
from shapeexec.tools._machine import machine
from shapeexec.tools._strategies import split
from shapeexec.tools._target import ABOUT, Target, add_example, read_target
from shapeexec.tools.benchmark.models import CONFIGS, config_target
from shapeexec.tools.benchmark.shapes._run import COMPARED, benchmark_shapes

_ABOUT = f"""\
Runs calls of many shapes through jax.jit, which compiles each shape, and through strategies. Each
contestant begins with nothing compiled; then all take turns. All results are compared.

cold x: how many times as fast as jax.jit, compiles included; warm x: once all is compiled. of peak:
FLOP/s of the unpadded function, divided by the FLOP/s of a large matrix product in the same run.
a run: arguments, temporaries and results of the largest program, as XLA reports them. process: the
growth of the process' memory.

{ABOUT}"""


def add_command(names: Any) -> None:
    """Add `shapes` to the benchmarks of the command line."""
    parser = names.add_parser(
        "shapes",
        help="strategies beside jax.jit at exact shapes",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", metavar="FILE:FUNCTION", nargs="?", help="or --config")
    parser.add_argument(
        "--config",
        metavar="NAME",
        help=f"{', '.join(CONFIGS)}; default: the first",
    )
    add_example(parser)
    parser.add_argument(
        "--compare",
        nargs="+",
        default=COMPARED,
        metavar="STRATEGY",
        help=f"such as {','.join(COMPARED)}, the default; fit:16: sx.fit, for all symbols together",
    )
    parser.add_argument(
        "--keep",
        metavar="SYMBOL=STRATEGY",
        help="strategies of symbols that are not compared, if there are others; default b=pow2",
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds once compiled; default 3")
    parser.add_argument("--quick", action="store_true", help="a small model, for a run of seconds")
    add_device(parser)
    _output.add_json(parser)
    _output.add_plot(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    _output.check(options)
    compare = split(options.compare)
    with on_device(options.device) as device:
        target, shapes = target_of(options)
        sizes = sizes_of(options.shapes or shapes, target.defaults)
        where = {**machine(), "device": device.device_kind}
        calls = [target.arguments(**at) for at in sizes]
        report = benchmark_shapes(
            target.run,
            calls,
            compare=compare,
            keep=_kept(options.keep, target.run.plan(*calls[0]).sizes),
            rounds=options.rounds,
            tell=lambda line: print(line, flush=True),
        )
    print(", ".join(f"{name} {value}" for name, value in where.items()))
    print(f"{target.name}: {report}")

    def draw(path: Path) -> None:
        from shapeexec.tools.benchmark.shapes._plot import save_plot  # noqa: PLC0415 - optional

        save_plot(report, path)

    figures = {"command": options.command, "machine": where, "model": target.name}
    _output.write(options, {**figures, **report.to_dict()}, draw=draw)
    return int(not report.are_equal)


def target_of(options: argparse.Namespace) -> tuple[Target, str | None]:
    """The function of a command line, or a ready-made model, and its shapes.

    Raises:
        ConfigError: There is no such function or model, or the options name both.
    """
    if options.target is None:
        return config_target(options.config or "small_transformer", is_quick=options.quick)
    if options.config is not None:
        raise ConfigError(
            f"{options.target} and --config {options.config}: only one of them can run.",
            option="config",
            fix="pass one of them",
        )
    return read_target(options.target, example=options.example), None


def _kept(text: str | None, symbols: Mapping[str, int]) -> dict[str, str]:
    """The strategies of symbols that are not compared; by default `pow2` for a batch axis `b`."""
    if text is None:
        return {"b": "pow2"} if {"b"} < symbols.keys() else {}
    found: dict[str, str] = {}
    for item in text.split():
        symbol, equals, strategy = item.partition("=")
        if not (symbol and equals and strategy):
            raise ConfigError(
                f"--keep {item} is not SYMBOL=STRATEGY.", option="keep", fix='--keep "b=pow2"'
            )
        if symbol not in symbols:
            raise ConfigError(
                f"--keep {item}: there is no symbol {symbol!r}.",
                option="keep",
                got=f"symbols {', '.join(symbols)}",
                fix="name one of these, or leave --keep out",
            )
        found[symbol] = strategy
    if found.keys() == symbols.keys():
        raise ConfigError(
            f"--keep {text} leaves no symbol to compare strategies for.",
            option="keep",
            fix="keep fewer symbols",
        )
    return found
