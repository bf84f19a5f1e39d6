"""Tracing a function at symbolic sizes, and the guards under which the trace is right.

JAX carries the symbols. What the function asks of a size that only a known size can answer is
decided at the sizes of the call at hand and remembered as a guard. Padding is not known here.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from shapeexec.shape import _dim
from shapeexec.shape._attempt import Leaf, Program, Stuck, Trace
from shapeexec.shape._budget import Budget, SpentError
from shapeexec.shape._guards import Guard, pin
from shapeexec.shape._meanings import given_up, told
from shapeexec.shape._search import needed

__all__ = ["Leaf", "Trace", "trace"]

_MOST_ROUNDS = 6


def trace(
    fn: Callable[..., Any],
    leaves: Sequence[Leaf],
    sizes: Mapping[str, int] | None,
    *,
    constraints: Iterable[Guard] = (),
) -> Trace:
    """Trace `fn`, a function of flat arrays, at symbolic sizes.

    Where JAX cannot trace what the plain function does at these sizes, the facts of the sizes are
    searched that let it: first those that JAX's own code asked for, such as `s >= 2`, `t == s` or
    `mod(s, 2) == 1`, which become guards; then the sizes themselves.

    Args:
        fn: Called with one tracer per leaf.
        leaves: The arguments' dims and dtypes.
        sizes: The size of each symbol in the call at hand, which decides the guards; None if there
            is no call: then a question that needs a size is an error.
        constraints: Facts about the sizes that the user vouches for.

    Raises:
        InconclusiveShapeError: `fn` asks of a symbolic size what no guard can answer. Its symbols
            are the fewest that have to be exact; or all, where the search for them is given up.
        Exception: Whatever `fn` raises at the exact sizes as well.
    """
    program = Program(fn, leaves, sizes, tuple(constraints))
    try:
        return program.settled(())
    except Stuck as stuck:
        if sizes is None:
            raise told(stuck, program, frozenset()) from stuck.error
        # Does the function fail by itself? Then its own error is the one to see.
        program.run_plain()
        try:
            facts, exact = _facts(program)
        except SpentError as spent:
            raise given_up(stuck, program, str(spent)) from stuck.error
        if exact:
            raise told(stuck, program, exact) from stuck.error
        try:
            return program.settled(facts)
        except Stuck as again:  # with these facts known the function asks for more
            raise told(again, program, program.symbols) from again.error


def _facts(program: Program) -> tuple[list[Guard], frozenset[str]]:
    """The fewest facts with which a program can be traced, and the symbols to be exact besides."""
    assert program.sizes is not None
    equal = (
        Guard(a, "==", b)
        for a, b in itertools.combinations(sorted(program.symbols), 2)
        if program.sizes[a] == program.sizes[b]
    )
    heard = dict.fromkeys(equal)  # JAX compares some shapes by their hash
    budget = Budget()

    def works(facts: list[Guard]) -> bool:
        budget.spend(heard)
        try:
            program.settled(facts, heard)
        except Stuck:
            return False
        return True

    for _ in range(_MOST_ROUNDS):  # a trace that comes further may ask more, some without end
        known = len(heard)
        if works(_by_severity(heard)) or len(heard) == known:
            break
    facts = _by_severity(heard)
    pins = [pin(symbol, program.sizes[symbol]) for symbol in sorted(program.symbols)]
    pins = [guard for guard in pins if guard not in heard]
    chosen = needed([*facts, *pins], works)
    return chosen, frozenset(guard.left for guard in chosen if guard in pins)


def _by_severity(guards: Iterable[Guard]) -> list[Guard]:
    """Guards in order, those first that speak for most sizes."""

    def severity(guard: Guard) -> int:
        if guard.op != "==":
            return 0
        if guard.splits:
            return 2
        return 1 if _dim.symbols_of(guard.left) and _dim.symbols_of(guard.right) else 3

    return sorted(guards, key=severity)
