"""Traces a function at symbolic sizes, repeatedly until no new guard appears.

Facts about the sizes may be given. `_trace` searches for the facts that a function needs.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import export

from shapeexec import _compat
from shapeexec._errors import ConfigError, InconclusiveShapeError, made_exact
from shapeexec.shape import _dim, _trees
from shapeexec.shape._arithmetic import Listener
from shapeexec.shape._guards import Guard
from shapeexec.shape._host import HostExpression, are_alike
from shapeexec.shape._numbers import with_conversions
from shapeexec.shape._questions import AnyGuard, Need, Questions
from shapeexec.shape._shape import dtype_name
from shapeexec.shape._substitution import Substitution, substitution

OF_PLAIN = "shapeexec: jax.jit of the plain function raises this"
"""The beginning of the note on an error that the plain function raises, too."""

_MOST_ATTEMPTS = 32


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array argument of a function to trace; its dims may be symbolic.

    Attributes:
        dims: One int or `Dim` per axis.
        dtype: The dtype; extended dtypes such as typed PRNG keys are allowed.
        weak_type: Whether the array promotes like a Python scalar.
    """

    dims: tuple[Any, ...]
    dtype: Any
    weak_type: bool = False

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)}[{','.join(map(str, self.dims))}]"

    def struct(self, scope: Any, symbols: Substitution) -> jax.ShapeDtypeStruct:
        """The abstract argument for JAX, with symbolic dims of `scope`."""
        dims = (_dim.to_jax(symbols.inward(dim), scope) for dim in self.dims)
        return jax.ShapeDtypeStruct(tuple(dims), self.dtype, weak_type=self.weak_type)

    def at(self, sizes: Mapping[str, int]) -> jax.ShapeDtypeStruct:
        """The abstract argument for JAX, with an int for every dim."""
        dims = tuple(_dim.evaluate(dim, sizes) for dim in self.dims)
        return jax.ShapeDtypeStruct(dims, self.dtype, weak_type=self.weak_type)


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """A function's jaxpr over symbols, and the sizes for which it holds.

    Attributes:
        jaxpr: The closed jaxpr; its inputs are the flat arguments.
        out_tree: The tree of the function's result.
        guards: The conditions on the sizes.
        symbols: The symbols of the call that the guards leave free. A guard such as `s == 5` makes
            `s` an int.
        substitution: The dims that replace symbols of the call in the jaxpr.
        kinds: The type, dtype and shape of each value that the function computes from sizes on the
            host. At other sizes they may differ, or the computation may raise.
        open: Comparisons that JAX's core could not decide, so that it took its default answer.
            Where the true answer is another one, plain JAX may trace another program.
        calls: The calls of JAX functions that stand-ins replaced.
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
        """The arguments with a symbolic dim, such as `f32[b,s]`; all arguments if none has one."""
        avals = self.jaxpr.in_avals
        ragged = [a for a in avals if any(not isinstance(dim, int) for dim in a.shape)]
        return list(map(_compat.describe_aval, ragged or avals))

    def admits(self, sizes: Mapping[str, int]) -> bool:
        """Whether the trace holds for a call at `sizes`."""
        return all(guard.holds(sizes) for guard in self.guards) and are_alike(self.kinds, sizes)


class Stuck(Exception):
    """The function cannot be traced with the known facts about its sizes.

    Attributes:
        error: The exception that tracing raised.
        needs: The sizes that user code wanted as Python values.
    """

    def __init__(self, error: Exception, needs: Sequence[Need]) -> None:
        super().__init__(str(error))
        self.error, self.needs = error, tuple(needs)


@dataclasses.dataclass(frozen=True)
class TraceRequest:
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
        """Trace the plain function at the exact sizes, without a result.

        Raises:
            Exception: Whatever the plain function raises there, with a note.
        """
        assert self.sizes is not None
        try:
            jax.eval_shape(_fresh(self.fn), *[leaf.at(self.sizes) for leaf in self.leaves])
        except ConfigError:
            raise  # ours, as for an attribute that changes: `jax.jit` need not raise it
        except Exception as error:  # whatever the user's function raises, with a note
            sizes = ", ".join(f"{symbol}={size}" for symbol, size in sorted(self.sizes.items()))
            error.add_note(f"{OF_PLAIN} at {sizes}, too.")
            raise

    def settled(self, facts: Sequence[Guard], candidates: dict[Guard, None] | None = None) -> Trace:
        """Trace until an attempt adds no guard.

        Args:
            facts: Guards to start with.
            candidates: See `Questions`.

        Raises:
            Stuck: It cannot be traced with these facts.
            InconclusiveShapeError: A question cannot be decided, for there are no sizes.
        """
        guards: dict[AnyGuard, None] = dict.fromkeys(facts)
        for _ in range(_MOST_ATTEMPTS):
            known = self._known(guards)
            questions = Questions(self.sizes, known.substitution, guards, candidates)
            try:
                traced, listener = self._attempt(known, questions)
            except InconclusiveShapeError:
                raise
            except Exception as error:  # JAX and user code raise anything at symbolic sizes
                if self._known(guards) == known and not self._learns(
                    error, known, questions=questions
                ):
                    raise Stuck(error, questions.needs) from error
                continue
            if self._known(guards) != known:
                continue  # the guards of this attempt let JAX decide more
            _check_results(traced)
            self._check_reshapes(traced.jaxpr.jaxpr, questions)
            symbols = {s for s in self.symbols if known.substitution.inward(s).symbols}
            return Trace(
                jaxpr=traced.jaxpr,
                out_tree=traced.out_tree,
                guards=tuple(guards),
                symbols=frozenset(symbols),
                substitution=known.substitution,
                kinds=tuple(listener.kinds.items()),
                open=tuple(questions.open),
                calls=traced.calls,
            )
        raise _asks_without_end(guards)

    def _attempt(self, known: "_Known", questions: Questions) -> "tuple[_Traced, Listener]":
        scope = export.SymbolicScope(known.constraints)
        structs = [leaf.struct(scope, known.substitution) for leaf in self.leaves]
        listener = Listener(questions)
        try:
            with _compat.listen_to_dims(listener, scope) as calls:
                traced = jax.jit(_fresh(self.fn)).trace(*structs)
                jaxpr = with_conversions(_compat.without_hi_primitives(traced.jaxpr))
        finally:
            listener.has_ended = True
        if any(need.what != "hash" for need in questions.needs):
            # The function caught this TypeError. With an int there would have been none to catch.
            raise TypeError("a symbolic size cannot be interpreted as an integer")
        return _Traced(jaxpr, _trees.structure(traced.out_info), tuple(calls)), listener

    def _known(self, guards: Mapping[AnyGuard, None]) -> "_Known":
        of_dims = [guard for guard in guards if isinstance(guard, Guard)]
        symbols, others = substitution((*self.constraints, *of_dims))
        accepted: list[str] = []
        # Every symbol is at least 1, also one that another dim replaces.
        texts = [f"{dim} >= 1" for dim in symbols.inner.values() if not dim.is_static]
        for guard in others:
            left, right = symbols.inward(guard.left), symbols.inward(guard.right)
            texts += dataclasses.replace(guard, left=left.text, right=right.text).constraints
        for text in texts:
            if text not in accepted and _is_accepted((*accepted, text)):
                accepted.append(text)
        return _Known(symbols, tuple(accepted))

    def _learns(self, error: Exception, known: "_Known", *, questions: Questions) -> bool:
        """Turn an exception into a guard, and tell whether JAX can decide more with it."""
        comparison = _compat.inconclusive_comparison(error)
        if comparison is not None:
            questions.ask(Guard(*comparison, _compat.error_place(error)))
        elif self.sizes is not None and questions.needs and questions.needs[-1].what == "hash":
            questions.pin(questions.needs[-1])
        return self._known(questions.guards) != known

    def _check_reshapes(self, jaxpr: Any, questions: Questions) -> None:
        """Add a guard that the sizes of each reshape agree, which JAX does not check."""
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
    """The facts about the sizes in one attempt: replaced symbols, and constraints for JAX."""

    substitution: Substitution
    constraints: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class _Traced:
    """The result of one attempt; see `Trace` for the attributes."""

    jaxpr: Any
    out_tree: Any
    calls: tuple[_compat.StandInCall, ...]


def _asks_without_end(guards: Mapping[AnyGuard, None]) -> InconclusiveShapeError:
    symbols = frozenset(symbol for guard in guards for symbol in guard.symbols)
    return InconclusiveShapeError(
        f"the function makes more than {_MOST_ATTEMPTS} comparisons in a row.",
        symbols=symbols,
        where=_compat.describe_line(next((g.place for g in guards if g.place), None)),
        got=", ".join(map(str, guards)),
        fix=f"give facts as constraints=...; or {made_exact(symbols)}",
    )


def _check_results(traced: _Traced) -> None:
    avals = _trees.unflatten(traced.out_tree, traced.jaxpr.out_avals)
    for keys, aval in _trees.leaves_with_path(avals):
        if not hasattr(aval, "shape"):
            raise ConfigError(
                f"the function returns something of type {type(aval).__name__}, "
                "which is not an array.",
                option="fn",
                where=f"result{_trees.keystr(keys)}",
                fix="return arrays only",
            )


def _fresh(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a new object, so that JAX's cache does not return an earlier attempt."""
    return functools.partial(fn)


def _is_accepted(constraints: tuple[str, ...]) -> bool:
    try:
        export.SymbolicScope(constraints)
    except (ValueError, NotImplementedError, RecursionError):  # b == min(b^2, b) recurses forever
        return False
    return True


def _product(dims: Sequence[Any]) -> Any:
    product: Any = 1
    for dim in dims:
        product = product * dim
    return product
