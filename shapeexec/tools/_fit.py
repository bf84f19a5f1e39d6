"""`sx.fit`: the cheapest buckets of all symbols for the requests that a service sees.

It checks options, and takes the cost from the function. The search is in `bucketing`.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from shapeexec._errors import ConfigError, named
from shapeexec.bucketing._checks import as_float, as_int
from shapeexec.bucketing._fit import Floats, Ints
from shapeexec.bucketing._fit_joint import Cost, Limits, fit_requests
from shapeexec.bucketing._fitted import Fitted
from shapeexec.bucketing._requests import Request, Requests, as_size, read_requests
from shapeexec.costing import CostModel, Speed, bytes_needed, in_seconds
from shapeexec.execution import Exec
from shapeexec.shape._spec import spec_symbols

_GRAPHS = 16
_FORM = "sx.fit(run, sizes, graphs=16), with an Exec, a CostModel, or None and cost="
_COST = "a function of the sizes: cost=lambda b, s: b * s * s"
_RETURNS = {
    "cost": "return what a call costs, such as its seconds",
    "memory": "return the bytes that a call needs",
}


def fit(
    run: Exec | CostModel | None,
    sizes: Iterable[Request] | Mapping[Any, float],
    *,
    graphs: int | None = None,
    cost: Callable[..., float] | None = None,
    speed: Speed | None = None,
    multiple_of: int | Mapping[str, int] | None = None,
    must: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
    max_waste: float | None = None,
    max_memory: float | None = None,
    memory: Callable[..., float] | None = None,
    max_graphs: int = 64,
    compile_seconds: float | None = None,
    requests_per_second: float | None = None,
    horizon: float | None = None,
) -> Fitted:
    """Find the cheapest buckets of all symbols together for given requests.

    The requests of one combination of buckets share a graph, and graphs are what is counted. For
    one symbol no ladders are cheaper. For several, the ladders of all but one are tried where these
    have few sizes; else the symbols take turns, from several starts, and `Fitted.lower_bound` tells
    how much better other ladders could be at most. Above 160 sizes of each of two symbols, or 40 of
    three, neighbouring sizes share a candidate; the bound holds for all sizes.

    Args:
        run: The function: its symbols, and by `cost_model` its cost. None: the symbols are the
            parameters of `cost` that have no default.
        sizes: The requests, each by symbol, `{"b": 4, "s": 100}`, or as a tuple in the order of the
            sorted symbols; or a mapping from tuple to count. An int where there is one symbol.
        graphs: The greatest number of graphs. None: 16, or as the options below say.
        cost: A function of the sizes, given by keyword, that returns the cost of a call; it must
            not fall as a size grows. None: the running maximum of the cost model's seconds.
        speed: The speed of the device that will run it. None: measured on the default device.
        multiple_of: The number that all buckets are multiples of: one for all symbols, or one by
            symbol.
        must: Buckets that must be among the result, by symbol. With one symbol a plain list, and
            each of its buckets counts as a graph, used or not.
        max_waste: The greatest share of the cost that padding may take. Without `graphs`, the
            fewest graphs that satisfy it are chosen.
        max_memory: The most bytes that a call may need in its bucket, beside its arguments.
        memory: A function of the sizes, given by keyword, that returns these bytes, such as the
            memory of a compiled bucket; where it falls as a size grows, its running maximum
            counts. None: `memory` of the cost model.
        max_graphs: The greatest number of graphs where `graphs` is None.
        compile_seconds: The seconds to compile one graph. With the next two options, and without
            `graphs`, the number of graphs is chosen that minimises the time of calls and compiles
            together.
        requests_per_second: How many requests there are.
        horizon: For how many seconds the ladders will serve.

    Returns:
        The ladders, by symbol, and what they cost.

    Raises:
        ConfigError: An option or a request has a value that cannot work, or a limit cannot be kept.

    Example:
        >>> sizes = [(1, 10), (1, 12), (2, 50), (8, 50)]
        >>> found = fit(None, sizes, graphs=2, cost=lambda b, s: b * s)
        >>> found.strategies["b"], found.strategies["s"], found.is_optimal
        (Ladder([2, 8]), Ladder([50]), True)
    """
    symbols = symbols_of(run, cost)
    requests = read_requests(sizes, symbols)
    limits = _limits(
        requests,
        graphs=graphs,
        multiple_of=multiple_of,
        must=must,
        max_waste=max_waste,
        max_memory=_max_memory(max_memory, memory),
        max_graphs=max_graphs,
        payback=_payback(compile_seconds, requests_per_second, horizon=horizon),
    )
    own = cost_of(run, cost, symbols=symbols, speed=speed)
    if max_memory is not None:
        own = dataclasses.replace(own, memory=_memory_of(run, memory, symbols=symbols))
    return fit_requests(requests, own, limits=limits)


def symbols_of(run: Any, cost: Any) -> tuple[str, ...]:
    """The symbols of an Exec, of a cost model or of a cost, sorted.

    Raises:
        ConfigError: There are none.
    """
    if isinstance(run, CostModel):
        found = run.symbols
    elif isinstance(run, Exec):
        specs = run.specs
        known = spec_symbols(specs.in_shapes, specs.kwarg_shapes)
        is_open = run.settings.in_shapes is None
        found = tuple(known or (spec_symbols(None, None) if is_open else ()))
    elif run is None and callable(cost):
        found = tuple(_required(cost))
    else:
        raise ConfigError(f"fit: {run!r:.80} has no symbols.", option="run", fix=_FORM)
    given = cost if run is None else run
    if not found:
        raise ConfigError(
            f"fit: {given!r:.80} has no symbol whose buckets could be fitted.",
            option="run",
            fix=_COST if given is cost else 'name the axes that change: sx.Exec(fn, ("b, s",))',
        )
    return tuple(sorted(found))


def _signature(function: Callable[..., Any], option: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        raise ConfigError(
            f"{option}={function!r:.80} has no signature that names its parameters.",
            option=option,
            fix=_COST.replace("cost", option),
        ) from None


def _required(cost: Callable[..., Any]) -> list[str]:
    """The parameters without a default, except *args and **kwargs."""
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = _signature(cost, "cost").parameters.values()
    return [
        each.name for each in parameters if each.default is each.empty and each.kind not in starred
    ]


def cost_of(run: Any, cost: Any, *, symbols: Sequence[str], speed: Speed | None) -> Cost:
    """The cost of a call: by a function, or in seconds by the cost model; see `fit`.

    Raises:
        ConfigError: The function cannot be called with these symbols.
    """
    if cost is None:
        model = run if isinstance(run, CostModel) else run.cost_model()
        return in_seconds(model, speed)
    return Cost(_each(cost, "cost", symbols=symbols))


def _memory_of(
    run: Any, memory: Any, *, symbols: Sequence[str]
) -> Callable[[Mapping[str, Ints]], Floats]:
    """The bytes that a call needs, by a function or by the cost model."""
    if memory is not None:
        return _each(memory, "memory", symbols=symbols)
    if run is None:
        raise ConfigError(
            f"max_memory: {run!r} has no estimate of the bytes that a call needs.",
            option="memory",
            fix="memory=lambda b, s: its bytes; or pass an Exec or a CostModel",
        )
    model = run if isinstance(run, CostModel) else run.cost_model()
    return functools.partial(bytes_needed, model)


def _each(
    function: Any, option: str, *, symbols: Sequence[str]
) -> Callable[[Mapping[str, Ints]], Floats]:
    """A function of sizes by keyword, for arrays of sizes.

    Raises:
        ConfigError: It cannot be called with these symbols.
    """
    if not callable(function):
        raise ConfigError(
            f"{option}={function!r:.80} cannot be called.",
            option=option,
            fix=_COST.replace("cost", option),
        )
    try:
        _signature(function, option).bind(**dict.fromkeys(symbols))
    except TypeError as error:
        raise ConfigError(
            f"{option}={function!r:.80} cannot be called with {named(symbols)} by keyword.",
            option=option,
            why=str(error),
            fix=f"{option}=lambda {', '.join(symbols)}: ...",
        ) from None
    known: dict[tuple[int, ...], float] = {}

    def at(sizes: Mapping[str, Ints]) -> Floats:
        names = list(sizes)

        def one(*values: int) -> float:
            if values not in known:
                sizes = dict(zip(names, map(int, values), strict=True))
                known[values] = _checked(function, option, sizes=sizes)
            return known[values]

        return np.vectorize(one, otypes=[float])(*sizes.values())

    return at


def _checked(function: Callable[..., Any], option: str, *, sizes: Mapping[str, int]) -> float:
    value = function(**sizes)
    if not 0 <= (number := as_float(value)) < math.inf:
        told = ", ".join(f"{symbol}={size}" for symbol, size in sizes.items())
        raise ConfigError(
            f"{option}({told}) = {value!r:.40} is not a finite number of at least 0.",
            option=option,
            fix=_RETURNS[option],
        )
    return number


def _limits(
    requests: Requests,
    *,
    graphs: int | None,
    multiple_of: Any,
    must: Any,
    max_waste: float | None,
    max_memory: float,
    max_graphs: int,
    payback: tuple[float, float] | None,
) -> Limits:
    is_chosen = graphs is None and (max_waste is not None or payback is not None)
    most = _most_graphs(graphs, max_graphs, is_chosen=is_chosen, is_paid=payback is not None)
    if max_waste is not None and not 0 <= as_float(max_waste) < 1:
        raise ConfigError(
            f"max_waste={max_waste!r} is not a share from 0 to just below 1.",
            option="max_waste",
            fix="max_waste=0.1, say, for 10 %",
        )
    steps = _by_symbol(multiple_of, requests.symbols, name="multiple_of")
    multiples = {
        symbol: as_size(step, f"multiple_of['{symbol}']") for symbol, step in steps.items()
    }
    per_graph, count = payback or (0.0, 0.0)
    return Limits(
        graphs=most,
        is_chosen=is_chosen,
        multiple_of=multiples,
        must=_must(must, requests, multiples=multiples),
        max_waste=None if max_waste is None else float(max_waste),
        max_memory=max_memory,
        seconds_per_graph=per_graph,
        requests=count,
    )


def _most_graphs(graphs: int | None, max_graphs: int, *, is_chosen: bool, is_paid: bool) -> int:
    if graphs is not None and is_paid:
        raise ConfigError(
            f"graphs={graphs!r} and compile_seconds=: both determine the number of graphs.",
            option="graphs",
            fix="pass one of them; max_graphs= is the limit where compile_seconds= chooses",
        )
    most = as_int(_GRAPHS if graphs is None else graphs, "graphs")
    return as_int(max_graphs, "max_graphs") if is_chosen else most


def _max_memory(given: Any, memory: Any) -> float:
    if given is None:
        if memory is None:
            return math.inf
        raise ConfigError(
            f"memory={memory!r:.60} limits nothing by itself.",
            option="max_memory",
            fix="max_memory=8 * 2**30, say, for 8 GiB",
        )
    if not 0 < (most := as_float(given)) < math.inf:
        raise ConfigError(
            f"max_memory={given!r:.40} is not a positive number of bytes.",
            option="max_memory",
            fix="max_memory=8 * 2**30, say, for 8 GiB",
        )
    return most


def _by_symbol(given: Any, symbols: Sequence[str], *, name: str) -> Mapping[str, Any]:
    """An option by symbol; one value stands for all symbols."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        return dict.fromkeys(symbols, given)
    options = cast(Mapping[str, Any], given)
    unknown = [symbol for symbol in options if symbol not in symbols]
    if unknown:
        raise ConfigError(
            f"{name}: there is no symbol {unknown[0]!r}.",
            option=name,
            got=f"the symbols are {named(symbols)}",
            fix=f"{name}={{{symbols[0]!r}: ...}}",
        )
    return options


