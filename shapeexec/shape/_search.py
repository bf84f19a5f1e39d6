"""A smallest sublist of facts that still works (QuickXplain).

It knows nothing of sizes or of tracing: `works` tells whether a list does.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

Fact = TypeVar("Fact")


def needed(facts: Sequence[Fact], works: Callable[[list[Fact]], bool]) -> list[Fact]:
    """A sublist of `facts` that works, and none of whose facts can be left out.

    It takes about `k log(n / k)` tries for k of n facts.

    Args:
        facts: All facts, which together work. Earlier ones are preferred.
        works: Whether a sublist, in the order of `facts`, suffices. More facts never make it fail.

    Source: U. Junker, "QuickXplain: preferred explanations and relaxations for over-constrained
        problems", AAAI 2004.
    """

    def suffices(numbers: list[int]) -> bool:
        return works([facts[number] for number in sorted(numbers)])

    everything = list(range(len(facts)))
    chosen = [] if suffices([]) else _needed([], everything, suffices=suffices)
    return [facts[number] for number in sorted(chosen)]


def _needed(
    given: list[int], numbers: list[int], *, suffices: Callable[[list[int]], bool]
) -> list[int]:
    """The part of `numbers` that is needed beside `given`, which does not suffice alone."""
    if len(numbers) <= 1:
        return numbers
    first, last = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
    with_first = given + first
    of_last = [] if suffices(with_first) else _needed(with_first, last, suffices=suffices)
    with_last = given + of_last
    of_first = [] if suffices(with_last) else _needed(with_last, first, suffices=suffices)
    return of_first + of_last
