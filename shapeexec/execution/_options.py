"""The options of an Exec, each checked and brought into one form.

`_settings` puts them together.
"""

import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from shapeexec._errors import (
    BucketOverflowError,
    ConfigError,
    ShapeExecError,
    SpecError,
    StrategyError,
)
from shapeexec.bucketing import Strategy, as_strategy, check_laws
from shapeexec.bucketing._laws import checked_range
from shapeexec.execution._narrow import is_frozenset, is_iterable, is_listed, is_mapping, is_tuple
from shapeexec.shape import UNKNOWN, Dim
from shapeexec.shape._dim import any_symbolic, is_unknown, shapes_text, symbols_of
from shapeexec.shape._forms import normal_by_name, normal_by_position
from shapeexec.shape._guards import Guard, parse_constraints
from shapeexec.shape._unknown import names_for


def as_strategies(buckets: Any) -> Strategy | dict[str, Strategy]:
    """One strategy for all symbols, or one per symbol, whose laws hold.

    Args:
        buckets: A strategy, or a mapping to strategies from names, from dims that are one symbol,
            and from `UNKNOWN`, which stands for all unknown sizes.

    Raises:
        ConfigError: A value is not a strategy, a key not a symbol, or a symbol has two strategies.
        StrategyError: A strategy breaks a law.
    """
    if not is_mapping(buckets):
        return as_lawful_strategy("buckets", buckets)
    strategies: dict[str, Strategy] = {}
    for key, given in buckets.items():
        symbol = _as_symbol(key)
        if symbol in strategies:
            raise ConfigError(
                f"buckets: `{symbol}` has two strategies.",
                option="buckets",
                got=", ".join(map(repr, buckets)),
                fix="name each symbol once, as a string or as a Dim",
            )
        strategies[symbol] = as_lawful_strategy(
            "buckets", given, whose=f"the strategy of `{symbol}`"
        )
    return strategies


def _as_symbol(key: Any) -> str:
    if is_unknown(key):
        return UNKNOWN.name
    symbol = key.name if isinstance(key, Dim) else key
    if isinstance(symbol, str) and symbol.isidentifier():
        return symbol
    known = sorted(symbols_of(key)) if isinstance(key, Dim) else ()
    raise ConfigError(
        f"buckets: {key!r} is not a symbol.",
        option="buckets",
        why="an expression follows from its symbols, and these have buckets" if known else None,
        fix=f"buckets={{{', '.join(f'{name!r}: sx.Pow2()' for name in known or 'b')}, ...}}"
        ", by name, by a Dim of one symbol, or by sx.UNKNOWN",
    )


def as_lawful_strategy(name: str, given: Any, *, whose: str = "the strategy") -> Strategy:
    """The strategy given for an option, whose laws hold.

    Args:
        name: The option.
        given: Its value.
        whose: The name of the strategy in errors.

    Raises:
        ConfigError: It is not a strategy.
        StrategyError: It breaks a law, or raises.
    """
    strategy = as_strategy(given, name)
    try:
        check_laws(strategy)
    except ShapeExecError:
        raise
    except Exception as error:  # the strategy may be the user's, and raise anything
        raise strategy_raised(whose, strategy, size=None, error=error) from error
    return strategy


def as_size(size: Any) -> int:
    """An integer, NumPy's and JAX's included.

    Raises:
        TypeError: It is not an integer, or a bool.
    """
    if isinstance(size, bool):
        raise TypeError  # as operator.index() does; callers name the option
    return operator.index(size)


def range_of(symbol: str, strategy: Strategy, *, size: int) -> tuple[int, int]:
    """The least size in the bucket of a symbol's size, and the bucket.

    Raises:
        BucketOverflowError: The size has no bucket.
        StrategyError: The strategy breaks a law, or raises.
    """
    try:
        return checked_range(strategy, size)
    except BucketOverflowError as error:
        raise error.of(symbol) from None
    except ShapeExecError:
        raise
    except Exception as error:  # the strategy may be the user's, and raise anything
        whose = f"the strategy of `{symbol}`"
        raise strategy_raised(whose, strategy, size=size, error=error) from error


