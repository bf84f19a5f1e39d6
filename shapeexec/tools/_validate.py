"""`validate`: compares an Exec with its own unpadded function, with every kind of padding.

`_locate` finds the equation that is wrong, `_closeness` decides what rounding explains.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from shapeexec._errors import (
    ConfigError,
    ConstraintError,
    ShapeExecError,
    ValidationError,
    exact_strategies,
)
from shapeexec.execution import Exec
from shapeexec.execution._bind import BoundCall
from shapeexec.execution._cache import CacheLimits
from shapeexec.execution._function import runner_of
from shapeexec.execution._handle import cut_all
from shapeexec.execution._inference import with_specs
from shapeexec.execution._plan import Plan
from shapeexec.execution._planner import Planner
from shapeexec.execution._signature import by_position
from shapeexec.execution._split import Call, taken
from shapeexec.execution._store import Store
from shapeexec.masking._poison import POISONS, check_poison
from shapeexec.tools import _closeness, _samples, _unmasked
from shapeexec.tools._gradients import by_floats, corner, gradient_of, is_inexact
from shapeexec.tools._locate import Culprit, locate


@dataclasses.dataclass(frozen=True)
class Validation:
    """The report of a successful `validate`.

    Attributes:
        comparisons: The number of runs that were compared with the unpadded function.
        sizes: Their sizes.
        poisons: The values that filled their padding; None: zeros.
        skipped: The comparisons that were not possible, with reasons.
        rounding: Results that differ by more than usual although the graph is the plain program and
            each equation is right: the function amplifies its own rounding.
        differences: Sizes at which the symbolic trace is a different program from the plain one,
            with the first difference. They ran at their exact sizes.

    Example:
        >>> report = sx.validate(sx.Exec(jnp.sum, ("s",)), np.ones(5, np.float32), rounds=1)
        >>> report.comparisons > 0, report.differences
        (True, ())
    """

    comparisons: int
    sizes: tuple[Mapping[str, int], ...]
    poisons: tuple[str | None, ...]
    skipped: tuple[str, ...]
    rounding: tuple[str, ...]
    differences: tuple[str, ...] = ()

    def __str__(self) -> str:
        summary = f"{self.comparisons} comparisons at {len(self.sizes)} sets of sizes: all equal"
        if not self.comparisons:
            summary = "nothing was compared"
        notes = [f"  skipped: {text}" for text in self.skipped]
        notes += [f"  rounding: {text}" for text in self.rounding]
        notes += [f"  another function at symbolic sizes: {text}" for text in self.differences]
        return "\n".join([summary, *notes])


def validate(
    ex: Exec,
    *args: Any,
    rounds: int = 5,
    seed: int = 0,
    gradients: bool = True,
    poisons: Sequence[str | None] = (None, *POISONS),
    progress: Callable[[int, int], None] | None = None,
    **kwargs: Any,
) -> Validation:
    """Check that padding changes no result of `ex`: values and gradients, under every poison.

    `ex` itself does not change: the runs have separate graphs. Results are equal if their trees,
    dtypes, weak types, shapes and values are; floats may differ by rounding, and NaN equals NaN.

    Args:
        ex: What to check.
        *args: The arguments of a call, of any size. Their rows are drawn at random for other sizes.
        rounds: The number of sets of sizes: those of the call, their buckets, 1, then random ones.
        seed: Seeds the random sizes and rows.
        gradients: Whether to compare gradients by all float arguments, too.
        poisons: The values that fill padding; None: zeros, as in an ordinary call.
        progress: Called with (done, total) before each comparison and at the end.
        **kwargs: The keyword arguments of the call.

    Returns:
        A report. Sizes at which the unpadded function itself fails are skipped.

    Raises:
        ValidationError: A result differs. It names the first equation whose valid elements differ.
        ConfigError: An option has an invalid value.
        ShapeExecError: Whatever `ex` raises and the unpadded function does not.

    Example:
        >>> ex = Exec(lambda x: x.mean(), buckets=Pow2())
        >>> print(validate(ex, jax.numpy.arange(5.0), rounds=2))
        20 comparisons at 2 sets of sizes: all equal
    """
    _check_rounds(rounds)
    poisons = tuple(map(check_poison, poisons))
    args, kwargs = cut_all(*by_position(ex.settings, args, kwargs=kwargs))
    ex = _with_specs(ex, args, kwargs=kwargs)
    rng = np.random.default_rng(seed)
    check_of = functools.partial(_Check, args=args, kwargs=kwargs, poisons=poisons)
    first = check_of("the result", ex)
    chosen = list(_samples.size_sets(first.planner, first.bound.sizes, rounds=rounds, rng=rng))
    checks = [first]
    if gradients and any(map(is_inexact, jax.tree.leaves((first.call.arrays, first.call.named)))):
        if ex.settings.masking:
            derived = ex.variant(fn=gradient_of(ex.settings))
            checks.append(check_of("the gradient", derived, may_be_refused=True))
        else:
            own = functools.partial(_GradientCheck, args=args, kwargs=kwargs, poisons=poisons)
            checks.append(own("the gradient", ex))
    report = _Report(progress, len(chosen) * len(checks) * len(poisons))
    for at in chosen:
        for check in checks:
            call = _samples.resized(check.call, check.dims, sizes=at, rng=rng)
            check.run(call, at, report=report)
    report.step(0)
    return Validation(
        comparisons=report.compared,
        sizes=tuple(chosen),
        poisons=poisons,
        skipped=tuple(report.skipped),
        rounding=tuple(report.rounding),
        differences=tuple(report.differences),
    )


def _with_specs(ex: Exec, args: Any, *, kwargs: Any) -> Exec:
    """An Exec with specs: its own, or those found so that the call has something to pad."""
    own = ex.settings
    if own.in_shapes is not None:
        return ex
    settings = with_specs(own, taken(own, args, kwargs=kwargs))
    other = ex.variant(in_shapes=settings.in_shapes, kwarg_shapes=settings.kwarg_shapes)
    runner_of(other).planner.measured.adopt(runner_of(ex).planner.measured)
    return other


def _check_rounds(rounds: Any) -> None:
    if not isinstance(rounds, int) or rounds < 1:
        raise ConfigError(
            f"rounds={rounds!r} is not an integer >= 1.", option="rounds", fix="rounds=5"
        )


@dataclasses.dataclass
class _Report:
    """The comparisons so far."""

    progress: Callable[[int, int], None] | None
    total: int
    done: int = 0
    compared: int = 0
    skipped: dict[str, None] = dataclasses.field(default_factory=dict)
    rounding: dict[str, None] = dataclasses.field(default_factory=dict)
    differences: dict[str, None] = dataclasses.field(default_factory=dict)

    def step(self, count: int = 1) -> None:
        """Report progress, then count the next comparisons."""
        if self.progress is not None:
            self.progress(self.done, self.total)
        self.done += count


class _Check:
    """A function, and an Exec of it for each poison, whose graphs serve all sizes.

    Attributes:
        planner: Plans its calls.
        store: Counts differences between traces and plain programs.
        call: The call that others are made from.
        bound: The call bound to the specs.
        dims: The dims of each ragged leaf, by its number.
    """

    def __init__(
        self,
        what: str,
        ex: Exec,
        *,
        args: Any,
        kwargs: Any,
        poisons: Sequence[str | None],
        may_be_refused: bool = False,
    ) -> None:
        self.what = what
        self.may_be_refused = may_be_refused  # nobody has asked for its gradient yet
        self.store = Store(CacheLimits())
        self.planner = Planner(dataclasses.replace(ex.settings, check="sizes"), self.store)
        self.call = taken(ex.settings, args, kwargs=kwargs)
        self.bound = self.planner.bind(self.call)
        self.dims = self.bound.ragged_dims
        changes: dict[str, Any] = {"check": "sizes", "returns": "device"}
        self.padded = [ex.variant(poison=poison, **changes) for poison in poisons]
        for one in self.padded:
            runner_of(one).planner.measured.adopt(runner_of(ex).planner.measured)

    def run(self, call: Call, sizes: Mapping[str, int], *, report: _Report) -> None:
        """Compare the runs of one call."""
        at = ", ".join(f"{symbol}={size}" for symbol, size in sizes.items())
        which = f"{self.what} at {at}"
        plain = jax.jit(self.plain(call))
        leaves = jax.tree.leaves((tuple(call.arrays), dict(call.named)))
        try:
            want = jax.block_until_ready(plain(*leaves))  # some of XLA's errors come late
        except Exception as error:  # user code may raise anything at these sizes
            report.skipped.setdefault(f"{which}, for it fails: {_first_line(error)}")
            report.step(len(self.padded))
            return
        for padded in self.padded:
            report.step()
            try:
                bound = self.planner.bind(call)
                got = self._run_padded(padded, bound, at=at, report=report)
            except ShapeExecError as error:
                if not (self.may_be_refused or isinstance(error, ConstraintError)):
                    raise
                report.skipped.setdefault(f"{which}: {_first_line(error)}")
                continue
            report.compared += 1
            text = _difference(got, want)
            if text is None:
                continue
            plan, poison = self.planner.draft(bound), padded.settings.poison
            what = f"{which}: {text}"
            if not padded.settings.masking:
                plan = runner_of(padded).planner.draft(bound)
                culprit = self._located(plan, bound)
                if culprit is not None or not _is_explained(plain, leaves, got=got, want=want):
                    _unmasked.refuse(what, culprit, plan=plan, poison=poison)
            _raise_if_an_equation_differs(plan, poison, call=bound, what=what)
            _raise_if_the_trees_differ(plan, poison, what=what, got=got, want=want)
            if not _is_explained(plain, leaves, got=got, want=want):
                text = f"{text}; {UNEXPLAINED}"
            report.rounding.setdefault(f"{which}: {text}")

    def plain(self, call: Call) -> Callable[..., Any]:
        """The unpadded function, of flat arrays."""
        return call.pure()

    def _located(self, plan: Plan, call: BoundCall) -> Culprit | None:
        """The first equation that lets padding in, in a function that masks for itself."""
        leaves = jax.tree.leaves((tuple(call.call.arrays), dict(call.call.named)))
        pairs = list(zip(leaves, _unmasked.padded_leaves(plan, call), strict=True))
        return _unmasked.first_difference(_unmasked.programs_of_call(plan, call), pairs)

    def _run_padded(self, padded: Exec, call: BoundCall, *, at: str, report: _Report) -> Any:
        """Run a graph that is proven to be the plain program; otherwise run exactly."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "shapeexec: at symbolic sizes", RuntimeWarning)
            before = self.store.stats.differences
            plan = self.planner.draft(call)
            if self.store.stats.differences > before:
                reason = "; ".join(dict.fromkeys(plan.reasons.values()))
                report.differences.setdefault(f"{self.what} at {at}: {reason}")
            return runner_of(padded).run_bound(call, None, began=time.perf_counter())


