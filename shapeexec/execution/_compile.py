"""From a trace and its buckets to a compiled graph: masks first, then XLA.

`_planner` decides which graph a call needs, and `_cache` how long one is kept.
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from shapeexec import _compat
from shapeexec.execution import _monitor, _worker
from shapeexec.execution._compiling import Option, refused_options
from shapeexec.execution._fork import check_may_make
from shapeexec.execution._permission import check_permitted, permitted, watch_lowering
from shapeexec.execution._row import GraphBytes, GraphRow, GraphSeconds
from shapeexec.execution._sized import Sized
from shapeexec.execution._stats import Tally
from shapeexec.execution._turns import COMPILING
from shapeexec.execution._worker import Meanwhile
from shapeexec.masking._masked import Masked
from shapeexec.masking._values import MaskNote
from shapeexec.shape import _trees
from shapeexec.shape._trace import Trace

_numbers = itertools.count()


class Compilable(Protocol):
    """All that is needed to compile one graph."""

    @property
    def trace(self) -> Trace:
        """The function at symbolic sizes."""
        ...

    @property
    def ranges(self) -> Mapping[str, tuple[int, int]]:
        """Per symbol the least size and the bucket."""
        ...

    @property
    def donate(self) -> tuple[int, ...]:
        """The positions of arguments that may be overwritten."""
        ...

    @property
    def trace_seconds(self) -> float:
        """The time that the trace took."""
        ...

    @property
    def result_tree(self) -> Any:
        """The structure of what the body returns."""
        ...

    def body(self, sizes: Any, consts: Any, kwargs: Any, *args: Any) -> Any:  # noqa: PLR0917 - jax.jit donates by position
        """The function that XLA compiles."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Recipe(Sized):
    """All that is needed to compile one graph.

    Attributes:
        donate: The positions of arguments that may be overwritten.
        trace_seconds: The time that the trace took.
        zero_results: See `Masked`.
    """

    donate: tuple[int, ...] = ()
    trace_seconds: float = 0.0
    zero_results: bool = False

    @property
    def masked(self) -> Masked:
        """The function at these capacities."""
        return Masked(
            self.trace,
            self.ranges,
            self.poison,
            zero_padded=self.poison is None,
            zero_results=self.zero_results,
        )

    @property
    def result_tree(self) -> Any:
        """The structure of what the body returns."""
        return self.trace.out_tree

    def body(self, sizes: Any, consts: Any, kwargs: Any, *args: Any) -> Any:  # noqa: PLR0917 - jax.jit donates by position
        """The function that XLA compiles."""
        by_symbol, hosted = self.numbers.read(sizes)
        leaves = _trees.leaves((args, kwargs))
        results = self.masked(by_symbol, consts, leaves=leaves, hosted=hosted)
        return _trees.unflatten(self.trace.out_tree, results)

    def notes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[MaskNote]:
        """Each mask that the graph has or is spared; nothing is compiled."""
        notes: list[MaskNote] = []

        def run(sizes: Any, consts: Any, *, leaves: Any) -> Any:
            by_symbol, hosted = self.numbers.read(sizes)
            results, found = self.masked.noted(by_symbol, consts, leaves=leaves, hosted=hosted)
            notes.extend(found)
            return results

        consts = tuple(self.trace.jaxpr.consts)
        leaves = _trees.leaves((args, kwargs))
        _compat.eval_shape(run, self.numbers.struct, consts, leaves=leaves)
        return notes