def _must(
    given: Any, requests: Requests, *, multiples: Mapping[str, int]
) -> Mapping[str, tuple[int, ...]]:
    symbols = requests.symbols
    if given is not None and not isinstance(given, Mapping) and len(symbols) > 1:
        raise ConfigError(
            f"must={given!r:.60} does not name the symbol.",
            option="must",
            got=f"the symbols are {named(symbols)}",
            fix=f"must={{{symbols[-1]!r}: [...]}}",
        )
    found: dict[str, tuple[int, ...]] = {}
    for symbol, buckets in _by_symbol(given, symbols, name="must").items():
        step = multiples.get(symbol, 1)
        greatest = int(requests.sizes[:, symbols.index(symbol)].max())
        last = -(-greatest // step) * step
        own = _listed(buckets, symbol)
        for bucket in own:
            if as_int(bucket, f"must['{symbol}']") > last or bucket % step:
                raise _no_bucket(symbol, bucket, greatest=greatest, step=step)
        found[symbol] = tuple(sorted({int(bucket) for bucket in own}))
    return found


def _listed(buckets: Any, symbol: str) -> list[Any]:
    try:
        return list(buckets)
    except TypeError:
        raise ConfigError(
            f"must['{symbol}']={buckets!r:.60} is not a list of buckets.",
            option="must",
            fix=f"must={{{symbol!r}: [64, 128]}}",
        ) from None


def _no_bucket(symbol: str, bucket: int, *, greatest: int, step: int) -> ConfigError:
    if bucket % step:
        return ConfigError(
            f"must: {symbol}={bucket} is not a multiple of {step}.",
            option="must",
            fix=f"{-(-bucket // step) * step}, or another multiple_of=",
        )
    return ConfigError(
        f"must: {symbol}={bucket} is beyond the greatest size, {greatest}.",
        option="must",
        fix="a smaller bucket; a size that may occur goes into sizes with the count 0",
    )


def _payback(
    compile_seconds: float | None, requests_per_second: float | None, *, horizon: float | None
) -> tuple[float, float] | None:
    """The seconds of a graph, and the number of requests to come; None: no option was given."""
    given = {
        "compile_seconds": compile_seconds,
        "requests_per_second": requests_per_second,
        "horizon": horizon,
    }
    if all(value is None for value in given.values()):
        return None
    for name, value in given.items():
        if not 0 < as_float(value) < math.inf:
            raise ConfigError(
                f"{name}={value!r} is not a positive number.",
                option=name,
                fix="compile_seconds=, requests_per_second= and horizon= together, in seconds",
            )
    seconds, rate, duration = map(as_float, given.values())
    return seconds, rate * duration
