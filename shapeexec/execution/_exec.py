"""Exec: one function at every size, from a handful of compiled graphs.

It wires the rooms together. A call flows in one direction: arguments, plan, graph, pad, run, cut.
"""

import copy
import dataclasses
import functools
import inspect
import os
import threading
import types
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, Never, TypeVar

from shapeexec import _compat
from shapeexec._errors import ConfigError, FrozenError, UnsupportedPrimitiveError
from shapeexec.bucketing import Pow2, Strategy
from shapeexec.execution import _monitor, _options, _pickling, _spellings, _warmup, _worker
from shapeexec.execution._cache import CacheLimits, GraphCache
from shapeexec.execution._compile import Compilable, Graph, compile_graph
from shapeexec.execution._examples import Examples, check_reduce, map_plainly, take_examples
from shapeexec.execution._explain import Explanation, program_of
from shapeexec.execution._functions import MANY, Functions
from shapeexec.execution._graphs import Graphs, graphs_of, row_of
from shapeexec.execution._key import kind_of
from shapeexec.execution._map import Group, Mapper
from shapeexec.execution._method import without_self
from shapeexec.execution._permission import SignatureChanged
from shapeexec.execution._plan import Plan
from shapeexec.execution._planner import Planner, Settings, structs_at_capacity
from shapeexec.execution._proofs import Check
from shapeexec.execution._ready import Outcome, Ready, make_pads, make_ready
from shapeexec.execution._settings import changed, settings_of
from shapeexec.execution._signature import by_position, signature
from shapeexec.execution._split import (
    FUNCTION,
    Call,
    Place,
    Result,
    has_parts,
    is_running,
    places,
    take,
)
from shapeexec.execution._stats import Counters, Stats
from shapeexec.execution._why import WhyNew, check_maskable, why_new
from shapeexec.masking._values import MaskNote
from shapeexec.program import Program

POISON_VARIABLE = "SHAPEEXEC_POISON"
_MOST_READY = 8192
_THRASHING = 2  # graphs made again after they had to leave

Used = TypeVar("Used")
OneSymbol = Strategy | str | int | Sequence[int] | Callable[[int], int]
Buckets = OneSymbol | Mapping[Any, OneSymbol]  # of names, of `Dim`s, and of `UNKNOWN`


@dataclasses.dataclass
class _Seen:
    """What an Exec has met, in each of its views alike.

    Attributes:
        example: The last call that was planned, without its data.
        places: Where arguments hold more than arrays.
        is_frozen: Whether a graph that is missing is an error.
        warned: Of what there has been a warning.
        functions: The functions that are constants of graphs.
        lock: Held to warn.
    """

    example: Call | None = None
    places: frozenset[Place] = frozenset()
    is_frozen: bool = False
    warned: set[str] = dataclasses.field(default_factory=set)
    functions: Functions = dataclasses.field(default_factory=Functions)
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def is_first(self, what: str) -> bool:
        """Whether nobody has been warned of this before."""
        with self.lock:
            is_first = what not in self.warned
            self.warned.add(what)
            return is_first


