"""Which of many facts are needed: the smallest part of a list that still works."""

from collections.abc import Callable, Sequence
from typing import TypeVar

Fact = TypeVar("Fact")


def needed(facts: Sequence[Fact], works: Callable[[list[Fact]], bool]) -> list[Fact]:
    """A part of `facts` that works and of which nothing can be left out.

    Takes about `k log(n / k)` tries for k of n facts.

    Args:
        facts: All of them, which work. What stands first is taken rather than what stands last.
        works: Whether a part suffices; more facts never do harm.

    Source: U. Junker, "QuickXplain: preferred explanations and relaxations for over-constrained
        problems", AAAI 2004.
    """
    return [] if works([]) else _needed([], list(facts), works)


def _needed(
    given: list[Fact], facts: list[Fact], works: Callable[[list[Fact]], bool]
) -> list[Fact]:
    """What is needed of `facts` beside `given`, which does not suffice."""
    if len(facts) <= 1:
        return facts
    first, last = facts[: len(facts) // 2], facts[len(facts) // 2 :]
    of_last = [] if works(given + first) else _needed(given + first, last, works)
    of_first = [] if works(given + of_last) else _needed(given + of_last, first, works)
    return of_first + of_last
