"""The settings of an Exec: read from options as people write them, and changed in the same way.

The form of each single option is checked in `_options`.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from shapeexec._errors import ConfigError, SpecError
from shapeexec.bucketing import Adaptive, Exact, Strategy
from shapeexec.execution import _options
from shapeexec.execution._behind import MISSING, Missing
from shapeexec.execution._compiling import TUNED, Compiling
from shapeexec.execution._modes import Paddings, as_padding
from shapeexec.execution._narrow import is_mapping
from shapeexec.execution._proofs import CHECKS, Check
from shapeexec.masking._poison import check_poison
from shapeexec.shape._annotated import Annotated, annotated, check_given, symbols_of
from shapeexec.shape._guards import Guard
from shapeexec.shape._inferred import Inferred
from shapeexec.shape._spec import check_names, places, spec_symbols
from shapeexec.shape._unknown import WORD, may_be_found, names_for

OneSymbol = Strategy | str | int | Sequence[int] | Callable[[int], int]
Buckets = OneSymbol | Mapping[Any, OneSymbol]  # of names, of `Dim`s, and of `UNKNOWN`
Returns = Literal["device", "padded", "host"]

POISON = "SHAPEEXEC_POISON"
"""The environment variable that says what fills padding where `Exec(poison=...)` does not."""

_NAMED_SYMBOLS = frozenset(("strategies", "in_shapes", "kwarg_shapes"))


@dataclasses.dataclass(frozen=True)
class Settings:
    """How an Exec maps calls to graphs; fixed when it is made.

    Attributes:
        fn: The plain function.
        in_shapes: One spec per positional argument; None: they are inferred.
        kwarg_shapes: Specs by keyword; None: all static, or inferred if `in_shapes` is None.
        strategies: By symbol; a Strategy alone stands for all symbols.
        constraints: Conditions that the sizes of every call fulfil.
        on_unsupported: Whether a primitive without a rule is an error or makes its symbols exact.
        poison: The values that fill padding; None: padding is not filled.
        static_argnums: Positions of arguments that are Python values.
        static_argnames: Keywords of arguments that are Python values.
        donate_argnums: Positions of arguments whose memory may be reused.
        examples: The strategy for the number of examples of `Exec.map`.
        check: Which calls' traces are checked against the plain function's.
        missing: What to do when the graph of a call is missing.
        compiling: How XLA compiles graphs.
        on_memory: Whether a bucket that does not fit into memory is an error or runs exactly.
        masking: Whether masks keep padding out of results; else the function does it itself.
        padding: The values of the padding of arguments if `masking` is False.
        returns: The form of results; see `Exec`.
        found: The inferred specs; used if `in_shapes` is None.
        annotated: The specs of annotations, by position and by name; used if `in_shapes` is None.
    """

    fn: Callable[..., Any]
    in_shapes: tuple[Any, ...] | None
    kwarg_shapes: Mapping[str, Any] | None
    strategies: Strategy | Mapping[str, Strategy]
    constraints: tuple[Guard, ...]
    on_unsupported: Literal["raise", "exact"]
    poison: str | None
    static_argnums: tuple[int, ...]
    static_argnames: tuple[str, ...]
    donate_argnums: tuple[int, ...]
    examples: Strategy
    check: Check = "graphs"
    missing: Missing = "wait"
    compiling: Compiling = TUNED
    returns: Returns = "device"
    on_memory: Literal["raise", "exact"] = "raise"
    masking: bool = True
    padding: Paddings = "zeros"
    found: tuple[Inferred, ...] = ()
    annotated: Mapping[int | str, Annotated] = dataclasses.field(
        default_factory=dict[int | str, Annotated]
    )

    def strategy(self, symbol: str) -> Strategy:
        """The strategy of a symbol; Exact for one that has none."""
        return strategy_of(symbol, self.strategies)

    @property
    def by_name(self) -> dict[str, Strategy]:
        """The strategies by symbol; without specs also of symbols that are not inferred yet."""
        if not isinstance(self.strategies, Strategy):
            return dict(self.strategies)
        unseen = (WORD,) if self.in_shapes is None else ()
        return dict.fromkeys((*sorted(_symbols(self)), *unseen), self.strategies)


def strategy_of(symbol: str, strategies: Strategy | Mapping[str, Strategy]) -> Strategy:
    """The strategy of a symbol, with its learned ladder if it adapts; Exact if it has none."""
    given = given_to(symbol, strategies)
    return given.of(symbol) if isinstance(given, Adaptive) else given


def given_to(symbol: str, strategies: Strategy | Mapping[str, Strategy]) -> Strategy:
    """The strategy given to a symbol by its name, or to one that covers it; Exact if none is."""
    if isinstance(strategies, Strategy):
        return strategies
    given = (strategies[name] for name in names_for(symbol) if name in strategies)
    return next(given, Exact())


def settings_of(fn: Callable[..., Any], **options: Any) -> Settings:
    """The settings of an Exec.

    Args:
        fn: The plain function.
        **options: All the other fields of `Settings`, as `Exec` takes them.

    Raises:
        ShapeExecError: An option has a value that cannot work.
    """
    _check_callable(fn)
    if options["poison"] is None:
        options["poison"] = os.environ.get(POISON)
    settings = Settings(fn=fn, **(_in_form(options) | _arguments(fn, options)))
    settings = _with_annotations(settings)
    _check_symbols(settings, options)
    _check_padding(settings)
    return settings


def changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Settings with some fields changed, each checked as `Exec` checks it.

    Args:
        settings: The settings to change.
        changes: Fields of `Settings`, in the forms that `Exec` takes; `buckets` are `strategies`.

    Raises:
        ShapeExecError: A change is not a field, or has a value that cannot work.
    """
    changes = dict(changes)
    if "buckets" in changes and "strategies" not in changes:
        changes["strategies"] = changes.pop("buckets")
    known = [field.name for field in dataclasses.fields(Settings)]
    others = [name for name in changes if name not in known]
    if others:
        raise ConfigError(
            f"variant: {others[0]}={changes[others[0]]!r:.80} changes no setting.",
            option=others[0],
            fix=f"one of {', '.join(known)}; buckets= is strategies=",
        )
    fn = changes.pop("fn", settings.fn)
    _check_callable(fn)
    fields = _in_form(changes) | _arguments(fn, _with_others(settings, changes))
    other = dataclasses.replace(settings, fn=fn, **fields)
    if fn is not settings.fn:
        other = _with_annotations(other)
    if changes.keys() & _NAMED_SYMBOLS:
        _check_symbols(other, changes)
    _check_padding(other)
    return other