def strategy_raised(
    whose: str, strategy: Strategy, *, size: int | None, error: Exception
) -> StrategyError:
    """The error for a strategy that raises an exception of its own.

    Args:
        whose: `the strategy of `s``, and the size where it is known.
        strategy: The strategy.
        size: The size that a call needs a bucket for; None: there is no call.
        error: Its exception; the last note names the size, if `bucket` raised it.
    """
    notes = [note.strip() for note in getattr(error, "__notes__", ()) if "shapeexec" in note]
    return StrategyError(
        f"{whose} raised {type(error).__name__}: {error}",
        strategy=strategy,
        size=size,
        bucket=None,
        where=(notes or [f"{strategy!r}"])[-1].removeprefix("Where: "),
        fix="return a bucket for each size from 1 on; use a Ladder or maximum= for an end",
    )


def as_in_shapes(in_shapes: Any) -> tuple[Any, ...] | None:
    """The specs by position in their normal form: strings, shapes and None; None: the defaults.

    Raises:
        SpecError: A spec is malformed, or one spec is given instead of a sequence of them.
    """
    return None if in_shapes is None else normal_by_position(in_shapes)


def as_kwarg_shapes(kwarg_shapes: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The specs by keyword in their normal form; None if none are given.

    Raises:
        SpecError: One is malformed.
    """
    return None if kwarg_shapes is None else normal_by_name(kwarg_shapes)


def as_numbers(name: str, given: int | Iterable[int]) -> tuple[int, ...]:
    """Positions of arguments.

    Raises:
        ConfigError: They are no integers of at least 0.
    """
    try:
        numbers = (given,) if isinstance(given, int) else tuple(given)
    except TypeError:
        numbers = (None,)
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in numbers):
        raise ConfigError(
            f"{name}={given!r} are not positions of arguments.",
            option=name,
            fix=f"{name}=1 or {name}=(0, 2)",
        )
    return tuple(n for n in numbers if n is not None)


def by_number_and_name(
    fn: Callable[..., Any], *, numbers: tuple[int, ...], names: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Arguments by their numbers and by their names, each given by either, as for `jax.jit`."""
    either = [
        (number, parameter.name)
        for number, parameter in enumerate(parameters_of(fn))
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        and (number in numbers or parameter.name in names)
    ]
    numbers = (*numbers, *(number for number, _ in either))
    names = (*names, *(name for _, name in either))
    return tuple(sorted(set(numbers))), tuple(sorted(set(names)))


def check_arguments(fn: Callable[..., Any], **options: Iterable[int | str]) -> None:
    """Check that options name arguments that a function has.

    Args:
        fn: The function.
        **options: By option the positions or the names of arguments.

    Raises:
        ConfigError: It has no such argument.
    """
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # a callable without a signature
        return
    kinds = [parameter.kind for parameter in parameters.values()]
    count = sum(kind in POSITIONAL for kind in kinds)
    for option, given in options.items():
        for argument in given:
            if isinstance(argument, int):
                known = inspect.Parameter.VAR_POSITIONAL in kinds or argument < count
            else:
                known = inspect.Parameter.VAR_KEYWORD in kinds or argument in parameters
            if not known:
                raise ConfigError(
                    f"{option}: the function has no argument {argument!r}.",
                    option=option,
                    got=f"{getattr(fn, '__name__', fn)}({', '.join(parameters)})",
                    fix="name one of these, positions counted from 0",
                )


def as_texts(name: str, given: Any) -> tuple[str, ...]:
    """Names of arguments, given as one or several.

    Raises:
        ConfigError: They are something else.
    """
    texts = tuple(given) if is_iterable(given) and not isinstance(given, str) else (given,)
    if not all(isinstance(text, str) for text in texts):
        raise ConfigError(
            f"{name}={given!r} are not strings.",
            option=name,
            fix=f'{name}="flag", or {name}=("flag", "mode")',
        )
    return texts


def as_constraints(given: Any) -> tuple[Guard, ...]:
    """Facts about sizes, given as one text or several, or as they were read before; None: none.

    Raises:
        ConfigError: They are something else, or one is no comparison of sizes.
    """
    if is_listed(given) and any(isinstance(fact, Guard) for fact in given):
        given = [str(fact) if isinstance(fact, Guard) else fact for fact in given]
    return parse_constraints(given)


def check_kind(name: str, given: Any, *, kind: type, fix: str) -> None:
    """Check that an option is None or of a kind.

    Raises:
        ConfigError: It is not.
    """
    if given is not None and not isinstance(given, kind):
        raise ConfigError(f"{name}={given!r} is not a {kind.__name__}.", option=name, fix=fix)


def check_choice(name: str, given: Any, *, choices: tuple[str, ...]) -> None:
    """Check that an option is one of a few strings.

    Raises:
        ConfigError: It is not.
    """
    if given not in choices:
        *others, last = map(repr, choices)
        texts = f"{', '.join(others)} or {last}".replace("'", '"')
        raise ConfigError(f"{name}={given!r} is not known.", option=name, fix=f"{name}={texts}")


def check_known(shapes: Sequence[Any], *, where: str, why: str, fix: str) -> None:
    """Refuse shapes whose sizes are symbolic.

    Args:
        shapes: The shapes of arrays.
        where: Where a symbolic size comes from.
        why: Why a size is needed there.
        fix: How to fix it.

    Raises:
        SpecError: A size is symbolic.
    """
    if any_symbolic(shapes):
        raise SpecError(
            f"the sizes are symbolic here, {where}.", got=shapes_text(shapes), why=why, fix=fix
        )


POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def parameters_of(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function; none of one without a signature."""
    try:
        return [*inspect.signature(fn).parameters.values()]
    except (TypeError, ValueError):
        return []


def name_of(fn: Any) -> str:
    """The name of a function, in one line."""
    if isinstance(fn, functools.partial):
        return f"partial({name_of(fn.func)})"
    name = getattr(fn, "__qualname__", None)
    return name if isinstance(name, str) else type(fn).__qualname__


def typed(value: object) -> Hashable:
    """A key for a static value that tells 1, 1.0 and True apart, and 0.0 and -0.0.

    This includes values inside tuples, frozen sets and dataclasses.
    """
    if is_tuple(value):
        return (type(value), tuple(map(typed, value)))
    if is_frozenset(value):
        return (type(value), frozenset(map(typed, value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = (getattr(value, field.name, None) for field in dataclasses.fields(value))
        return (type(value), value, tuple(map(typed, held)))
    return (type(value), value.hex() if isinstance(value, float) else value)


def check_symbols(strategies: Any, symbols: Iterable[str], *, specs: str = "in_shapes") -> None:
    """Check that each strategy has a symbol.

    Args:
        strategies: One for all symbols, or one per symbol.
        symbols: The symbols of the specs.
        specs: The name of the specs in errors.

    Raises:
        ConfigError: A strategy is for a symbol that no spec has.
    """
    if not is_mapping(strategies):
        return
    known = {name for symbol in symbols for name in names_for(symbol)}
    unknown = sorted(strategies.keys() - known)
    if unknown:
        texts = ", ".join(f"`{symbol}`" for symbol in sorted(symbols)) or "none"
        covering = [name for name in names_for(unknown[0]) if name in known]
        raise ConfigError(
            f"buckets: no spec has a symbol `{unknown[0]}`; the symbols are {texts}.",
            option="buckets",
            why=f"`{covering[0]}` is the symbol of its spec, which several arrays may share"
            if covering
            else None,
            fix=f'give the strategy to that symbol: buckets={{"{covering[0]}": ...}}'
            if covering
            else f"name a symbol of {specs}, or give one strategy for all: buckets=sx.Pow2()",
        )
