"""Tracing a function until its guards are settled, with facts given beforehand."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import export

from shapeexec import _compat
from shapeexec._errors import ConfigError, InconclusiveShapeError, made_exact
from shapeexec.shape import _decide, _dim, _library, _transposes  # noqa: F401 - they register rules
from shapeexec.shape._guards import Guard
from shapeexec.shape._host import HostExpression, are_alike
from shapeexec.shape._numbers import with_conversions
from shapeexec.shape._questions import AnyGuard, Need, Questions
from shapeexec.shape._shape import dtype_name
from shapeexec.shape._substitution import Substitution, substitution

_MOST_ATTEMPTS = 32


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array argument of a function to trace: its dims may be symbolic.

    Attributes:
        dims: Its dims, ints or `Dim`.
        dtype: Its dtype, extended ones such as typed PRNG keys too.
        weak_type: Whether it promotes like a Python scalar.
    """

    dims: tuple[Any, ...]
    dtype: Any
    weak_type: bool = False

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)}[{','.join(map(str, self.dims))}]"

    def struct(self, scope: Any, symbols: Substitution) -> jax.ShapeDtypeStruct:
        """What JAX traces, with the dims in `scope`."""
        dims = (_dim.to_jax(symbols.inward(dim), scope) for dim in self.dims)
        return jax.ShapeDtypeStruct(tuple(dims), self.dtype, weak_type=self.weak_type)

    def at(self, sizes: Mapping[str, int]) -> jax.ShapeDtypeStruct:
        """What JAX traces, with every dim known."""
        dims = tuple(_dim.evaluate(dim, sizes) for dim in self.dims)
        return jax.ShapeDtypeStruct(dims, self.dtype, weak_type=self.weak_type)


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """A function's jaxpr over symbols, and the sizes for which it speaks.

    Attributes:
        jaxpr: The closed jaxpr; its inputs are the flat arguments.
        out_tree: The tree of the function's result.
        guards: What has to hold of the sizes.
        symbols: The symbols of the call that are still free: a guard such as `s == 5` makes `s` an
            int.
        substitution: What the symbols of the call are in the jaxpr.
        kinds: What the function computes from sizes on the host, and of what kind the results are:
            at other sizes they may be of another one, or raise.
        open: What JAX's core compared and answered for all sizes: where it is true of some, plain
            JAX may do something else there.
        calls: The calls of functions of JAX's that have stand-ins.
    """

    jaxpr: Any
    out_tree: Any
    guards: tuple[AnyGuard, ...]
    symbols: frozenset[str]
    substitution: Substitution
    kinds: tuple[tuple[HostExpression, Any], ...] = ()
    open: tuple[Guard, ...] = ()
    calls: tuple[_compat.StandInCall, ...] = ()

    @property
    def ragged_arguments(self) -> list[str]:
        """Each argument with a symbolic dim, such as `f32[b,s]`."""
        avals = self.jaxpr.in_avals
        ragged = [a for a in avals if any(not isinstance(dim, int) for dim in a.shape)]
        return list(map(_compat.describe_aval, ragged or avals))

    def admits(self, sizes: Mapping[str, int]) -> bool:
        """Whether the trace speaks for a call at `sizes`."""
        return all(guard.holds(sizes) for guard in self.guards) and are_alike(self.kinds, sizes)


class Stuck(Exception):
    """A function cannot be traced with what is known.

    Attributes:
        error: What was raised while tracing.
        needs: The sizes that user code wanted as Python values.
    """

    def __init__(self, error: Exception, needs: Sequence[Need]) -> None:
        super().__init__(str(error))
        self.error, self.needs = error, tuple(needs)


