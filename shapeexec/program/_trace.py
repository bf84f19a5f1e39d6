"""`sx.trace`: a function at symbolic sizes, without a call.

`shape/_propagate` traces it, and `_read` makes the program.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shapeexec._errors import ConfigError, SpecError
from shapeexec.program._names import argument_names, function_name
from shapeexec.program._program import Program
from shapeexec.program._read import read
from shapeexec.shape._propagate import trace_shapes


def trace(fn: Callable[..., Any], *specs: Any, constraints: str | Iterable[str] = ()) -> Program:
    """List the operations of `fn` at symbolic sizes, with the shapes of operands and results.

    Nothing is compiled. `Exec.trace` gives the program of one call, with its masks.

    Args:
        fn: A function of arrays and trees of arrays.
        *specs: Its arguments, as `eval_shape` takes them, with dtypes and with dims that may be
            symbolic.
        constraints: A fact about the sizes that `fn` needs, such as `"s >= 2"`, or several.

    Returns:
        The program, to `print`.

    Raises:
        ConfigError: `fn` cannot be called.
        SpecError: A spec is malformed, or there are too many or too few for `fn`.
        InconclusiveShapeError: The program depends on a comparison that only known sizes decide.

    Example:
        >>> program = trace(lambda x: x.reshape(-1), Shape("float32", "b", "s"))
        >>> print(program.results[0].shape)
        f32[b*s]
    """
    if not callable(fn):
        raise ConfigError(
            f"trace: {fn!r} cannot be called.",
            option="fn",
            fix='the function first, then a spec per argument: sx.trace(f, sx.Shape("float32", '
            '"b", "s"))',
        )
    _check_count(fn, specs)
    traced, shapes = trace_shapes(fn, specs, constraints=constraints)
    names = argument_names(fn, shapes, kwargs={})
    return read(traced, function_name(fn), arguments=names, moment=None)


def _check_count(fn: Callable[..., Any], specs: Sequence[Any]) -> None:
    try:
        bind = inspect.signature(fn).bind
    except (TypeError, ValueError):  # it has no signature
        return
    try:
        bind(*specs)
    except TypeError as error:
        raise SpecError(
            f"trace: {len(specs)} specs do not fit {function_name(fn)}{inspect.signature(fn)}.",
            path="specs",
            why=str(error),
            fix="one spec for each argument of the function, in their order",
        ) from None
