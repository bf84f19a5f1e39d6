"""`Exec` as a decorator: `bucketed`.

Nothing but the order of the arguments is decided here; `_exec` does the rest.
"""

from collections.abc import Callable, Sequence
from typing import Any

from shapeexec._errors import ConfigError
from shapeexec.execution import _options
from shapeexec.execution._exec import Buckets, Exec


def bucketed(
    in_shapes: Sequence[Any] | None = None, buckets: Buckets | None = None, **options: Any
) -> Callable[[Callable[..., Any]], Exec]:
    """Make an `Exec` of the decorated function.

    Args:
        in_shapes: See `Exec`.
        buckets: See `Exec`.
        **options: The other arguments of `Exec`, such as `constraints=`.

    Returns:
        A decorator that makes an `Exec` of a function or of a method.

    Raises:
        ConfigError: It is used without parentheses. The decorator raises what `Exec` raises.

    Example:
        >>> @bucketed(("b, s",), {"b": Pow2(), "s": Pow2()})
        ... def total(x):
        ...     return x.sum()
    """
    if callable(in_shapes):
        raise ConfigError(
            f"bucketed is given a function, {_options.name_of(in_shapes)}, in place of specs.",
            option="in_shapes",
            why="bucketed takes the arguments of Exec after fn, and returns a decorator",
            fix="@sx.bucketed(), with parentheses, or sx.Exec(fn)",
        )
    return lambda fn: Exec(fn, in_shapes, buckets=buckets, **options)
