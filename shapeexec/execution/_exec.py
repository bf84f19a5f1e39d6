"""Exec, which users call. `_function` has Python's protocols of functions, `_runner` runs calls."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Never

from shapeexec.bucketing import Pow2, Strategy
from shapeexec.costing import CostModel
from shapeexec.execution import _options, _spellings
from shapeexec.execution._acall import in_thread
from shapeexec.execution._behind import Missing
from shapeexec.execution._cache import CacheLimits
from shapeexec.execution._compiling import Compiling
from shapeexec.execution._costs import cost_model
from shapeexec.execution._events import Callback
from shapeexec.execution._explain import Explanation
from shapeexec.execution._graphs import Graphs
from shapeexec.execution._inference import Specs
from shapeexec.execution._map_method import MapMethod
from shapeexec.execution._modes import Paddings
from shapeexec.execution._plain import called
from shapeexec.execution._plan import Plan
from shapeexec.execution._proofs import Check
from shapeexec.execution._seen import Observed
from shapeexec.execution._settings import Buckets, Returns, Settings, settings_of
from shapeexec.execution._stats import Stats
from shapeexec.execution._why import WhyNew
from shapeexec.execution.saving._save import save
from shapeexec.program import Program


class Exec(Observed):
    """A function that runs at every input size, from one compiled graph per bucket.

    A call pads its arguments to the buckets of its sizes, runs the graph compiled for them, and
    cuts the result to its true shape. The function is rewritten so that padding never changes a
    result: it returns what `fn` returns. Apply `jax.grad`, `jax.vmap` and `jax.checkpoint` to the
    plain function: `Exec(jax.value_and_grad(loss), ...)`. Inside another trace, such as a `jit` or
    `scan` body, an Exec runs the plain function, because shapes are static there.

    `plan`, `explain`, `trace` and `why_new` preview a call: they may trace `fn`, but do not compile
    or run it. They accept a `jax.ShapeDtypeStruct` or a traced array in place of each array.

    Args:
        fn: A pure function of pytrees of arrays. A leaf that is not an array is a constant; each of
            its values has its own graph. Modules and variables of flax nnx are updated as by
            `nnx.jit`. If `fn` is a method, a module, an object or a `functools.partial`, its arrays
            are arguments too.
        in_shapes: One spec per positional argument, each a pytree prefix of it: a string such as
            `"b, s, 512"`, `"b, 2*s + 1"`, `"b, ..."`, `"b, ?"` or `"_, s"`; a tuple of ints,
            `Dim`s, `UNKNOWN` and None such as `(BATCH, SEQ_LEN, 512)`; an `sx.Shape`; or None for a
            static argument. `_` in a string and None in a tuple mark a static axis; each `?` or
            `UNKNOWN` is a new symbol, named after argument and axis (`unknown_0_1`). A tuple of
            dims alone is the spec of the only argument. Arguments with defaults may be left out.
            None: specs come from jaxtyping annotations and from the calls; see `specs`.
        buckets: A strategy for all symbols, or one per symbol: by name, by a `Dim` that is one
            symbol, or by `UNKNOWN`, for all symbols of that kind. A symbol without one is exact. A
            strategy may be a string (`"pow2"`, `"linear:32"`, `"exact"`), an int for its multiples,
            a list for a `Ladder`, any object with `bucket(size)`, or a function.
        kwarg_shapes: Specs by keyword; a keyword without one is static.
        constraints: One or more facts about the sizes, such as `"s >= 2"`. They decide conditions
            on sizes in `fn`. A call that breaks one raises a `ConstraintError`.
        on_unsupported: `"raise"`: an operation without an exact padded form is an error. `"exact"`:
            its symbols run at exact sizes, one graph per size; `stats.exact` counts them.
        static_argnums: Positions of static Python values; each value has its own graph.
        static_argnames: Names of such arguments; they may be passed by position too.
        donate_argnums: Positions of arguments whose memory the result may reuse.
        examples: The strategy for the number of examples in a graph of `map`.
        limits: Bounds on the graphs kept, in number and in bytes.
        check: Each trace is compared with plain JAX's trace at the true sizes, without compiling:
            `"graphs"`, at the first sizes of each graph; `"sizes"`, at all new sizes; `"worker"`,
            at all new sizes in another thread while the graph runs, and a call returns only when
            its sizes are proven; `"off"`, never. Sizes at which the two differ run exactly, with
            a warning that gives the line, and `stats.differences` counts them.
        missing: What to do when the graph of a call is not compiled. `"wait"`: compile it, and run.
            `"larger"`: run at once in the cheapest larger compiled graph, if there is one, while
            another thread compiles the graph; maps wait. Graphs then serve all sizes up to their
            buckets, which may need more masks. `"error"`: raise; only `warmup` compiles.
        compiling: XLA's options, and whether a graph that compiles fast serves first.
        on_memory: What to do when a graph does not fit into memory: `"raise"`, or `"exact"`: run
            its bucket at exact sizes (not for maps and donated arguments).
        returns: `"device"`: results are arrays of their true shapes, on the device. `"padded"`: see
            `padded`. `"host"`: NumPy arrays, cut without compiling; typed keys stay JAX arrays.
        poison: Fill padding with `"nan"`, `"max"`, `"min"` or `"garbage"`, to find a missing mask.
            None: use the environment variable SHAPEEXEC_POISON, if it is set.
        masking: False: `fn` applies its own masks and runs unchanged on padded arguments; each size
            that it reads is the bucket. Results are cut. Use `sx.validate` to test its masks.
        padding: The padding for `masking=False`: `"zeros"`, NumPy's `"edge"`, `"reflect"` or
            `"wrap"`, a number, `"adaptive"` (measured), or one per argument: `{1: "edge"}`.
        **misspelled: Unknown options; the error suggests the corrected call.

    Raises:
        ConfigError: An option has a value that cannot work, or is none.
        StrategyError: A strategy breaks one of the laws that make padding safe.

    Example:
        >>> mean = Exec(lambda x: x.mean(), buckets=Pow2())
        >>> float(mean(jax.numpy.arange(5.0)))
        2.0
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        in_shapes: Sequence[Any] | None = None,
        *,
        buckets: Buckets | None = None,
        kwarg_shapes: Mapping[str, Any] | None = None,
        constraints: str | Iterable[str] = (),
        on_unsupported: Literal["raise", "exact"] = "raise",
        static_argnums: int | Sequence[int] = (),
        static_argnames: str | Sequence[str] = (),
        donate_argnums: int | Sequence[int] = (),
        examples: Strategy | Callable[[int], int] | None = None,
        limits: CacheLimits | None = None,
        check: Check = "graphs",
        missing: Missing = "wait",
        compiling: Compiling | None = None,
        on_memory: Literal["raise", "exact"] = "raise",
        returns: Returns = "device",
        poison: str | None = None,
        masking: bool = True,
        padding: Paddings = "zeros",
        **misspelled: Never,
    ) -> None:
        _spellings.check(fn, misspelled, in_shapes=in_shapes, buckets=buckets)
        _options.check_kind(
            "limits", limits, kind=CacheLimits, fix="limits=sx.CacheLimits(graphs=256)"
        )
        settings = settings_of(
            fn,
            in_shapes=in_shapes,
            kwarg_shapes=kwarg_shapes,
            strategies=Pow2() if buckets is None else buckets,
            constraints=constraints,
            on_unsupported=on_unsupported,
            poison=poison,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            examples=Pow2() if examples is None else examples,
            check=check,
            missing=missing,
            compiling=compiling,
            returns=returns,
            on_memory=on_memory,
            masking=masking,
            padding=padding,
        )
        self._start(settings, limits or CacheLimits())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `fn` on its arguments, and return its result, up to rounding; see `Exec`.

        Raises:
            SpecError: The arguments contradict the specs.
            ConstraintError: The sizes break a constraint.
            BucketOverflowError: A size lies past the last bucket.
            UnsupportedPrimitiveError: A primitive of `fn` cannot be made exact under padding.
            InconclusiveShapeError: `fn` uses a size in a way that only an exact size allows.
            FrozenError: The Exec is frozen, and the graph of the call is not compiled.
            OutOfMemoryError: The graph does not fit into memory.
        """
        runner, own = self._receiver(args)
        return called(runner, own, kwargs=kwargs)

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        """Run a call in asyncio: `await run.acall(x)` gives the result when it is computed.

        A thread of the loop's default executor compiles and waits. If the task is cancelled, its
        call still runs to its end. Under a thread-local setting of JAX, such as `with
        jax.enable_x64()`, the call runs in the loop's thread. See `__call__`.

        Raises:
            ShapeExecError: Whatever a call with these arguments raises.
        """
        return await in_thread(functools.partial(self, *args, **kwargs))

    def padded(self, *args: Any, **kwargs: Any) -> Any:
        """Run a call whose padded results stay on the device at capacity, see `sx.Padded`.

        Nothing is cut, so no size compiles anything. Results without a padded axis are arrays, as
        are all results inside another trace, and those whose symbols are exact in this call.

        Returns:
            The result of the call, as a tree of the same structure.

        Raises:
            ShapeExecError: Whatever a call with these arguments raises.
        """
        runner, own = self._receiver(args)
        return called(runner.for_handles, own, kwargs=kwargs)

    @property
    def map(self) -> MapMethod:
        """Run `fn`, a function of one example, on examples of different sizes in one graph.

        An argument with a spec is a list or tuple of examples; all are equally long. An argument
        whose spec is None is shared. Without `in_shapes` each list or tuple holds examples whose
        axis 0 varies. Examples that need another trace (other dtypes, another outcome of a guard, a
        size of 0) get a separate graph; all others share one graph, at the buckets of their largest
        sizes. The number of examples is bucketed too, by `Exec(examples=...)`. Nothing is donated.

        Args:
            *args: Lists of examples, and the arguments that they share.
            reduce: None: the results are a list, in the order of the examples. `"sum"`: they are
                added, leaf by leaf; the gradient of a single example is not stored if a matrix
                product, a convolution, a scatter or a loop can sum over examples itself.
            **kwargs: The same, by keyword.

        Returns:
            The value of `[fn(shared, x) for x in examples]`, or its sum, up to rounding.

        Raises:
            SpecError: No argument is a list of examples, the lists are not equally long, or the
                results cannot be added.
            ShapeExecError: Whatever a call with one of the examples raises.
        """
        return MapMethod(self, self._receiver)

    def __repr__(self) -> str:
        return f"Exec({_options.name_of(self.settings.fn)}, {self.cache_size} graphs)"

    def variant(self, **changes: Any) -> "Exec":
        """Make an Exec with some settings changed and a separate cache of graphs.

        Args:
            **changes: Fields of `settings`, such as `fn=`, `poison="nan"` or `strategies="pow2"`,
                in the forms that `Exec` takes, and `limits=`. `buckets=` is `strategies=`.

        Returns:
            An Exec with the new settings; it keeps saved graphs and the inferred specs.

        Raises:
            ConfigError: A name is not a setting, or a value is invalid.
            StrategyError: A strategy breaks one of the laws that make padding safe.
            SpecError: A spec is malformed.
        """
        return self._changed(changes)

    @property
    def settings(self) -> Settings:
        """The plain function and all options, with the ladder that `Adaptive` has learned."""
        return self._runner.current

    @property
    def specs(self) -> Specs:
        """The specs of arguments, given or inferred; `print` shows their source. See `Specs`."""
        return self._runner.specs

    @property
    def cache_size(self) -> int:
        """How many compiled graphs are kept."""
        return len(self._runner.store)

    @property
    def stats(self) -> Stats:
        """The counters of everything that has happened so far."""
        return self._runner.store.stats

    @property
    def graphs(self) -> Graphs:
        """The compiled graphs in the cache: the key of each, its use, memory and cost."""
        return self._runner.graphs

    def on_event(self, callback: Callback) -> Callable[[], None]:
        """Call `callback` with an `sx.Event` for each call and for each change of a graph.

        The callback runs in the thread of the event; its exceptions are logged. The logger
        `shapeexec` gets the same events: calls at DEBUG, graphs at INFO, failures at WARNING.

        Args:
            callback: Takes an `Event`. It must not call this Exec.

        Returns:
            A function that removes the callback.

        Raises:
            ConfigError: `callback` cannot be called.
        """
        return self._runner.store.events.add(callback)

    def last_miss(self) -> WhyNew | None:
        """Say why the newest graph was compiled. None: no graph was compiled."""
        return self._runner.last_miss()

    def why_new(self, *args: Any, **kwargs: Any) -> WhyNew:
        """Say why a call with these arguments would compile a graph: a preview, see `Exec`.

        Returns:
            The parts of the key that no compiled graph has, and the graph with the nearest key.

        Raises:
            ShapeExecError: Whatever a call with these arguments raises before it runs.
        """
        runner, own = self._receiver(args)
        return runner.why_new((own, kwargs))

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Show what a call with these arguments would run: a preview, see `Exec`.

        Returns:
            The sizes and buckets of the call, its guards, and the graph that it needs.

        Raises:
            ShapeExecError: Whatever a call with these arguments raises before it runs.
        """
        runner, own = self._receiver(args)
        return runner.plan((own, kwargs))

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Show each mask of a call with these arguments, and why: a preview, see `Exec`.

        Returns:
            The plan of the call, and its masks, including those that were spared.

        Raises:
            ShapeExecError: Whatever a call with these arguments raises before it runs.
        """
        runner, own = self._receiver(args)
        return runner.explain((own, kwargs))

    def trace(self, *args: Any, **kwargs: Any) -> Program:
        """List the equations that a call with these arguments would run: a preview, see `Exec`.

        Returns:
            The program, to `print`: per equation its primitive, symbolic shapes, dtypes, valid
            lengths and capacities in elements, masks with reasons, your line; then guards.

        Raises:
            ShapeExecError: Whatever a call with these arguments raises before it runs.
        """
        return self.explain(*args, **kwargs).program

    def cost_model(self, *args: Any, **kwargs: Any) -> CostModel:
        """Compute the cost of calls at any sizes: a preview of the plain function, see `CostModel`.

        The arguments are examples of any size; without any, the last call's are used.

        Raises:
            ShapeExecError: There are none, or a call with them raises it before it runs.
        """
        runner, own = self._receiver(args)
        return cost_model(runner, (own, kwargs))

    def warmup(
        self,
        /,
        *args: Any,
        progress: Callable[[int, int], None] | bool | None = None,
        workers: int | None = None,
        sizes: Mapping[str, int | Iterable[int]] | None = None,
        **named: int | Iterable[int],
    ) -> int:
        """Compile the graphs for given sizes, those nearest to the example's sizes first.

        Args:
            *args: Example arguments of any size, arrays or `jax.ShapeDtypeStruct`. Without any:
                the arguments of the last planned call.
            progress: Called with (done, total) before each graph, and at the end. True: a bar, by
                rich or tqdm if installed.
            workers: How many graphs are lowered and compiled at once, each by a thread; None: one.
            sizes: As `**named`, for symbols that are named like an option: `{"workers": 8}`.
            **named: Sizes per symbol: `b=range(1, 17), s=512`. A symbol that is left out gets all
                buckets of its strategy, if these end (a ladder, or `maximum=`), and of a ladder in
                `beyond=`. Without any, after `sx.load`: the sizes of the saved graphs.

        Returns:
            How many graphs were compiled.

        Raises:
            ConfigError: There are no examples, a size has no symbol, or there are too many sizes.
        """
        runner, own = self._receiver(args)
        return runner.warm_up(own, sizes, named=named, progress=progress, workers=workers)

    def save(self, directory: Any, *, portable: bool = False) -> int:
        """Write options, statistics and graphs into a directory, for `sx.load`.

        Old files survive a crash. A graph that calls the host is not saved, with a warning.

        Args:
            directory: A path; made if it is missing.
            portable: Whether other kinds of machines may compile it (`jax.export`, flatbuffers).

        Returns:
            How many graphs of this Exec are in the directory now.

        Raises:
            ConfigError: It cannot be written, this process was forked, or `flatbuffers` is missing.
        """
        return save(directory, self.settings, store=self._runner.store, portable=portable)

    def clear(self) -> None:
        """Forget all graphs and traces, and those being compiled; the statistics stay."""
        self._runner.clear()

    def freeze(self) -> None:
        """Make each later call whose graph is not compiled an error."""
        self._runner.store.freeze()