class _GradientCheck(_Check):
    """Compares the gradients of a function that masks for itself, of valid results only.

    An Exec of the gradient function would also sum over the padding of results.
    """

    def plain(self, call: Call) -> Callable[..., Any]:
        return by_floats(call.pure())

    def _run_padded(self, padded: Exec, call: BoundCall, *, at: str, report: _Report) -> Any:
        del at, report  # there is no other trace that could differ
        runner = runner_of(padded)
        runner.run_bound(call, None, began=time.perf_counter())  # which measures modes
        plan = runner.planner.draft(call)
        whole, true = _unmasked.padded_leaves(plan, call), jax.tree.leaves(self._structs(call))
        found = jax.jit(by_floats(call.fn, shapes=plan.out_shapes))(*whole)
        shapes = [leaf.shape for leaf in true if is_inexact(leaf)]
        return tuple(map(corner, found, shapes))

    def _located(self, plan: Plan, call: BoundCall) -> Culprit | None:
        true, whole = jax.tree.leaves(self._structs(call)), _unmasked.padded_leaves(plan, call)
        programs = (
            _unmasked.program(by_floats(call.fn, shapes=plan.out_shapes), true),
            _unmasked.program(by_floats(call.fn, shapes=plan.out_shapes), whole),
        )
        return _unmasked.first_difference(programs, list(zip(true, whole, strict=True)))

    @staticmethod
    def _structs(call: BoundCall) -> Any:
        return (tuple(call.call.arrays), dict(call.call.named))


