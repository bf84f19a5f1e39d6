"""Which of many facts are needed: the smallest part of a list that still works."""

from collections.abc import Callable, Sequence
from typing import TypeVar

Fact = TypeVar("Fact")


def needed(facts: Sequence[Fact], works: Callable[[list[Fact]], bool]) -> list[Fact]:
    """A part of `facts` that works and of which nothing can be left out.

    Takes about `k log(n / k)` tries for k of n facts.

    Args:
        facts: All of them, which work. What stands first is taken rather than what stands last.
        works: Whether a part, in the order of `facts`, suffices; more facts never do harm.

    Source: U. Junker, "QuickXplain: preferred explanations and relaxations for over-constrained
        problems", AAAI 2004.
    """

    def suffices(numbers: list[int]) -> bool:
        return works([facts[number] for number in sorted(numbers)])

    chosen = [] if suffices([]) else _needed([], list(range(len(facts))), suffices)
    return [facts[number] for number in sorted(chosen)]


def _needed(
    given: list[int], numbers: list[int], suffices: Callable[[list[int]], bool]
) -> list[int]:
    """What is needed of `numbers` beside `given`, which does not suffice."""
    if len(numbers) <= 1:
        return numbers
    first, last = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
    of_last = [] if suffices(given + first) else _needed(given + first, last, suffices)
    of_first = [] if suffices(given + of_last) else _needed(given + of_last, first, suffices)
    return of_first + of_last