def _with_annotations(settings: Settings) -> Settings:
    """The settings with the specs that annotations of the function hold, where it has no others.

    Raises:
        SpecError: An annotation is not a spec, or contradicts a given spec.
    """
    try:
        found = annotated(settings.fn)
    except SpecError:
        if settings.in_shapes is None:
            raise
        return settings
    written = places(settings.in_shapes, settings.kwarg_shapes)
    check_given(found, {place: (path, tree) for path, place, tree in written})
    return dataclasses.replace(settings, annotated=found)


def check_pins(settings: Settings, pins: Sequence[Mapping[str, int]]) -> None:
    """Check that each pin names buckets that calls may have.

    Raises:
        ConfigError: A pin names a symbol that no spec has, or a size that is not a bucket.
    """
    symbols = _symbols(settings)
    for pin in pins:
        for symbol, size in pin.items():
            is_open = settings.in_shapes is None and may_be_found(symbol)
            if symbols and symbol not in symbols and not is_open:
                raise ConfigError(
                    f"pin={dict(pin)}: no spec has the symbol `{symbol}`.",
                    option="pin",
                    fix=f"one of {', '.join(sorted(symbols))}",
                )
            bucket = settings.strategy(symbol).bucket(size)
            if bucket != size:
                raise ConfigError(
                    f"pin={dict(pin)}: {symbol}={size} is not a bucket.",
                    option="pin",
                    got=f"a size of {size} is padded to {bucket}",
                    fix=f'pin=[{{"{symbol}": {bucket}}}]',
                )


def _check_callable(fn: Any) -> None:
    if not callable(fn):
        raise ConfigError(
            f"fn={fn!r} cannot be called.", option="fn", fix="pass a function of arrays"
        )


def _choice(name: str, choices: tuple[str, ...]) -> Callable[[Any], Any]:
    def checked(given: Any) -> Any:
        _options.check_choice(name, given, choices=choices)
        return given

    return checked


def _kwarg_shapes(given: Any) -> dict[str, Any] | None:
    _options.check_kind("kwarg_shapes", given, kind=Mapping, fix='kwarg_shapes={"mask": "b, s"}')
    return _options.as_kwarg_shapes(given)


def _masking(given: Any) -> bool:
    _options.check_kind("masking", given, kind=bool, fix="masking=False")
    return given is not False


def _compiling(given: Any) -> Compiling:
    fix = 'compiling=sx.Compiling(first="quick")'
    _options.check_kind("compiling", given, kind=Compiling, fix=fix)
    return given or TUNED


_FORMS: Mapping[str, Callable[[Any], Any]] = {
    "on_unsupported": _choice("on_unsupported", ("raise", "exact")),
    "on_memory": _choice("on_memory", ("raise", "exact")),
    "check": _choice("check", CHECKS),
    "missing": _choice("missing", MISSING),
    "compiling": _compiling,
    "returns": _choice("returns", get_args(Returns)),
    "kwarg_shapes": _kwarg_shapes,
    "donate_argnums": lambda given: _options.as_numbers("donate_argnums", given),
    "strategies": _options.as_strategies,
    "in_shapes": _options.as_in_shapes,
    "constraints": _options.as_constraints,
    "poison": check_poison,
    "masking": _masking,
    "padding": as_padding,
    "examples": lambda given: _options.as_lawful_strategy("examples", given),
}


