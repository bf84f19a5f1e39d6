"""`sx.optimize`: the buckets of an Exec made better by the calls that it has seen.

It checks options, and takes the cost from the function. The search is in `bucketing`.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shapeexec._errors import ConfigError
from shapeexec.bucketing._checks import as_float
from shapeexec.bucketing._improve import Optimized, Wanted, improve
from shapeexec.bucketing._laws import buckets_of
from shapeexec.bucketing._requests import Request, Requests, read_requests
from shapeexec.costing import Speed
from shapeexec.execution import Exec
from shapeexec.shape._inferred import early_sizes
from shapeexec.tools._fit import cost_of, symbols_of


def optimize(
    run: Exec,
    sizes: Iterable[Request] | Mapping[Any, float] | None = None,
    *,
    cost: Callable[..., float] | None = None,
    speed: Speed | None = None,
    remove: float = 0.01,
    merge: bool = True,
    split: float = 0.2,
    graph_cost: float | None = None,
) -> Optimized:
    """Find better buckets near those of an `Exec`: remove, merge and split some.

    `sx.fit` chooses all buckets anew; here each change is small, and its effect is reported. Future
    calls are assumed to be like the calls seen so far: a graph is added if it saves these calls
    more than it costs.

    Args:
        run: The Exec, for its buckets and its cost model.
        sizes: The requests, as `sx.fit` takes them. None: the calls that `run` has seen.
        cost: A function of the sizes, given by keyword, that returns the cost of a call. None: the
            seconds of the cost model.
        speed: The speed of the device that will run it. None: measured on the default device.
        remove: Buckets with less than this share of the requests are removed; 0: none. The greatest
            bucket stays.
        merge: Whether to remove a bucket if its calls cost less extra in the next bucket than its
            graphs cost.
        split: Buckets with more than this share of padding in their cost are split, where that
            saves more than the new graphs cost; 1: none.
        graph_cost: The cost of making a graph, in the unit of `cost`. None: the mean seconds that
            making a graph took in `run`.

    Returns:
        The ladders, and what each change does.

    Raises:
        ConfigError: An option or a request has a value that cannot work, no call was seen, or
            `cost` is given without `graph_cost`.

    Example:
        >>> run = Exec(lambda x: x * 2, ("s",), buckets=[10, 11, 100])
        >>> sizes = {10: 20, 11: 20, 40: 20, 100: 20}
        >>> print(optimize(run, sizes, cost=lambda s: float(s), graph_cost=50.0).changes[0])
        merge s bucket 10: cost +20, graphs -1
    """
    given: Any = run  # a caller without a type checker may pass anything
    if not isinstance(given, Exec):
        raise ConfigError(
            f"optimize: {run!r:.80} is not an Exec, and has no buckets.",
            option="run",
            fix="sx.optimize(run), with run=sx.Exec(...); sx.fit takes a cost alone",
        )
    symbols = symbols_of(run, None)
    requests = _seen(run, symbols) if sizes is None else read_requests(sizes, symbols)
    wanted = Wanted(
        remove=_share("remove", remove),
        merge=merge,
        split=_share("split", split),
        graph_cost=_graph_cost(run, graph_cost, cost=cost),
        keep=_early(run, symbols) if sizes is None else {},
    )
    own = cost_of(run, cost, symbols=symbols, speed=speed)
    ladders = {
        symbol: buckets_of(run.settings.strategy(symbol), map(int, requests.sizes[:, i]))
        for i, symbol in enumerate(symbols)
    }
    return improve(requests, own, ladders=ladders, wanted=wanted)


def _seen(run: Exec, symbols: tuple[str, ...]) -> Requests:
    found = run.analysis()
    if not found.symbols or not found.padded_sizes:
        raise ConfigError(
            f"optimize: {run!r:.80} has seen no call"
            f"{' whose sizes have buckets' if found.calls else ''}.",
            option="sizes",
            got=f"{found.calls} calls, {run.specs}" if found.calls else None,
            fix="pass sizes: sx.optimize(run, sizes); or call run first",
        )
    return read_requests(found.padded_sizes, symbols)


def _early(run: Exec, symbols: tuple[str, ...]) -> Mapping[str, tuple[int, ...]]:
    """The sizes of calls before their axes became symbols, which ran exactly; see `Exec.specs`."""
    found = run.analysis()
    if sum(found.padded_sizes.values()) == found.calls:
        return {}
    early = early_sizes(run.settings.found)
    return {symbol: early[symbol] for symbol in symbols if symbol in early}


def _share(name: str, value: Any) -> float:
    if not 0 <= (share := as_float(value)) <= 1:
        raise ConfigError(
            f"{name}={value!r:.40} is not a share from 0 to 1.",
            option=name,
            fix=f"{name}=0.1, say, for 10 %",
        )
    return share


def _graph_cost(run: Exec, given: Any, *, cost: Any) -> float:
    if given is None:
        if cost is not None:
            raise ConfigError(
                f"optimize: what a graph costs is not known in the unit of cost={cost!r:.60}.",
                option="graph_cost",
                fix="graph_cost=, in the same unit; or leave cost= out, for seconds",
            )
        return run.analysis().graph_seconds
    if not 0 <= (number := as_float(given)) < math.inf:
        raise ConfigError(
            f"graph_cost={given!r:.40} is not a finite number of at least 0.",
            option="graph_cost",
            fix="the seconds that making a graph takes, such as graph_cost=2.0",
        )
    return number
