"""Tracing a function at symbolic sizes, and the guards under which the trace is right.

JAX carries the symbols. A question that only a known size can answer is decided at the sizes of the
current call and kept as a guard. Padding is not known here.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from shapeexec.shape import _decide, _dim, _library, _transposes
from shapeexec.shape._attempt import Leaf, Stuck, Trace, TraceRequest
from shapeexec.shape._budget import Budget, SpentError
from shapeexec.shape._guards import Guard, pin
from shapeexec.shape._meanings import search_given_up, untraceable
from shapeexec.shape._search import needed

__all__ = ["Leaf", "Trace", "trace"]

_REGISTERED = (_decide, _library, _transposes)
"""Imported because they register functions with JAX and `_compat`."""

_MOST_ROUNDS = 6


def trace(
    fn: Callable[..., Any],
    leaves: Sequence[Leaf],
    *,
    sizes: Mapping[str, int] | None,
    constraints: Iterable[Guard] = (),
) -> Trace:
    """Trace `fn`, a function of flat arrays, at symbolic sizes.

    Where JAX cannot trace the function symbolically, the fewest facts of the sizes that let it are
    searched: first those that JAX's own code asked for, such as `s >= 2`, `t == s` or
    `mod(s, 2) == 1`, which become guards; then the exact sizes.

    Args:
        fn: Called with one tracer per leaf.
        leaves: The arguments' dims and dtypes.
        sizes: The size of each symbol in the current call, which decides the guards. None: there
            is no call, and a question that needs a size is an error.
        constraints: Facts about the sizes that the user guarantees.

    Raises:
        InconclusiveShapeError: `fn` asks something of a symbolic size that no guard can answer.
            The error's symbols are the fewest that have to be exact, or all symbols if the search
            was given up.
        Exception: Whatever `fn` raises at the exact sizes, too.
    """
    program = TraceRequest(fn, leaves, sizes, tuple(constraints))
    try:
        return program.settled(())
    except Stuck as stuck:
        if sizes is None:
            raise untraceable(stuck, program, symbols=frozenset()) from stuck.error
        # If the plain function fails by itself, the user should see that error.
        program.run_plain()
        try:
            facts, exact = _facts(program)
        except SpentError as spent:
            raise search_given_up(stuck, program, spent=str(spent)) from stuck.error
        if exact:
            raise untraceable(stuck, program, symbols=exact) from stuck.error
        try:
            return program.settled(facts)
        except Stuck as again:  # with these facts known, the function asks for further ones
            raise untraceable(again, program, symbols=program.symbols) from again.error


def _facts(program: TraceRequest) -> tuple[list[Guard], frozenset[str]]:
    """The fewest facts with which a program can be traced, and the symbols that must be exact."""
    assert program.sizes is not None
    equal = (
        Guard(a, "==", b)
        for a, b in itertools.combinations(sorted(program.symbols), 2)
        if program.sizes[a] == program.sizes[b]
    )
    candidates = dict.fromkeys(equal)  # JAX compares some shapes by their hash
    budget = Budget()

    def works(facts: list[Guard]) -> bool:
        budget.spend(candidates)
        try:
            program.settled(facts, candidates)
        except Stuck:
            return False
        return True

    for _ in range(_MOST_ROUNDS):  # a trace that gets further may ask for more, maybe without end
        known = len(candidates)
        if works(_by_severity(candidates)) or len(candidates) == known:
            break
    facts = _by_severity(candidates)
    pins = [pin(symbol, program.sizes[symbol]) for symbol in sorted(program.symbols)]
    pins = [guard for guard in pins if guard not in candidates]
    chosen = needed([*facts, *pins], works)
    return chosen, frozenset(guard.left for guard in chosen if guard in pins)


def _by_severity(guards: Iterable[Guard]) -> list[Guard]:
    """Guards in order: first the guards that hold at the most sizes."""

    def severity(guard: Guard) -> int:
        if guard.op != "==":
            return 0
        if guard.splits:
            return 2
        return 1 if _dim.symbols_of(guard.left) and _dim.symbols_of(guard.right) else 3

    return sorted(guards, key=severity)