@dataclasses.dataclass(frozen=True)
class Program:
    """A function to trace; see `trace` for the attributes."""

    fn: Callable[..., Any]
    leaves: Sequence[Leaf]
    sizes: Mapping[str, int] | None
    constraints: tuple[Guard, ...]

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols of the leaves' dims."""
        return frozenset(
            symbol for leaf in self.leaves for dim in leaf.dims for symbol in _dim.symbols_of(dim)
        )

    def run_plain(self) -> None:
        """Let the function raise at the exact sizes what it raises there."""
        assert self.sizes is not None
        try:
            jax.eval_shape(_fresh(self.fn), *[leaf.at(self.sizes) for leaf in self.leaves])
        except Exception as error:
            sizes = ", ".join(f"{symbol}={size}" for symbol, size in sorted(self.sizes.items()))
            error.add_note(f"shapeexec: jax.jit of the plain function raises this at {sizes}, too.")
            raise

    def settled(self, facts: Sequence[Guard], heard: dict[Guard, None] | None = None) -> Trace:
        """Trace until no attempt asks anything new.

        Args:
            facts: Guards to start with.
            heard: See `Questions`.

        Raises:
            Stuck: It cannot be traced with these facts.
            InconclusiveShapeError: A question cannot be decided, for there are no sizes.
        """
        guards: dict[AnyGuard, None] = dict.fromkeys(facts)
        for _ in range(_MOST_ATTEMPTS):
            known = self._known(guards)
            questions = Questions(self.sizes, known.substitution, guards, heard)
            try:
                traced = self._attempt(known, questions)
            except InconclusiveShapeError:
                raise
            except Exception as error:
                if self._known(guards) == known and not self._learns(error, known, questions):
                    raise Stuck(error, questions.needs) from error
                continue
            if self._known(guards) != known:
                continue  # what was decided on the way lets JAX know more
            jaxpr, out_info, calls = traced
            _check_results(jaxpr.out_avals)
            self._check_reshapes(jaxpr.jaxpr, questions)
            symbols = {s for s in self.symbols if known.substitution.inward(s).symbols}
            return Trace(
                jaxpr=jaxpr,
                out_tree=jax.tree.structure(out_info),
                guards=tuple(guards),
                symbols=frozenset(symbols),
                substitution=known.substitution,
                kinds=tuple(questions.kinds.items()),
                open=tuple(questions.open),
                calls=tuple(calls),
            )
        raise InconclusiveShapeError(
            f"the function asks of its sizes more than {_MOST_ATTEMPTS} questions in a row.",
            symbols=frozenset(symbol for guard in guards for symbol in guard.symbols),
            where=_compat.describe_line(next((g.place for g in guards if g.place), None)),
            got=", ".join(map(str, guards)),
            fix="give facts as constraints=...; or "
            + made_exact(symbol for guard in guards for symbol in guard.symbols),
        )

    def _attempt(self, known: "_Known", questions: Questions) -> tuple[Any, Any, Any]:
        scope = export.SymbolicScope(known.constraints)
        structs = [leaf.struct(scope, known.substitution) for leaf in self.leaves]
        try:
            with _compat.listen_to_dims(questions, scope) as calls:
                traced = jax.jit(_fresh(self.fn)).trace(*structs)
                jaxpr = with_conversions(_compat.without_hi_primitives(traced.jaxpr))
        finally:
            questions.has_ended = True
        if any(need.what != "hash" for need in questions.needs):
            # The function caught the exception, and went on as it would not with an int.
            raise TypeError("a symbolic size cannot be interpreted as an integer")
        return jaxpr, traced.out_info, calls

    def _known(self, guards: Mapping[AnyGuard, None]) -> "_Known":
        of_dims = [guard for guard in guards if isinstance(guard, Guard)]
        symbols, others = substitution((*self.constraints, *of_dims))
        accepted: list[str] = []
        # Every symbol is at least 1, also where another dim stands for it.
        texts = [f"{dim} >= 1" for dim in symbols.inner.values() if not dim.is_static]
        for guard in others:
            left, right = symbols.inward(guard.left), symbols.inward(guard.right)
            texts += dataclasses.replace(guard, left=left.text, right=right.text).constraints
        for text in texts:
            if text not in accepted and _is_accepted((*accepted, text)):
                accepted.append(text)
        return _Known(symbols, tuple(accepted))

    def _learns(self, error: Exception, known: "_Known", questions: Questions) -> bool:
        """Whether an exception leads to a guard that lets JAX know more."""
        comparison = _compat.inconclusive_comparison(error)
        if comparison is not None:
            questions.ask(Guard(*comparison, _compat.error_place(error)))
        elif self.sizes is not None and questions.needs and questions.needs[-1].what == "hash":
            questions.pin(questions.needs[-1])
        return self._known(questions.guards) != known

    def _check_reshapes(self, jaxpr: Any, questions: Questions) -> None:
        """JAX leaves open whether a reshape's sizes agree: let them agree here, and guard it."""
        for eqn in _compat.equations(jaxpr):
            if eqn.primitive.name != "reshape":
                continue
            old, new = _product(eqn.invars[0].aval.shape), _product(eqn.params["new_sizes"])
            asked = Guard(_dim.dim_text(old), "==", _dim.dim_text(new), None)
            if asked.left == asked.right or questions.ask(asked):
                continue
            self.run_plain()
            raise InconclusiveShapeError(
                f"a reshape from {asked.left} to {asked.right} elements does not fit "
                f"the sizes {dict(self.sizes or {})}.",
                symbols=questions.substitution.symbols(asked.symbols),
                where=_compat.eqn_line(eqn),
                fix=made_exact(questions.substitution.symbols(asked.symbols)),
            )


@dataclasses.dataclass(frozen=True)
class _Known:
    """What JAX is told of the sizes in one attempt."""

    substitution: Substitution
    constraints: tuple[str, ...]


def _check_results(avals: Sequence[Any]) -> None:
    for aval in avals:
        if not hasattr(aval, "shape"):
            raise ConfigError(
                f"the function returns something of type {type(aval).__name__}, which is no array.",
                fix="return arrays alone",
            )


def _fresh(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of its own: JAX must not find an earlier attempt in its cache."""
    return functools.partial(fn)


def _is_accepted(constraints: tuple[str, ...]) -> bool:
    try:
        export.SymbolicScope(constraints)
    except (ValueError, NotImplementedError, RecursionError):  # b == min(b^2, b) has no end in JAX
        return False
    return True


def _product(dims: Sequence[Any]) -> Any:
    product: Any = 1
    for dim in dims:
        product = product * dim
    return product