def _raise_if_an_equation_differs(
    plan: Plan, poison: str | None, *, call: BoundCall, what: str
) -> None:
    recipe = dataclasses.replace(plan.recipe, poison=poison)
    culprit = locate(dataclasses.replace(plan, recipe=recipe), call)
    if culprit is not None:
        raise ValidationError(
            f"padding changes {what}.",
            primitive=culprit.primitive,
            sizes=dict(plan.sizes),
            poison=poison,
            where=culprit.where,
            got=f"{culprit.primitive}: {culprit.shapes}; {culprit.difference}",
            why=f"the rule of `{culprit.primitive}` lets padding ({poison or 'zeros'}) through",
            fix=_reported("equation", plan),
        )


def _reported(what: str, plan: Plan) -> str:
    """The fix for a defect. `on_unsupported="exact"` would not help: no rule reports it."""
    return f"report this {what}; until it is mended, {exact_strategies(plan.sizes)} in buckets="


UNEXPLAINED = "a larger difference than changing the arguments in their last bit explains"


def _is_explained(plain: Callable[..., Any], leaves: Sequence[Any], *, got: Any, want: Any) -> bool:
    """Whether changing the arguments in their last bit explains the difference of results."""
    return _closeness.is_rounding(
        lambda *flat: jax.tree.leaves(plain(*flat)),
        leaves,
        got=jax.tree.leaves(got),
        want=jax.tree.leaves(want),
    )


def _raise_if_the_trees_differ(
    plan: Plan, poison: str | None, *, what: str, got: Any, want: Any
) -> None:
    """Rounding never changes the tree, shape, dtype or weak type of a result."""

    def described(tree: Any) -> Any:
        leaves, structure = jax.tree.flatten(tree)
        return structure, [(x.shape, x.dtype, getattr(x, "weak_type", False)) for x in leaves]

    if described(got) != described(want):
        raise ValidationError(
            f"symbolic sizes change {what}.",
            primitive=None,
            sizes=dict(plan.sizes),
            poison=poison,
            why="each equation is right by itself, and the graph is the plain program",
            fix=_reported("function", plan),
        )


def _difference(got: Any, want: Any) -> str | None:
    """Describe how two results differ by more than rounding; None: they do not."""
    if jax.tree.structure(got) != jax.tree.structure(want):
        return f"{jax.tree.structure(got)} instead of {jax.tree.structure(want)}"
    pairs = zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True)
    for (path, a), b in pairs:
        text = _closeness.difference(a, b) or _other_weak_type(a, b)
        if text is not None:
            return f"{jax.tree_util.keystr(path) or 'the array'} is {text}"
    return None


def _other_weak_type(got: Any, want: Any) -> str | None:
    weak, expected = (bool(getattr(x, "weak_type", False)) for x in (got, want))
    return None if weak == expected else f"weakly typed: {weak} instead of {expected}"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"