class Exec:
    """A function that runs at every input size, from one compiled graph per bucket.

    A call pads its arguments to the buckets of its sizes, runs the graph compiled for them, and
    cuts the result to its true shape. The function is rewritten so that padding never changes a
    result: it returns what `fn` returns. Apply `jax.grad`, `jax.vmap` and `jax.checkpoint` to the
    plain function: `Exec(jax.value_and_grad(loss), ...)`. Called inside somebody's trace, such as a
    `jit` or `scan` body, it runs the plain function, for there shapes are static.

    Args:
        fn: A pure function of arrays and of trees of them. What is no array in a tree (a text, a
            function, a field of a module) is a constant, with a graph of its own. Modules and
            variables of flax's nnx are changed as by `nnx.jit`. It may be a method, a module, an
            object or a `functools.partial`: then the arrays that these hold are arguments, too.
        in_shapes: One spec per positional argument, each a pytree prefix of it: a text such as
            `"b, s, 512"`, `"b, 2*s + 1"`, `"b, ..."`, `"b, ?"` or `"_, s"`; a tuple of ints,
            `Dim`s, `UNKNOWN` and None such as `(BATCH, SEQ_LEN, 512)`; an `sx.Shape`; or None for
            what is static. In a text `_`, in a tuple None, is an axis that is static; `?` and
            `UNKNOWN` are a symbol of its own, called after argument and axis (`unknown_0_1`). A
            tuple of dims alone is the spec of the only argument. Arguments with defaults may be
            left out. None alone: axis 0 of each argument that is one array is `b`.
        buckets: A strategy for all symbols, or one per symbol: by name, by a `Dim` that is one
            symbol, or by `UNKNOWN`, for all symbols of that kind. A symbol without one is exact. A
            strategy may be a text (`"pow2"`, `"linear:32"`, `"exact"`), an int, which stands for
            its multiples, `Linear(32)`, a list for a `Ladder`, any object with `bucket(size)`, or a
            function.
        kwarg_shapes: Specs by keyword; a keyword without one is static.
        constraints: A fact about the sizes, such as `"s >= 2"`, or several; they decide questions
            that `fn` asks of its sizes. A call that breaks one is a `ConstraintError`.
        on_unsupported: `"raise"`: what cannot be made exact under padding is an error. `"exact"`:
            its symbols run at their exact sizes, one graph per size; `stats.exact` counts them.
        static_argnums: Positions of arguments that are Python values, a graph for each. Passed by
            name they are static as well.
        static_argnames: Keywords of arguments that are Python values, also where they are passed by
            position.
        donate_argnums: Positions of arguments whose memory the result may take.
        examples: The strategy for how many examples a graph of `map` takes.
        limits: How many graphs, or bytes of them, are kept.
        check: Each trace is held against what plain JAX traces at the true sizes, without compiling
            anything: `"graphs"`, at the first sizes of each graph; `"sizes"`, at all new sizes;
            `"worker"`, at these in another thread while the graph runs, and an answer is held back
            until its sizes are proven; `"off"`, nowhere. Where they differ the sizes run exactly,
            with a warning that tells the line, and `stats.differences` counts them.
        poison: Fill padding with `"nan"`, `"max"`, `"min"` or `"garbage"`, to hunt for a mask that
            is missing. None: what the environment variable SHAPEEXEC_POISON says, else nothing.
        **misspelled: No others; the error prints the line that was meant.

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
        buckets: Buckets | None = None,
        *,
        kwarg_shapes: Mapping[str, Any] | None = None,
        constraints: str | Iterable[str] = (),
        on_unsupported: Literal["raise", "exact"] = "raise",
        static_argnums: int | Sequence[int] = (),
        static_argnames: str | Sequence[str] = (),
        donate_argnums: int | Sequence[int] = (),
        examples: Strategy | Callable[[int], int] | None = None,
        limits: CacheLimits | None = None,
        check: Check = "graphs",
        poison: str | None = None,
        **misspelled: Never,
    ) -> None:
        if misspelled and callable(fn):
            _spellings.refuse(fn, misspelled, in_shapes, buckets)
        if isinstance(in_shapes, Mapping):
            _spellings.refuse_mapping(fn, in_shapes)
        _options.check_kind("limits", limits, CacheLimits, "limits=sx.CacheLimits(graphs=256)")
        settings = settings_of(
            fn,
            in_shapes=in_shapes,
            kwarg_shapes=kwarg_shapes,
            strategies=Pow2() if buckets is None else buckets,
            constraints=constraints,
            on_unsupported=on_unsupported,
            poison=os.environ.get(POISON_VARIABLE) if poison is None else poison,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            examples=Pow2() if examples is None else examples,
            check=check,
        )
        self._start(settings, limits or CacheLimits())

    def _start(self, settings: Settings, limits: CacheLimits) -> None:
        self._settings = settings
        self._limits = limits
        self._counters = Counters()
        self._cache: GraphCache[Graph] = GraphCache(self._limits)
        self._planner = self._planner_of(self._settings)
        self._mappers: dict[Hashable, Mapper] = {}
        self._ready: dict[Hashable, Ready] = {}
        self._seen = _Seen(places=frozenset({FUNCTION} if has_parts(settings.fn) else ()))
        self._core = self
        self._method: Exec | None = None
        self._is_method = False
        _monitor.listen()
        functools.update_wrapper(self, settings.fn, updated=())
        if getattr(settings.fn, "__isabstractmethod__", False):
            self.__isabstractmethod__ = True  # `abc` asks it of what a class holds

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `fn` on the arguments.

        Raises:
            SpecError: The arguments contradict the specs.
            ConstraintError: The sizes break a constraint.
            BucketOverflowError: A size lies past the last bucket.
            UnsupportedPrimitiveError: A primitive of `fn` cannot be made exact under padding.
            InconclusiveShapeError: `fn` asks of a size what only an exact size can answer.
            FrozenError: The Exec is frozen, and the call needs a graph that it does not hold.
        """
        if self._is_method:
            return self._of_self(args)(*args[1:], **kwargs)
        if not _compat.trace_state_clean():
            self._count_plain(1)
            return self._settings.fn(*args, **kwargs)
        args, kwargs = by_position(self._settings, args, kwargs)
        result, call = self._run(args, kwargs)
        return result.whole(call) if type(result) is Result else result

    def map(self, *args: Any, reduce: Literal["sum"] | None = None, **kwargs: Any) -> Any:
        """Run `fn`, a function of one example, on examples of different sizes in one graph.

        An argument with a spec is a list of examples, or a tuple; all are equally long. An argument
        whose spec is None is shared. Without `in_shapes` each list or tuple holds examples. What
        needs another trace (other dtypes, another outcome of a guard, a size of 0) gets a graph of
        its own; all other examples share the one at the buckets of their greatest sizes. How many a
        graph takes is a bucket as well: of `Exec(examples=...)`. Nothing is donated.

        Args:
            *args: Lists of examples, and what they share.
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

        Example:
            >>> mean = Exec(lambda x: x.mean(), in_shapes=("s",))
            >>> [float(m) for m in mean.map([jax.numpy.arange(5.0), jax.numpy.ones(3)])]
            [2.0, 1.0]
        """
        if self._is_method:
            return self._of_self(args).map(*args[1:], reduce=reduce, **kwargs)
        check_reduce(reduce)
        args, kwargs = by_position(self._settings, args, kwargs)
        examples = take_examples(self._settings, args, kwargs, reduce, self._seen.places)
        if not _compat.trace_state_clean():
            self._count_plain(examples.count)
            return map_plainly(examples, reduce)
        return self._mapper(examples).run(examples, reduce) if examples.count else []

    def __repr__(self) -> str:
        return f"Exec({_options.name_of(self._settings.fn)}, {len(self._cache)} graphs)"

    def variant(self, **changes: Any) -> "Exec":
        """An Exec with some settings changed, and graphs of its own.

        Args:
            **changes: Fields of `settings`, such as `fn=`, `poison="nan"` or `strategies="pow2"`,
                in the forms that `Exec` takes. `buckets=` is `strategies=`.

        Raises:
            ConfigError: One is no setting, or has a value that cannot work.
            StrategyError: A strategy breaks one of the laws that make padding safe.
            SpecError: A spec is malformed.
        """
        other = type(self).__new__(type(self))
        other._start(changed(self._settings, changes), self._limits)
        return other

    # As Python's functions are

    def __get__(self, instance: Any, owner: type | None = None) -> "Exec":
        """The method of an instance: an Exec of the arguments behind `self`, with shared graphs.

        What `self` holds is an argument: arrays are data, all else is constant. So instances that
        differ in arrays only share graphs, and an attribute that is set later is heeded.
        """
        if self._method is None:
            self._method = self.variant()
            self._method._start(without_self(self._settings), self._limits)
            self._method._is_method = True
        if instance is None:
            return self._method
        return self._method._of_self((instance,))

    def __copy__(self) -> "Exec":
        return self.variant()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Exec":
        return self.variant(fn=copy.deepcopy(self._settings.fn, memo))

    def __reduce__(self) -> Any:
        fn = self._settings.fn
        if (
            isinstance(fn, types.MethodType)
            and _name_in(type(fn.__self__), fn.__name__) is not None
        ):
            return getattr, (fn.__self__, fn.__name__)
        if _pickling.is_global(self, fn):
            return fn.__qualname__
        _pickling.check_settings(self._settings)
        return _made_anew, (type(self), self._settings, self._limits)

    # Looking before running

    @property
    def settings(self) -> Settings:
        """The plain function, and how calls map to graphs."""
        return self._settings

    @property
    def cache_size(self) -> int:
        """How many compiled graphs are kept."""
        return len(self._cache)

    @property
    def stats(self) -> Stats:
        """What has happened so far."""
        cache = self._cache
        return self._counters.snapshot(
            graphs=len(cache), device_bytes=cache.device_bytes, evictions=cache.evictions
        )

    @property
    def graphs(self) -> Graphs:
        """The compiled graphs that are kept: what names each, its use, memory and cost."""
        return graphs_of(self._cache.entries(), self._counters, self._planner.exactness)

    def why_new(self, *args: Any, **kwargs: Any) -> WhyNew:
        """Which part of what names a graph no graph has, so that a call would compile one.

        It may trace, but compiles and runs nothing. Arguments may be `jax.ShapeDtypeStruct`, or
        traced, which stand for arrays of their shapes.

        Raises:
            ShapeExecError: Whatever a call with these arguments raises before it runs.
        """
        if self._is_method:
            return self._of_self(args).why_new(*args[1:], **kwargs)
        call = self._call(*by_position(self._settings, args, kwargs))
        plan, _ = self._planned(check_maskable, call)
        return why_new(plan, self.graphs)

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """What a call with these arguments would run; it may trace, but compiles and runs nothing.

        Arguments may be `jax.ShapeDtypeStruct`, or traced, which stand for arrays of their shapes.
        """
        if self._is_method:
            return self._of_self(args).plan(*args[1:], **kwargs)
        return self._planner.plan(self._call(*by_position(self._settings, args, kwargs)))

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Each mask of the graph that a call with these arguments would run, and why.

        Arguments may be `jax.ShapeDtypeStruct`, or traced, which stand for arrays of their shapes.
        """
        if self._is_method:
            return self._of_self(args).explain(*args[1:], **kwargs)

        def notes(plan: Plan, call: Call) -> list[MaskNote]:
            return plan.recipe.notes(*structs_at_capacity(plan, call.arrays, call.named))

        call = self._call(*by_position(self._settings, args, kwargs))
        plan, told = self._planned(notes, call)
        return Explanation(plan, program_of(plan, call, told))

    def trace(self, *args: Any, **kwargs: Any) -> Program:
        """What the graph of a call with these arguments does, equation by equation; `print` it.

        Of each equation it tells the primitive, the symbolic shapes and dtypes of operands and
        results with their valid lengths and capacities, in elements, its masks and why they are
        there or spared, and your line; of all, the guards and what Python computes from the sizes.
        Nothing is compiled. Arguments may be `jax.ShapeDtypeStruct`, or traced, which stand for
        arrays of their shapes.

        Raises:
            ShapeExecError: Whatever a call with these arguments raises before it runs.
        """
        return self.explain(*args, **kwargs).program

    # Keeping graphs

    def warmup(
        self,
        /,
        *args: Any,
        progress: Callable[[int, int], None] | int | Iterable[int] | None = None,
        **sizes: int | Iterable[int],
    ) -> int:
        """Compile the graphs that sizes need, before there is data.

        Args:
            *args: Example arguments, of any size; arrays or `jax.ShapeDtypeStruct`. None at all:
                those of the last call that was planned.
            progress: Called with (done, total) before each graph and at the end. Sizes are those of
                a symbol of this name.
            **sizes: Per symbol the sizes to prepare for: `b=range(1, 17), s=512`. One that is left
                out is prepared for all buckets of its strategy, if they end: by `maximum=` or in a
                ladder, and for those of a ladder beyond the end. What goes on there without an end
                is left out.

        Returns:
            How many graphs were compiled.

        Raises:
            ConfigError: There are no examples, a symbol has no sizes or is not known, or the
                function's guards make too many combinations.
        """
        if self._is_method:
            return self._of_self(args).warmup(*args[1:], progress=progress, **sizes)
        if progress is not None and not callable(progress):
            progress, sizes["progress"] = None, progress
        example = self._call(*by_position(self._settings, args, {})) if args else self._seen.example
        if example is None:
            raise ConfigError(
                "warmup: the shapes and dtypes of the arguments are not known yet.",
                fix="pass example arguments, such as jax.ShapeDtypeStruct, or call once before",
            )
        make = functools.partial(self._graph, origin="warmup")
        compile_one = functools.partial(self._planned, make)
        return _warmup.warm(self._planner, example, sizes, compile_one, progress)

    def clear(self) -> None:
        """Forget all graphs and traces; the statistics stay."""
        self._ready.clear()
        self._cache.clear()
        self._planner.clear()
        for mapper in list(self._mappers.values()):
            mapper.clear()

    def freeze(self) -> None:
        """Make it an error from now on if a call needs a graph that is not compiled."""
        self._seen.is_frozen = True

    # Private

    def _of_self(self, args: Sequence[Any]) -> "Exec":
        """The method of the instance that is the first argument."""
        if not args:
            raise ConfigError(
                f"{_options.name_of(self._settings.fn)} is a method, and no instance is given.",
                fix="call it on an instance, or pass one as the first argument",
            )
        bound = type(self).__new__(type(self))
        vars(bound).update(vars(self))
        method = types.MethodType(self._settings.fn, args[0])
        bound._settings = dataclasses.replace(self._settings, fn=method)
        bound._is_method = False
        vars(bound)["__wrapped__"] = method  # of which `inspect.signature` tells
        return bound

    def _count_plain(self, count: int) -> None:
        """Count calls of the plain function in somebody's trace; tell of the first."""
        self._counters.add(plain_calls=count)
        if is_running() or not self._seen.is_first("plain"):
            return  # what runs in another Exec is padded there
        told = _options.name_of(self._settings.fn)
        name = told if told.isidentifier() else "fn"
        file, line = _compat.caller_place() or ("<unknown>", 0)
        warnings.warn_explicit(
            f"shapeexec: the Exec of {told} was called inside a transformation (jit, grad, vmap, "
            "scan, ...), where shapes are fixed: the plain function runs, nothing is padded, and "
            "each size is compiled anew.\n"
            f"  Where: {_compat.describe_line(f'{file}:{line}')}\n"
            f"  Fix:   transform first, pad last: Exec(jax.grad({name})), not "
            f"jax.grad(Exec({name})); for jit, use the Exec in its place",
            RuntimeWarning,
            file,
            line,
        )

    def _planner_of(self, settings: Settings) -> Planner:
        return Planner(settings, self._cache.__contains__, self._counters.add)

    def _mapper(self, examples: Examples) -> Mapper:
        """The mapper for the specs of the Exec, or for what a call's defaults are."""
        settings, specs = examples.settings, None
        if settings is not self._settings:
            named = tuple((settings.kwarg_shapes or {}).items())
            specs = (settings.in_shapes, named, examples.positions, examples.names)
        mapper = self._mappers.get(specs)
        if mapper is None:
            core = self._core  # a view of an instance would keep it alive
            planner = self._planner
            if specs is not None:
                planner = core._planner_of(dataclasses.replace(settings, fn=core._settings.fn))
            mapper = Mapper(
                planner, specs, self._cache.find, core._map_graph, core._finish, core._see
            )
            mapper = self._mappers.setdefault(specs, mapper)
        return mapper

    def _map_graph(self, group: Group, args: Any, kwargs: Any) -> Graph:
        return self._cache.get(
            group.key, lambda: self._compiled(group.recipe, group.sizes, args, kwargs, group)
        )

    def _call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """The call, taken apart after a look at each leaf."""
        self._see(places(self._settings.fn, args, kwargs))
        return _take(self._settings, args, kwargs, self._seen.places)

    def _see(self, found: Iterable[Place]) -> None:
        """Remember where arguments hold more than arrays."""
        self._seen.places |= frozenset(found)

    def _run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Call]:
        """The result as the graph gives it, and the call."""
        call = _take(self._settings, args, kwargs, self._seen.places)
        known_as = signature(self._settings, call)
        ready = self._ready.get(known_as)
        graph = None if ready is None else self._cache.find(ready.key)
        if ready is not None and graph is not None:
            # What is static to the specs may have other dtypes or another structure than last
            # time, or be no array at all, which JAX tells by a TypeError.
            try:
                outcome = ready.run(graph, call.arrays, call.named, retrace=False)
                return self._finish(ready, graph, outcome, "hits"), call
            except (SignatureChanged, TypeError):
                pass
        known, call = self._seen.places, self._call(args, kwargs)
        if self._seen.places != known:
            known_as = signature(self._settings, call)
        return self._run_planned(call, known_as), call

    def _run_planned(self, call: Call, known_as: Hashable) -> Any:
        plan, graph = self._planned(self._graph, call, is_proven_later=True)
        ready = make_ready(plan, make_pads(plan, call.arrays, call.named))
        may_wait = self._planner.may_wait(plan)
        proven = _worker.begin(lambda: self._planner.plan(call)) if may_wait else lambda: plan
        outcome = ready.run(graph, call.arrays, call.named, retrace=True)
        if proven().key != plan.key:
            return self._run_planned(call, known_as)  # as it has to be at these sizes
        self._remember(known_as, ready, call)
        return self._finish(ready, graph, outcome, "hits" if plan.is_compiled else "misses")

    def _planned(
        self, use: Callable[[Plan, Call], Used], call: Call, *, is_proven_later: bool = False
    ) -> tuple[Plan, Used]:
        """The plan of a call, and what `use(plan, call)` makes of it.

        Where that meets something that cannot be padded, and may be exact, the plan is another.
        """
        while True:
            plan = self._planner.plan(call, is_proven_later=is_proven_later)
            try:
                return plan, use(plan, call)
            except UnsupportedPrimitiveError as error:
                if not self._planner.make_fewest_exact(plan, error, call):
                    raise

    def _graph(self, plan: Plan, call: Call, origin: str = "made") -> Graph:
        return self._cache.get(plan.key, lambda: self._compile(plan, call, origin))

    def _compile(self, plan: Plan, call: Call, origin: str) -> Graph:
        for key in self._seen.functions.gone():
            self._cache.drop(key)
        self._warn_of_new_functions(self._seen.functions.meet(call.functions(), plan.key))
        args, kwargs = structs_at_capacity(plan, call.arrays, call.named)
        return self._compiled(plan.recipe, plan.size_vector, args, kwargs, plan, origin=origin)

    def _compiled(
        self,
        recipe: Compilable,
        sizes: Any,
        args: Any,
        kwargs: Any,
        told: Plan | Group,
        *,
        origin: str = "made",
    ) -> Graph:
        if self._seen.is_frozen:
            raise FrozenError(
                f"frozen, and no graph is compiled for {told}.",
                got=f"arguments {', '.join(recipe.trace.ragged_arguments)}{_places_of(told)}",
                fix=_before_freeze(told),
            )
        row = row_of(told, origin)
        graph = compile_graph(recipe, sizes, args, kwargs, row)
        self._counters.add(compiles=graph.compiles, compile_seconds=graph.seconds.compile)
        self._warn_if_thrashing(told)
        return graph

    def _finish(self, ready: Ready | Group, graph: Graph, outcome: Outcome, kind: str) -> Any:
        self._counters.call(kind, ready.padding, ready.exact, ready.elements, graph.tally)
        if outcome.compiles or outcome.copy_compiles:
            self._counters.add(
                compiles=outcome.compiles,
                compile_seconds=outcome.compile_seconds,
                copy_compiles=outcome.copy_compiles,
            )
            if self._seen.is_frozen and outcome.compiles:
                raise FrozenError(
                    "frozen, and JAX compiled the graph anew for this call.",
                    why="the arguments stand on other devices than those it was compiled for",
                    fix="warm up with arguments on the devices that calls will use",
                )
        return outcome.result

    def _remember(self, known_as: Hashable, ready: Ready, call: Call) -> None:
        if known_as is not None:
            if len(self._ready) >= _MOST_READY:
                self._ready.clear()  # sizes that occur again are back after one plan each
            self._ready[known_as] = ready
        self._seen.example = call.remembered()

    def _warn_of_new_functions(self, met: tuple[str, Any] | None) -> None:
        if met is None or not self._seen.is_first("functions"):
            return
        path, code = met
        warnings.warn(
            f"shapeexec: {path} has been another function {MANY} times, each from one definition, "
            "and each has graphs of its own.\n"
            f"  Where: {_compat.describe_line(f'{code.co_filename}:{code.co_firstlineno}')}\n"
            "  Fix:   define the function once, before the calls, and pass what changes in it as "
            "arguments",
            RuntimeWarning,
            stacklevel=2,
        )

    def _warn_if_thrashing(self, told: Plan | Group) -> None:
        if self._cache.remade < _THRASHING:
            return
        if self._seen.is_first("thrashing"):
            warnings.warn(
                f"shapeexec: graphs are compiled again after they left the cache, now for {told}; "
                f"{len(self._cache)} are kept, {self._cache.evictions} have left.\n"
                f"  Fix:   limits=sx.{self._limits.doubled()}, or use a coarser strategy",
                RuntimeWarning,
                stacklevel=2,
            )


