"""The command line of `validate`. `_compare` compares."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from shapeexec._errors import ConfigError, ValidationError
from shapeexec.execution import Exec
from shapeexec.tools import _output
from shapeexec.tools._device import add_device, on_device
from shapeexec.tools._examples import shown, sizes_of
from shapeexec.tools._target import ABOUT, add_target, read_target
from shapeexec.tools._validate import validate
from shapeexec.tools.comparing._compare import compare

_ABOUT = f"""\
Compares an Exec with its function, or a function with another implementation of it: trees,
shapes, dtypes, values and gradients up to rounding, and speed. For an Exec it also runs
sx.validate, which fills padding with NaN, infinities and garbage.

{ABOUT}
Ends with 0 if all is equal, and with 1 if something differs.
"""


def add_command(tools: Any) -> None:
    """Add `validate` to the tools of the command line.

    Args:
        tools: What `argparse.ArgumentParser.add_subparsers` returns.
    """
    parser = tools.add_parser(
        "validate",
        help="an Exec beside its function, or two implementations",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_target(parser, "target", "other")
    parser.add_argument(
        "--rounds", type=int, default=5, help="sets of sizes of sx.validate, and turns; default 5"
    )
    parser.add_argument("--quick", action="store_true", help="one round, and no gradients")
    add_device(parser)
    _output.add_json(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    _output.check(options)
    rounds = 1 if options.quick else options.rounds
    if rounds < 1:
        raise ConfigError(f"--rounds {rounds} is not >= 1.", option="rounds", fix="--rounds 5")
    with on_device(options.device):
        target = read_target(options.target, example=options.example)
        sizes = sizes_of(options.shapes, target.defaults)
        calls = {shown(at): target.arguments(**at) for at in sizes}
        gradients = not options.quick
        padding = None
        if options.other is None:
            one, other, names = target.run, target.plain, ("Exec", "jax.jit")
            padding = _padding(one, calls, rounds=rounds, gradients=gradients)
        else:
            one, other = target.given, read_target(options.other, example=options.example).given
            names = (options.target.rpartition(":")[2], options.other.rpartition(":")[2])
        found = compare(one, other, calls=calls, gradients=gradients, rounds=rounds, names=names)
    print(found)
    _output.write(options, {"command": options.command, "padding": padding, **found.to_dict()})
    return int(padding is not None or not found.is_equal)


def _padding(
    run: Exec, calls: Mapping[str, Sequence[Any]], *, rounds: int, gradients: bool
) -> str | None:
    """The error if padding changes a result; None: padding changes nothing."""
    first = next(iter(calls.values()))
    try:
        report = validate(run, *first, rounds=rounds, gradients=gradients)
    except ValidationError as error:
        print(error)
        return str(error)
    print(f"padding changes nothing: {report}" if report.comparisons else f"padding: {report}")
    return None