def _in_form(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: form(given[name]) for name, form in _FORMS.items() if name in given}


def _arguments(fn: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The static arguments, having checked that options name arguments of the function."""
    numbers = _options.as_numbers("static_argnums", given.get("static_argnums", ()))
    names = _options.as_texts("static_argnames", given.get("static_argnames", ()))
    named = {name: given[name] or () for name in ("kwarg_shapes",) if name in given}
    if is_mapping(given.get("padding")):
        named["padding"] = as_padding(given["padding"])
    if "donate_argnums" in given:
        named["donate_argnums"] = _options.as_numbers("donate_argnums", given["donate_argnums"])
    _options.check_arguments(fn, static_argnums=numbers, static_argnames=names, **named)
    if "static_argnums" not in given:
        return {}
    numbers, names = _options.by_number_and_name(fn, numbers=numbers, names=names)
    return {"static_argnums": numbers, "static_argnames": names}


def _with_others(settings: Settings, changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The changes, with the other option for static arguments brought up to date.

    Positions imply names and the other way round. An argument that a change drops from one option
    has to leave the other one too: else it would stay static.
    """
    by = _options.by_number_and_name
    if "static_argnums" in changes and "static_argnames" not in changes:
        _, follow = by(settings.fn, numbers=settings.static_argnums, names=())
        rest = tuple(name for name in settings.static_argnames if name not in follow)
        return {**changes, "static_argnames": rest}
    if "static_argnames" in changes and "static_argnums" not in changes:
        follow, _ = by(settings.fn, numbers=(), names=settings.static_argnames)
        rest = tuple(number for number in settings.static_argnums if number not in follow)
        return {**changes, "static_argnums": rest}
    return changes


def _check_symbols(settings: Settings, given: Mapping[str, Any]) -> None:
    """Check the symbols of specs and strategies, of which some are given as people write them."""
    written = {name: given.get(name, getattr(settings, name)) for name in _NAMED_SYMBOLS}
    check_names(places(written["in_shapes"], written["kwarg_shapes"]))
    symbols = _symbols(settings)
    if settings.in_shapes is None and is_mapping(settings.strategies):
        symbols |= {name for name in settings.strategies if may_be_found(name)}
    _options.check_symbols(settings.strategies, symbols)


def _symbols(settings: Settings) -> frozenset[str]:
    """The symbols of the specs; without specs, of annotations and the first inferred ones."""
    symbols = spec_symbols(settings.in_shapes, settings.kwarg_shapes)
    is_open = settings.in_shapes is None
    return symbols | (symbols_of(settings.annotated) if is_open else frozenset[str]())


_NOT_UNMASKED: Mapping[str, tuple[Callable[[Settings], bool], str]] = {
    'on_unsupported="exact"': (
        lambda own: own.on_unsupported == "exact",
        "no rule is applied, so none refuses anything",
    ),
    'missing="larger"': (
        lambda own: own.missing == "larger",
        "results may depend on the bucket, and so on which graphs are there",
    ),
    'padding="adaptive" and donate_argnums': (
        lambda own: bool(own.donate_argnums) and "adaptive" in _modes_of(own.padding),
        "modes are measured by running the first call several times, which takes its arguments",
    ),
}
"""Options that contradict `masking=False`: whether they are set, and why they do."""


def _check_padding(settings: Settings) -> None:
    """Check that masking and padding go with each other, and with the other options.

    Raises:
        ConfigError: They contradict each other.
    """
    if settings.masking:
        if set(_modes_of(settings.padding)) == {"zeros"}:
            return
        raise ConfigError(
            f"padding={settings.padding!r:.80} with masking=True.",
            option="padding",
            why="masks keep padding out of every result, so its values never matter",
            fix="leave padding= out, or masking=False if the function applies its own masks",
        )
    named: Mapping[Any, Any] = settings.padding if is_mapping(settings.padding) else {}
    for number, parameter in enumerate(_options.parameters_of(settings.fn)):
        if number in named and parameter.name in named:
            raise ConfigError(
                f"padding names one argument twice: {number} and {parameter.name!r}.",
                option="padding",
                got=f"padding={named!r:.80}",
                fix="its position or its name",
            )
    for said, (is_said, why) in _NOT_UNMASKED.items():
        if is_said(settings):
            option = said.partition("=")[0]
            raise ConfigError(
                f"{said} with masking=False.",
                option=option,
                why=why,
                fix=f"leave {option}= out, or masking=True",
            )


def _modes_of(padding: Paddings) -> list[Any]:
    return [*padding.values(), "zeros"] if is_mapping(padding) else [padding]


def check_mapped(settings: Settings) -> None:
    """Check that a function of one example may be mapped.

    Raises:
        ConfigError: The settings have `masking=False`.
    """
    if settings.masking:
        return
    raise ConfigError(
        "map with masking=False.",
        option="masking",
        got="masking=False",
        why="examples are padded to the largest of them, so results would depend on the others",
        fix="call it once per example, or masking=True",
    )