@dataclasses.dataclass(frozen=True, eq=False)
class Outline:
    """The inputs from which a graph is made, before any mask is put in.

    Attributes:
        recipe: The function, and its buckets.
        sizes: The shape and dtype of the vector of sizes.
        args: The shapes of the positional arguments at capacity.
        kwargs: The shapes of the keyword arguments at capacity.
        name: See `graph_name`.
        config: JAX's configuration, see `Base`.
        settings: All other settings of JAX, and of XLA, that change what is compiled.
    """

    recipe: Compilable
    sizes: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    name: str
    config: tuple[Any, ...]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=_compat.compile_settings)

    @property
    def consts(self) -> tuple[Any, ...]:
        """The arrays that the function closed over."""
        return tuple(self.recipe.trace.jaxpr.consts)

    @property
    def donated(self) -> tuple[int, ...]:
        """The positions of the body's arguments that may be overwritten."""
        return tuple(3 + position for position in self.recipe.donate)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the body."""
        return (self.sizes, self.consts, self.kwargs, *self.args)


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """One function at one set of buckets.

    It stays a `jax.jit` function, so that JAX's C++ fast path checks at each call that tree,
    shapes, dtypes, weak types, shardings and configuration are those of the compiled program. If
    one differs JAX would trace or lower the body again, which `_permission` refuses.

    Attributes:
        jitted: Called with (sizes, consts, kwargs, *args).
        outline: The inputs from which it was made.
        row: Its description in `run.graphs`.
        compiled: The program that `jitted` runs.
        compiles: The number of XLA compilations that it took.
        options: The options of XLA with which it was compiled.
        is_cached: Whether JAX found it in its own compilation cache.
        tally: The calls that have run in it.
        number: The order of creation: later graphs have larger numbers.
    """

    jitted: Any
    outline: Outline
    row: GraphRow
    compiled: Any
    compiles: int
    options: Mapping[str, Option] = dataclasses.field(default_factory=dict[str, Option])
    is_cached: bool = False
    tally: Tally = dataclasses.field(default_factory=Tally)
    number: int = dataclasses.field(default_factory=lambda: next(_numbers))

    @functools.cached_property
    def consts(self) -> tuple[Any, ...]:
        """The arrays that the function closed over."""
        return self.outline.consts

    @property
    def device_bytes(self) -> int:
        """Temporary memory and code, in bytes, as XLA reports it."""
        held = self.row.bytes
        return 0 if held is None else held.temporaries + held.code

    def __call__(self, sizes: Any, args: Sequence[Any], *, kwargs: Mapping[str, Any]) -> Any:
        """Run on arguments at capacity.

        Raises:
            SignatureChanged: The arguments, their devices or JAX's configuration differ from the
                compiled program's.
        """
        return self.begun(self.jitted(sizes, self.consts, kwargs, *args))

    def retraced(self, sizes: Any, args: Sequence[Any], *, kwargs: Mapping[str, Any]) -> Any:
        """Run after JAX dropped the trace from its caches (`jax.clear_caches()`)."""
        with permitted():
            return self.begun(self.jitted(sizes, self.consts, kwargs, *args))

    def begun(self, result: Any) -> Any:
        """The result; the first run waits, because a device may report late that memory ran out."""
        return _compat.block_until_ready(result) if self.tally.used is None else result


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """A graph with its masks, which is not compiled yet.

    Attributes:
        outline: The inputs from which it was made.
        jitted: See `Graph`.
        jit: Makes `jitted` from `compiler_options`; JAX traces the body once for all options.
        trace: Returns the `jax.stages.Traced` of the body at capacity. It traces again after
            `jax.clear_caches()`; a kept `Traced` would compile a program that calls do not find.
        seconds: The time of the steps so far.
        options: The options of XLA.
        is_exported: Whether it is a program that another process has masked and exported.
    """

    outline: Outline
    jitted: Any
    jit: Callable[..., Any]
    trace: Callable[[], Any]
    seconds: GraphSeconds
    options: Mapping[str, Option] = dataclasses.field(default_factory=dict[str, Option])
    is_exported: bool = False

    device_bytes = 0  # so that a `GraphCache` keeps it

    def with_options(self, options: Mapping[str, Option]) -> "Prepared":
        """The graph, to be compiled with these options of XLA."""
        if not options:
            return self
        jitted = self.jit(compiler_options=dict(options))
        trace = functools.partial(jitted.trace, *self.outline.arguments)
        return dataclasses.replace(self, jitted=jitted, trace=trace, options=options)


class Compiler(Protocol):
    """A function that compiles a graph: `compile_graph`, or a tool's replacement."""

    def __call__(self, prepared: Prepared, row: GraphRow, *, meanwhile: Meanwhile) -> Graph:
        """See `compile_graph`."""
        ...


def prepare(outline: Outline, *, body: Callable[..., Any] | None = None) -> Prepared:
    """Put the masks in.

    Args:
        outline: The inputs from which the graph is made.
        body: A body that has the masks already, like `Compilable.body`; None: the recipe's body.

    Raises:
        UnsupportedPrimitiveError: A primitive cannot be made exact.
    """
    masked = outline.recipe.body if body is None else body

    def watched(sizes: Any, consts: Any, kwargs: Any, *args: Any) -> Any:  # noqa: PLR0917 - jax.jit donates by position
        check_permitted()
        sizes, kwargs, args = watch_lowering((sizes, kwargs, args))
        return masked(sizes, consts, kwargs, *args)

    watched.__name__ = watched.__qualname__ = outline.name
    jit = functools.partial(_compat.jit, watched, donate_argnums=outline.donated)
    jitted = jit()
    start = time.perf_counter()
    trace = functools.partial(jitted.trace, *outline.arguments)
    with permitted():
        trace()
    seconds = GraphSeconds(trace=outline.recipe.trace_seconds, mask=time.perf_counter() - start)
    return Prepared(outline, jitted, jit, trace, seconds)


def compile_graph(prepared: Prepared, row: GraphRow, *, meanwhile: Meanwhile = None) -> Graph:
    """Compile a graph.

    Args:
        prepared: The graph with its masks.
        row: The row of the graph, without bytes and seconds.
        meanwhile: Work for this thread while XLA compiles in another one.

    Raises:
        ConfigError: XLA refuses an option, or this process was forked.
    """
    check_may_make(f"a graph for {row.sizes}")
    start = time.perf_counter()
    with permitted():
        lowered = prepared.trace().lower()
    lower = time.perf_counter() - start

    def compile_it() -> tuple[Any, _monitor.Span]:
        span = _monitor.Span()
        try:
            with COMPILING.turn():
                compiled = lowered.compile()
        except (_compat.JaxRuntimeError, TypeError, ValueError) as error:
            refused = refused_options(prepared.options, error)
            if refused is None:
                raise
            raise refused from error
        span.ran()
        return compiled, span

    (compiled, span), check = _worker.beside(meanwhile, compile_it)
    seconds = dataclasses.replace(
        prepared.seconds, lower=lower, check=check, compile=span.compile_seconds
    )
    return Graph(
        jitted=prepared.jitted,
        outline=prepared.outline,
        options=prepared.options,
        row=dataclasses.replace(row, bytes=bytes_of(compiled), seconds=seconds),
        compiled=compiled,
        compiles=span.compiles,
        is_cached=span.is_cached,
    )


def bytes_of(compiled: Any) -> GraphBytes | None:
    """The memory of a graph, in bytes; None if the back end does not report it."""
    memory = compiled.memory_analysis()
    if memory is None:
        return None
    return GraphBytes(
        code=memory.generated_code_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        inputs=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes,
    )
