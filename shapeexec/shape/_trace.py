"""Tracing a function at symbolic sizes, and the guards under which the trace is right.

JAX carries the symbols. What the function asks of a size that only a known size can answer is
decided at the sizes of the call at hand and remembered as a guard. Padding is not known here.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Never

import jax
import numpy as np
from jax import export

from shapeexec import _compat
from shapeexec._errors import InconclusiveShapeError
from shapeexec.shape import _dim
from shapeexec.shape._guards import Guard, pin

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

    def struct(self, scope: Any) -> jax.ShapeDtypeStruct:
        """What JAX traces, with the dims in `scope`."""
        dims = tuple(_dim.to_jax(dim, scope) for dim in self.dims)
        return jax.ShapeDtypeStruct(dims, self.dtype, weak_type=self.weak_type)

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
        symbols: The symbols that are still free: a guard such as `s == 5` makes `s` an int.
    """

    jaxpr: Any
    out_tree: Any
    guards: tuple[Guard, ...]
    symbols: frozenset[str]

    def admits(self, sizes: Mapping[str, int]) -> bool:
        """Whether the trace speaks for a call at `sizes`."""
        return all(guard.holds(sizes) for guard in self.guards)


def trace(
    fn: Callable[..., Any],
    leaves: Sequence[Leaf],
    sizes: Mapping[str, int] | None,
    *,
    constraints: Iterable[Guard] = (),
) -> Trace:
    """Trace `fn`, a function of flat arrays, at symbolic sizes.

    Args:
        fn: Called with one tracer per leaf.
        leaves: The arguments' dims and dtypes.
        sizes: The size of each symbol in the call at hand, which decides the guards; None if there
            is no call: then a question that needs a size is an error.
        constraints: Facts about the sizes that the user vouches for.

    Raises:
        InconclusiveShapeError: `fn` asks of a symbolic size what no guard can answer.
        Exception: Whatever `fn` raises at the exact sizes as well.
    """
    attempt = _Attempt(fn, leaves, sizes, tuple(constraints))
    for _ in range(_MOST_ATTEMPTS):
        traced = attempt.run()
        if traced is not None:
            return traced
    raise InconclusiveShapeError(
        f"the function asks of its sizes more than {_MOST_ATTEMPTS} questions in a row.",
        got=", ".join(str(guard) for guard in attempt.guards),
        fix="give facts as constraints=..., or leave these symbols out of buckets= (exact sizes)",
    )


@dataclasses.dataclass
class _Attempt:
    """What is known so far while a function is traced again and again."""

    fn: Callable[..., Any]
    leaves: Sequence[Leaf]
    sizes: Mapping[str, int] | None
    constraints: tuple[Guard, ...]
    guards: dict[Guard, None] = dataclasses.field(default_factory=dict)
    refused: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def run(self) -> Trace | None:
        """The trace, or None if something was learnt that needs another attempt."""
        known = len(self._facts())
        self.refused.clear()
        scope = export.SymbolicScope(self._facts())
        structs = [leaf.struct(scope) for leaf in self.leaves]
        try:
            with _compat.decide_dim_comparisons(self._decide):
                traced = jax.jit(_fresh(self.fn)).trace(*structs)
        except InconclusiveShapeError:
            raise
        except Exception as error:
            if len(self._facts()) == known:
                self._learn(error)
            return None
        if len(self._facts()) > known:
            return None  # what was decided on the way lets JAX know more: dims become ints
        self._check_reshapes(traced.jaxpr.jaxpr)
        avals = [*traced.jaxpr.in_avals, *traced.jaxpr.out_avals]
        symbols = {s for aval in avals for d in aval.shape for s in _dim.symbols_of(d)}
        return Trace(
            jaxpr=traced.jaxpr,
            out_tree=jax.tree.structure(traced.out_info),
            guards=tuple(self.guards),
            symbols=frozenset(symbols),
        )

    def _facts(self) -> tuple[str, ...]:
        """The constraints of the next scope: those that JAX can express and accepts."""
        accepted: list[str] = []
        for guard in (*self.constraints, *self.guards):
            for text in guard.constraints:
                if text not in accepted and _is_accepted((*accepted, text)):
                    accepted.append(text)
        return tuple(accepted)

    def _decide(self, op: str, left: Any, right: Any, place: str) -> Any:
        if op == "hash":
            self._refuse(left, place, "unhashable")
        if isinstance(right, np.ndarray | np.generic):
            if right.ndim:
                self._refuse(left, place, "not comparable with an array")
            right = right.item()
        if not export.is_symbolic_dim(right):
            right = _as_int(right)
            if right is NotImplemented:
                return right
        if not export.is_symbolic_dim(left - right):
            return None  # the difference is a known int: JAX's answer is proven
        asked = Guard(_dim.dim_text(left), "==", _dim.dim_text(right), place)
        return self._decided(asked).op == "=="

    def _refuse(self, dim: Any, place: str, what: str) -> Never:
        self.refused.append((_dim.dim_text(dim), place))
        raise TypeError(f"{what}: the size `{dim}` is not known while tracing")

    def _decided(self, asked: Guard) -> Guard:
        if self.sizes is None:
            raise InconclusiveShapeError(
                f"`{asked}` cannot be decided for all sizes.",
                symbols=asked.symbols,
                where=_compat.describe_line(asked.place),
                fix="pass a constraint that decides it, or make the dim static",
            )
        guard = asked.decided(self.sizes)
        self.guards.setdefault(guard)
        return guard

    def _learn(self, error: Exception) -> None:
        """Turn a failed attempt into a guard, or raise what the user should see."""
        comparison = _compat.inconclusive_comparison(error)
        if comparison is not None:
            left, op, right = comparison
            known = set(self._facts())
            self._decided(Guard(left, op, right, _compat.error_place(error)))
            if set(self._facts()) != known:
                return
        if self.refused and self.sizes is not None:
            dim, place = self.refused[-1]
            if self._pin(_dim.symbols_of(dim), place):
                return
        if self.sizes is not None:
            # Does the function fail by itself? Then its own error is the one to see.
            self._run_plain(self.sizes)
        raise _told(error) from error

    def _run_plain(self, sizes: Mapping[str, int]) -> None:
        """Let the function raise at the exact sizes what it raises there."""
        jax.eval_shape(_fresh(self.fn), *[leaf.at(sizes) for leaf in self.leaves])

    def _pin(self, symbols: frozenset[str], place: str | None = None) -> bool:
        """Make symbols exact; whether that was news."""
        assert self.sizes is not None
        before = len(self.guards)
        for symbol in sorted(symbols):
            guard = dataclasses.replace(pin(symbol, self.sizes[symbol]), place=place)
            self.guards.setdefault(guard)
        return len(self.guards) > before

    def _check_reshapes(self, jaxpr: Any) -> None:
        """JAX leaves open whether a reshape's sizes agree: let them agree here, and guard it."""
        for eqn in _compat.equations(jaxpr):
            if eqn.primitive.name != "reshape":
                continue
            old, new = _product(eqn.invars[0].aval.shape), _product(eqn.params["new_sizes"])
            asked = Guard(_dim.dim_text(old), "==", _dim.dim_text(new), None)
            if asked.left == asked.right:
                continue
            if self._decided(asked).op == "!=":
                assert self.sizes is not None
                self._run_plain(self.sizes)
                raise InconclusiveShapeError(
                    f"a reshape from {asked.left} to {asked.right} elements does not fit "
                    f"the sizes {dict(self.sizes)}.",
                    symbols=asked.symbols,
                    where=_compat.eqn_line(eqn),
                    fix="leave these symbols out of buckets= (exact sizes)",
                )