def _places_of(told: Plan | Group) -> str:
    places = kind_of(told.key).sharding_texts.items()
    return "".join(f"; {path} on {text}" for path, text in places)


def _before_freeze(told: Plan | Group) -> str:
    """The way out for a graph that a frozen Exec does not hold."""
    if isinstance(told, Group):
        return "warm up by a map over as many examples before freeze(), or do not freeze"
    sizes = ", ".join(f"{symbol}={size}" for symbol, size in told.sizes.items())
    way_out = f"warm up these sizes before freeze(), by `warmup(*args, {sizes})`"
    return f"{way_out} with args such as these; or do not freeze"


def bucketed(
    in_shapes: Sequence[Any] | None = None, buckets: Buckets | None = None, **options: Any
) -> Callable[[Callable[..., Any]], Exec]:
    """`Exec` as a decorator; the arguments are those of `Exec` behind `fn`.

    Example:
        >>> @bucketed(("b, s",), {"b": Pow2(), "s": Pow2()})
        ... def total(x):
        ...     return x.sum()
    """
    if callable(in_shapes):
        raise ConfigError(
            f"bucketed is given a function, {_options.name_of(in_shapes)}, in the place of specs.",
            why="the arguments are those of Exec behind fn, and what they return is the decorator",
            fix="@sx.bucketed(), with parentheses, or sx.Exec(fn)",
        )
    return lambda fn: Exec(fn, in_shapes, buckets, **options)


def taken(settings: Settings, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """A call of an Exec with these settings, taken apart."""
    return _take(settings, args, kwargs, places(settings.fn, args, kwargs))


def run_taken(ex: Exec, call: Call) -> Any:
    """The result of a call as its graph gives it; no argument is changed."""
    return ex._run_planned(call, None)


def _take(
    settings: Settings, args: Sequence[Any], kwargs: Mapping[str, Any], at: Iterable[Place]
) -> Call:
    return take(
        settings.fn,
        args,
        kwargs,
        static_argnums=settings.static_argnums,
        static_argnames=settings.static_argnames,
        at=at,
    )


def _made_anew(kind: type[Exec], settings: Settings, limits: CacheLimits) -> Exec:
    """An Exec that was pickled: its graphs stayed where they were."""
    ex = kind.__new__(kind)
    ex._start(settings, limits)
    return ex


def _name_in(owner: type, name: str) -> Exec | None:
    """The Exec that a class has under a name."""
    found = inspect.getattr_static(owner, name, None)
    return found if isinstance(found, Exec) else None
