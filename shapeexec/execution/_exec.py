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
    plain function: `Exec(jax.value_and_grad(loss), ...)`. Called inside somebody's trace, such as a
    `jit` or `scan` body, it runs the plain function, for there shapes are static.

    `plan`, `explain`, `trace` and `why_new` preview a call: they may trace `fn`, but do not compile
    or run it. There a `jax.ShapeDtypeStruct` or a traced array may stand for each array.

    Args:
        fn: A pure function of arrays and of trees of them. A leaf that is no array is a constant;
            each value has a graph of its own. Modules and variables of flax's nnx are changed as
            by `nnx.jit`. A method, a module, an object or a `functools.partial`: its arrays are
            arguments, too.
        in_shapes: One spec per positional argument, each a pytree prefix of it: a text such as
            `"b, s, 512"`, `"b, 2*s + 1"`, `"b, ..."`, `"b, ?"` or `"_, s"`; a tuple of ints,
            `Dim`s, `UNKNOWN` and None such as `(BATCH, SEQ_LEN, 512)`; an `sx.Shape`; or None for
            a static argument. In a text `_`, in a tuple None, is an axis that is static; `?` and
            `UNKNOWN` are a symbol of its own, called after argument and axis (`unknown_0_1`). A
            tuple of dims alone is the spec of the only argument. Arguments with defaults may be
            left out. None alone: jaxtyping's annotations, and what calls show; see `specs`.
        buckets: A strategy for all symbols, or one per symbol: by name, by a `Dim` that is one
            symbol, or by `UNKNOWN`, for all symbols of that kind. A symbol without one is exact. A
            strategy may be a text (`"pow2"`, `"linear:32"`, `"exact"`), an int, which stands for
            its multiples, a list for a `Ladder`, any object with `bucket(size)`, or a function.
        kwarg_shapes: Specs by keyword; a keyword without one is static.
        constraints: A fact about the sizes, such as `"s >= 2"`, or several; they decide questions
            that `fn` asks of its sizes. A call that breaks one is a `ConstraintError`.
        on_unsupported: `"raise"`: what cannot be made exact under padding is an error. `"exact"`:
            its symbols run at their exact sizes, one graph per size; `stats.exact` counts them.
        static_argnums: Positions of Python values, a graph for each; static by name as well.
        static_argnames: Keywords of such arguments, also where they are passed by position.
        donate_argnums: Positions of arguments whose memory the result may take.
        examples: The strategy for how many examples a graph of `map` takes.
        limits: How many graphs, or bytes of them, are kept.
        check: Each trace is held against what plain JAX traces at the true sizes, without compiling
            anything: `"graphs"`, at the first sizes of each graph; `"sizes"`, at all new sizes;
            `"worker"`, at these in another thread while the graph runs, and an answer is held back
            until its sizes are proven; `"off"`, nowhere. Where they differ the sizes run exactly,
            with a warning that tells the line, and `stats.differences` counts them.
        missing: What a call does whose graph is missing. `"wait"`: it makes the graph, and runs.
            `"larger"`: it runs at once in the cheapest larger graph that is there, if any, while
            its own is compiled in another thread; maps wait. Graphs serve all sizes up to their
            buckets, which may take more masks. `"error"`: it raises; only `warmup` compiles.
        compiling: XLA's options, and whether a graph that compiles fast serves first.
        on_memory: What a call does whose graph does not fit into memory: it raises, or with
            `"exact"` its bucket runs at exact sizes, but for maps and donated arguments.
        returns: `"device"`: results are arrays of their true shapes, on the device. `"padded"`: see
            `padded`. `"host"`: results are NumPy's, cut without compiling; typed keys stay JAX's.
        poison: Fill padding with `"nan"`, `"max"`, `"min"` or `"garbage"`, to find a missing mask.
            None: what the environment variable SHAPEEXEC_POISON says, else nothing.
        masking: False: `fn` masks for itself, and runs as it is on padded arguments: all sizes that
            it reads are buckets. Results are cut. `sx.validate` tells if padding changes one.
        padding: What padding holds then: `"zeros"`, NumPy's `"edge"`, `"reflect"` and `"wrap"`, a
            number, `"adaptive"` (measured), or one of these by argument: `{1: "edge", "mask": 0}`.
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
        """Run `fn` on its arguments, and return what it returns, up to rounding; see `Exec`.

        Raises:
            SpecError: The arguments contradict the specs.
            ConstraintError: The sizes break a constraint.
            BucketOverflowError: A size lies past the last bucket.
            UnsupportedPrimitiveError: A primitive of `fn` cannot be made exact under padding.
            InconclusiveShapeError: `fn` asks of a size what only an exact size can answer.
            FrozenError: The Exec is frozen, and the call needs a graph that it does not hold.
            OutOfMemoryError: The graph does not fit into memory.
        """
        runner, own = self._receiver(args)
        return called(runner, own, kwargs=kwargs)

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        """Run a call in asyncio: `await run.acall(x)` gives the result when it is computed.

        A thread of the loop's default executor compiles and waits. A task that is cancelled leaves
        its call to end by itself. Under a setting of JAX that is a thread's own, such as `with
        jax.enable_x64()`, the call runs in the loop's thread. See `__call__`.

        Raises:
            ShapeExecError: Whatever a call with these arguments raises.
        """
        return await in_thread(functools.partial(self, *args, **kwargs))

    def padded(self, *args: Any, **kwargs: Any) -> Any:
        """Run a call whose ragged results stay on the device at capacity, see `sx.Padded`.

        Nothing is cut, so no size compiles anything. What has no ragged axis is an array, as are
        all results inside somebody's trace, and those whose symbols are exact in this call.

        Returns:
            What a call returns, a tree of the same structure.

        Raises:
            ShapeExecError: Whatever a call with these arguments raises.
        """
        runner, own = self._receiver(args)
        return called(runner.for_handles, own, kwargs=kwargs)

    @property
    def map(self) -> MapMethod:
        """Run `fn`, a function of one example, on examples of different sizes in one graph.

        An argument with a spec is a list of examples, or a tuple; all are equally long. One whose
        spec is None is shared. Without `in_shapes` each list or tuple holds examples, ragged along
        axis 0. What needs another trace (other dtypes, another outcome of a guard, a size of 0) has
        a graph of its own; all others share the one at the buckets of their greatest sizes. How
        many a graph takes is a bucket as well: of `Exec(examples=...)`. Nothing is donated.

        Args:
            *args: Lists of examples, and the arguments that they share.
            reduce: None: the results are a list, in the order of the examples. `"sum"`: they are
                added, leaf by leaf; in sums of gradients no gradient of one example is made where a
                matrix product, a convolution, a scatter or a loop can sum over examples itself.
            **kwargs: Likewise by keyword.

        Returns:
            What `[fn(shared, x) for x in examples]` gives, or its sum, up to rounding.

        Raises:
            SpecError: No argument is a list of examples, the lists are not equally long, or the
                results cannot be added.
            ShapeExecError: Whatever a call with one of the examples raises.
        """
        return MapMethod(self, self._receiver)

    def __repr__(self) -> str:
        return f"Exec({_options.name_of(self.settings.fn)}, {self.cache_size} graphs)"

    def variant(self, **changes: Any) -> "Exec":
        """Make an Exec with some settings changed, and graphs of its own.

        Args:
            **changes: Fields of `settings`, such as `fn=`, `poison="nan"` or `strategies="pow2"`,
                in the forms that `Exec` takes, and `limits=`. `buckets=` is `strategies=`.

        Returns:
            An Exec with the other settings; it keeps saved graphs, and what calls have shown.

        Raises:
            ConfigError: One is no setting, or has a value that cannot work.
            StrategyError: A strategy breaks one of the laws that make padding safe.
            SpecError: A spec is malformed.
        """
        return self._changed(changes)

    @property
    def settings(self) -> Settings:
        """The plain function, and how calls map to graphs; of `Adaptive` what it has learned."""
        return self._runner.current

    @property
    def specs(self) -> Specs:
        """The specs of arguments, given or found; `print` gives their source. See `Specs`."""
        return self._runner.specs

    @property
    def cache_size(self) -> int:
        """How many compiled graphs are kept."""
        return len(self._runner.store)

    @property
    def stats(self) -> Stats:
        """What has happened so far."""
        return self._runner.store.stats

    @property
    def graphs(self) -> Graphs:
        """The compiled graphs that are kept: what names each, its use, memory and cost."""
        return self._runner.graphs

    def on_event(self, callback: Callback) -> Callable[[], None]:
        """Call `callback` with an `sx.Event` for each call, and for all that happens to a graph.

        It is called in the thread where that happens; what it raises is logged. The logger
        `shapeexec` has the same events: calls at DEBUG, graphs at INFO, failures at WARNING.

        Args:
            callback: Takes an `Event`. It must not call this Exec.

        Returns:
            A function that ends it.

        Raises:
            ConfigError: `callback` cannot be called.
        """
        return self._runner.store.events.add(callback)

    def last_miss(self) -> WhyNew | None:
        """Say why the newest graph was made: what no graph had before. None: none was made."""
        return self._runner.last_miss()

    def why_new(self, *args: Any, **kwargs: Any) -> WhyNew:
        """Say why a call with these arguments would compile a graph: a preview, see `Exec`.

        Returns:
            What names the graph of the call and no other graph, and the graph that comes nearest.

        Raises:
            ShapeExecError: Whatever a call with these arguments raises before it runs.
        """
        runner, own = self._receiver(args)
        return runner.why_new((own, kwargs))

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Tell what a call with these arguments would run: a preview, see `Exec`.

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
            The plan of the call, and its masks, also those that are not needed.

        Raises:
            ShapeExecError: Whatever a call with these arguments raises before it runs.
        """
        runner, own = self._receiver(args)
        return runner.explain((own, kwargs))

    def trace(self, *args: Any, **kwargs: Any) -> Program:
        """List the equations that a call with these arguments would run: a preview, see `Exec`.

        Returns:
            The program, to `print`: per equation its primitive, symbolic shapes, dtypes, valid
            lengths and capacities in elements, masks with reasons, and your line; then guards.

        Raises:
            ShapeExecError: Whatever a call with these arguments raises before it runs.
        """
        return self.explain(*args, **kwargs).program

    def cost_model(self, *args: Any, **kwargs: Any) -> CostModel:
        """Tell what calls cost at any sizes: a preview of the plain function, see `CostModel`.

        The arguments are examples of any size; none at all: those of the last call.

        Raises:
            ShapeExecError: There are none, or what a call with them raises before it runs.
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
        """Compile the graphs that sizes need, those nearest to the example's sizes first.

        Args:
            *args: Example arguments, of any size; arrays or `jax.ShapeDtypeStruct`. None at all:
                those of the last call that was planned.
            progress: Called with (done, total) before each graph, and at the end. True: a bar, by
                rich or tqdm if installed.
            workers: How many graphs are lowered and compiled at once, each by a thread; None: one.
            sizes: As `**named`, for symbols that are named like an option: `{"workers": 8}`.
            **named: Per symbol its sizes: `b=range(1, 17), s=512`. One that is left out gets all
                buckets of its strategy, if they end: by `maximum=` or in a ladder, and those of a
                ladder beyond the end. None at all after `sx.load`: those of the saved graphs.

        Returns:
            How many graphs were compiled.

        Raises:
            ConfigError: There are no examples, the sizes are not those of the symbols, or too many.
        """
        runner, own = self._receiver(args)
        return runner.warm_up(own, sizes, named=named, progress=progress, workers=workers)

    def save(self, directory: Any, *, portable: bool = False) -> int:
        """Write options, statistics and graphs into a directory, for `sx.load`.

        A crash leaves the old files. A graph that calls the host is not saved; a warning tells it.

        Args:
            directory: A path; made if it is missing.
            portable: Whether other kinds of machines may compile it (`jax.export`, flatbuffers).

        Returns:
            How many of the graphs are in the directory now.

        Raises:
            ConfigError: It cannot be written, this process was forked, or `flatbuffers` is missing.
        """
        return save(directory, self.settings, store=self._runner.store, portable=portable)

    def clear(self) -> None:
        """Forget all graphs and traces, also what is being made; the statistics stay."""
        self._runner.clear()

    def freeze(self) -> None:
        """Make it an error from now on if a call needs a graph that is not compiled."""
        self._runner.store.freeze()