def _as_int(value: Any) -> Any:
    """The int that `value` equals; NotImplemented if there is none.

    With NotImplemented a JAX array compares itself with the size, as it does with an int.
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() else NotImplemented
    if hasattr(value, "shape"):
        return NotImplemented
    index: Any = getattr(value, "__index__", None)
    return NotImplemented if index is None else index()


def _fresh(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of its own: JAX must not find an earlier attempt in its cache."""
    return functools.partial(fn)


def _is_accepted(constraints: tuple[str, ...]) -> bool:
    try:
        export.SymbolicScope(constraints)
    except (ValueError, NotImplementedError):
        return False
    return True


def _product(dims: Sequence[Any]) -> Any:
    product: Any = 1
    for dim in dims:
        product = product * dim
    return product


# What JAX's errors mean, by the text they carry: (pattern, what it means, way out).
_MEANINGS = (
    (
        "requires a constant|interpreted as an integer|process_primitive|'_DimExpr'.*int",
        "needs the size as a Python int (a loop over it, `int(s)`, `range(s)`, `np.zeros(s)`)",
        "loop with `jax.lax.scan` or `jax.lax.fori_loop`",
    ),
    (
        "associative scan|associative_scan",
        "is an associative scan, whose graph depends on the exact size",
        "use `jax.lax.scan` or `jnp.cumsum`",
    ),
    (
        "non-integer powers|must be real number|float\\(\\)",
        "needs the size as a Python float (`float(s)`, `math.sqrt(s)`, `s ** 0.5`)",
        "use `jnp.sqrt(s)`: JAX arithmetic keeps the size symbolic",
    ),
    (
        "Cannot divide evenly",
        "divides a size that may not divide evenly",
        'write a spec such as "4*s", so that it divides',
    ),
    (
        "is inconclusive",
        "compares sizes in a way that no guard decides",
        "pass a constraint that decides it",
    ),
    (
        "incompatible shapes for broadcasting|Incompatible shapes|got incompatible shapes",
        "combines axes whose sizes agree in this call only",
        "use one symbol for axes that always have the same size",
    ),
)


def _told(error: Exception) -> InconclusiveShapeError:
    """JAX's error of symbolic tracing, in our words."""
    text = str(error)
    meaning, way_out = "cannot be traced at a symbolic size", "use JAX functions of the size"
    for pattern, means, fix in _MEANINGS:
        if re.search(pattern, text, re.DOTALL):
            meaning, way_out = means, fix
            break
    symbols = re.search(r"Symbolic dimension '(.+?)' used in a context", text)
    return InconclusiveShapeError(
        f"the function {meaning}.",
        symbols=_dim.symbols_of(symbols[1]) if symbols else frozenset(),
        where=_compat.describe_line(_compat.error_place(error)),
        why=text.strip().splitlines()[0] if text.strip() else type(error).__name__,
        fix=f'{way_out}; or make the symbol exact: on_unsupported="exact"',
    )
