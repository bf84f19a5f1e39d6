"""`FILE:FUNCTION` on a command line: a function of a file, and examples of its arguments.

The command decides what to do with the function.
"""

import argparse
import dataclasses
import functools
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shapeexec._errors import ConfigError
from shapeexec.execution import Exec
from shapeexec.tools._examples import specs_of_examples

ABOUT = """\
FILE:FUNCTION is a Python file and a name in it: an sx.Exec, or a function. The file also has a
function `example`, which takes sizes by keyword, each with a default, and returns a tuple: the
arguments of FUNCTION at these sizes. --shapes "b=1,3 s=5..8" calls it for each combination.
"""
_PREFIX = "shapeexec_target_"  # so that a file named random.py does not replace that module
EXAMPLE = "def example(b=3, s=100): return (params, np.ones((b, s), np.float32))"


@dataclasses.dataclass(frozen=True)
class Target:
    """A function that a command is about, with examples of its arguments.

    Attributes:
        name: Its name on the command line.
        given: What the file holds: an `Exec` or a function.
        example: Returns the arguments for sizes given by keyword.
        defaults: The default sizes of `example`.

    Example:
        >>> target = Target("mean", jnp.mean, lambda s=5: (np.ones(s, np.float32),), {"s": 5})
        >>> target.run.specs.in_shapes
        ('s',)
    """

    name: str
    given: Callable[..., Any]
    example: Callable[..., Any]
    defaults: Mapping[str, int]

    @functools.cached_property
    def run(self) -> Exec:
        """The Exec; where nothing names its specs, they are read from examples."""
        given = self.given
        if not isinstance(given, Exec):
            return Exec(given, specs_of_examples(self.arguments, self.defaults))
        if given.settings.in_shapes is not None or given.settings.annotated:
            return given
        return given.variant(in_shapes=specs_of_examples(self.arguments, self.defaults))

    @property
    def plain(self) -> Callable[..., Any]:
        """The function without buckets."""
        return self.given.settings.fn if isinstance(self.given, Exec) else self.given

    def arguments(self, **sizes: int) -> tuple[Any, ...]:
        """Make the arguments of a call.

        Args:
            **sizes: The sizes by symbol; a size that is left out has its default.

        Returns:
            The positional arguments.

        Raises:
            ConfigError: `example` has no such size, fails, or returns no tuple.
        """
        unknown = sizes.keys() - self.defaults.keys()
        if unknown:
            raise ConfigError(
                f"{self.name}: example() has no size {min(unknown)!r}.",
                option="shapes",
                got=f"sizes {', '.join(self.defaults) or 'none'}",
                fix=f"--shapes with these, or a parameter {min(unknown)}= of example()",
            )
        at = {**self.defaults, **sizes}
        try:
            found: Any = self.example(**at)
        except Exception as error:  # user code may raise anything
            raise ConfigError(
                f"{self.name}: example({_shown(at)}) raises {type(error).__name__}: {error}",
                option="example",
                where=_last_line(error),
                fix=EXAMPLE,
            ) from error
        if not isinstance(found, tuple):
            kind = type(found).__name__
            raise ConfigError(
                f"{self.name}: example({_shown(at)}) returns a {kind}, not a tuple.",
                option="example",
                fix="return (x,), with a comma, of a single argument",
            )
        return found  # pyright: ignore[reportUnknownVariableType] - of user code


def add_target(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add FILE:FUNCTION, `--example` and `--shapes` to a command.

    Args:
        parser: Of the command.
        *names: The names of the positional options; the first is required.
    """
    for number, name in enumerate(names):
        parser.add_argument(name, metavar="FILE:FUNCTION", nargs="?" if number else None)
    add_example(parser)


def add_example(parser: argparse.ArgumentParser) -> None:
    """Add `--example` and `--shapes` to a command.

    Args:
        parser: Of the command.
    """
    parser.add_argument(
        "--example", default="example", metavar="NAME", help="the function that makes examples"
    )
    parser.add_argument(
        "--shapes",
        metavar="SIZES",
        help='all combinations of "b=1,3 s=5..8"; default: the defaults of `example`',
    )


def read_target(text: str, *, example: str = "example") -> Target:
    """Read `FILE:FUNCTION`.

    Args:
        text: The path of a Python file, a colon, and a name in it.
        example: The name of the file's function of examples.

    Returns:
        The function, and examples of its arguments.

    Raises:
        ConfigError: There is no such file or name, the file fails, or it has no examples.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.py"
        >>> _ = path.write_text("import numpy as np; mean = np.mean; example = lambda s=3: (s,)")
        >>> read_target(f"{path}:mean").defaults
        {'s': 3}
    """
    file, colon, name = text.rpartition(":")
    if not (file and colon and name):
        raise ConfigError(
            f"{text!r} is not FILE:FUNCTION.", option="FILE:FUNCTION", fix="such as model.py:run"
        )
    module = _loaded(Path(file))
    given = _named(module, name, file=file)
    maker = _named(module, example, file=file, fix=EXAMPLE)
    return Target(text, given, maker, _defaults(maker, f"{file}:{example}"))


def _loaded(path: Path) -> Mapping[str, Any]:
    """Run a file, anew for each command, and return its names. It may import modules beside it."""
    if not path.is_file():
        raise ConfigError(
            f"there is no file {path}.", option="FILE:FUNCTION", fix="the path of a Python file"
        )
    spec = importlib.util.spec_from_file_location(f"{_PREFIX}{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(
            f"{path} is not a Python file.", option="FILE:FUNCTION", fix="a file named *.py"
        )
    module = importlib.util.module_from_spec(spec)
    beside = str(path.parent.resolve())
    if beside not in sys.path:
        sys.path.insert(0, beside)
    try:
        sys.modules[spec.name] = module  # dataclasses and pickles look for it there
        spec.loader.exec_module(module)
    except Exception as error:  # user code may raise anything
        raise ConfigError(
            f"{path} cannot be run: {type(error).__name__}: {error}",
            option="FILE:FUNCTION",
            where=_last_line(error),
            fix=f"make `python {path}` run",
        ) from error
    return vars(module)


def _named(module: Mapping[str, Any], name: str, *, file: str, fix: str = "") -> Any:
    value = module.get(name)
    if callable(value):
        return value
    known = [key for key, one in module.items() if callable(one) and not key.startswith("_")]
    is_there = "is not a function" if name in module else "is not there"
    raise ConfigError(
        f"{file}: {name} {is_there}.",
        option="FILE:FUNCTION",
        got=f"functions {', '.join(known) or 'none'}",
        fix=fix or "name one of these",
    )


def _defaults(maker: Any, name: str) -> dict[str, int]:
    parameters = inspect.signature(maker).parameters
    sizes = {key: one.default for key, one in parameters.items()}
    for key, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            is_empty = size is inspect.Parameter.empty
            default = "no default" if is_empty else f"the default {size!r:.40}"
            raise ConfigError(
                f"{name}: the size {key} has {default}.", option="example", fix=f"{key}=100"
            )
    return sizes


def _shown(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{symbol}={size}" for symbol, size in sizes.items())


def _last_line(error: Exception) -> str | None:
    if isinstance(error, SyntaxError):  # its frames are frames of the import
        line = (error.text or "").strip()
        return f"{line}  ({Path(error.filename or '').name}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].line}  ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
