"""Compares two numbered programs and finds the first difference.

Pairs of values with different numbers are followed operand by operand, down to the operations that
differ. Such a pair may still be proven equal by evaluating both values from their common ancestors
(`_evaluate`).
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Mapping

from shapeexec.checking._evaluate import agree
from shapeexec.checking._number import Numbered
from shapeexec.checking._values import Table

Pair = tuple[int, int]

_SUM = "add_any"  # of cotangents

_MOST_EVALUATIONS = 12
_MOST_TERMS = 1024  # repeated sums of a value with itself have very many
_MOST_LEVELS = 2
"""How many levels above the first difference values may still be proven by evaluation."""


@dataclasses.dataclass(frozen=True)
class Proof:
    """The result of comparing two programs.

    Attributes:
        parted: The pairs from the first operations that differ up to a result; None: all values
            are equal.
        unequal: The number of places where the programs have different operations.
        evaluated: The number of these that evaluation proved equal.
    """

    parted: tuple[Pair, ...] | None
    unequal: int
    evaluated: int


def prove(table: Table, *, symbolic: Numbered, plain: Numbered) -> Proof:
    """Compare the results and effects of two programs that have equally many."""
    roots = [*zip(symbolic.results, plain.results, strict=True)]
    effects = [*zip(symbolic.effects, plain.effects, strict=True)]
    below = _below(table, [*roots, *effects])
    acts = frozenset(symbolic.effects) | frozenset(plain.effects)
    search = _Search(table, below, acts)
    for pair in sorted(below):  # operands have smaller numbers than results
        search.decide(pair)
    failed = [pair for pair in (*roots, *effects) if not search.holds(pair)]
    unequal = sum(search.levels.get(pair) == 0 for pair in below)
    parted = min((search.path(pair) for pair in failed), key=lambda path: path[0][1], default=None)
    return Proof(parted, unequal, len(search.proven))


def _below(table: Table, roots: list[Pair]) -> dict[Pair, list[Pair]]:
    """Every pair of values to compare, with the pairs of their operands; none: they differ."""
    found: dict[Pair, list[Pair]] = {}
    waiting = [pair for pair in roots if pair[0] != pair[1]]
    while waiting:
        pair = waiting.pop()
        if pair in found:
            continue
        left, right = table[pair[0]], table[pair[1]]
        found[pair] = (
            [p for p in _parts(table, pair) if p[0] != p[1]] if left.is_like(right) else []
        )
        waiting += found[pair]
    return found


def _parts(table: Table, pair: Pair) -> Iterator[Pair]:
    left, right = table[pair[0]], table[pair[1]]
    if left.op == _SUM:
        terms = [[*itertools.islice(_terms(table, value), _MOST_TERMS + 1)] for value in pair]
        mine, others = map(collections.Counter, terms)
        unlike = [sorted((one - two).elements()) for one, two in ((mine, others), (others, mine))]
        if len(terms[0]) == len(terms[1]) <= _MOST_TERMS:
            yield from zip(*unlike, strict=True)
            return
    yield from zip(left.operands, right.operands, strict=True)
    for mine, others in zip(left.bodies, right.bodies, strict=True):
        yield from zip(mine, others, strict=True)


def _terms(table: Table, value: int) -> Iterator[int]:
    """The terms of a sum of cotangents, which JAX adds in the order of their equations."""
    waiting = [value]
    while waiting:
        node = table[value := waiting.pop()]
        if node.op == _SUM:
            waiting += node.operands
        else:
            yield value


@dataclasses.dataclass
class _Search:
    """Pairs decided so far.

    Attributes:
        table: The values.
        below: See `_below`.
        acts: The values of effects.
        same: The pairs of equal values.
        levels: The levels of an unequal pair above the nearest operations that differ; 0: these
            operations, also if evaluation proved them equal.
        proven: The pairs that evaluation proved, by the plain value.
        final: The pairs that differ and must not be evaluated: constants and parameters, because
            rounding, or a draw that misses the difference, must not hide it.
        evaluations: The number of evaluations.
    """

    table: Table
    below: Mapping[Pair, list[Pair]]
    acts: frozenset[int]
    same: set[Pair] = dataclasses.field(default_factory=set[Pair])
    levels: dict[Pair, int] = dataclasses.field(default_factory=dict[Pair, int])
    proven: dict[int, int] = dataclasses.field(default_factory=dict[int, int])
    final: set[Pair] = dataclasses.field(default_factory=set[Pair])
    evaluations: int = 0

    def holds(self, pair: Pair) -> bool:
        """Whether two values are equal, as far as decided."""
        return pair[0] == pair[1] or pair in self.same

    def decide(self, pair: Pair) -> None:
        """Decide whether two values are equal, once their operands are decided."""
        parts = self.below[pair]
        if parts and all(map(self.holds, parts)) and self._is_in_order(pair):
            self.same.add(pair)
            return
        failed = [part for part in parts if not self.holds(part)]
        self.levels[pair] = 1 + min(self.levels[part] for part in failed) if failed else 0
        if any(part in self.final for part in failed) or self._asks_otherwise(pair):
            self.final.add(pair)
        if self._may_be_evaluated(pair):
            self.evaluations += 1
            left, right = pair
            if agree(self.table, left=left, right=right, proven=self.proven):
                self.same.add(pair)
                self.proven[pair[1]] = pair[0]
                return
        if all(self.table[value].is_fixed for value in pair):
            self.final.add(pair)

    def _is_in_order(self, pair: Pair) -> bool:
        """Whether sums add equal terms in the same order; another order rounds differently."""
        waiting, seen = [pair], {pair}
        while waiting:
            left, right = (self.table[value] for value in waiting.pop())
            if left.op != _SUM:
                continue
            for part in zip(left.operands, right.operands, strict=True):
                if self.holds(part) or part in seen:
                    continue
                if any(self.table[value].op != _SUM for value in part):
                    return False
                seen.add(part)  # partial sums, of which only the terms were compared
                waiting.append(part)
        return True

    def _asks_otherwise(self, pair: Pair) -> bool:
        """Whether parameters differ, or one program has an additional operation with a constant.

        Evaluation may miss both: a precision on this machine, a factor of 1.0000001 in rounding.
        """
        left, right = (self.table[value] for value in pair)
        if left.op == right.op and left.params != right.params:
            return True
        return self._is_one_more(*pair) or self._is_one_more(*pair[::-1])

    def _is_one_more(self, value: int, other: int) -> bool:
        """Whether a value is an operation on `other` and one constant."""
        operands = self.table[value].operands
        rest = [operand for operand in operands if operand != other]
        return len(rest) == 1 < len(operands) and self.table[rest[0]].is_fixed

    def _may_be_evaluated(self, pair: Pair) -> bool:
        if self.acts & {*pair} or self.evaluations >= _MOST_EVALUATIONS:
            return False
        return self.levels[pair] <= _MOST_LEVELS and pair not in self.final

    def path(self, pair: Pair) -> tuple[Pair, ...]:
        """The pairs from the first operations that differ, in the plain order, up to `pair`."""
        path = [pair]
        while failed := [part for part in self.below[path[-1]] if not self.holds(part)]:
            path.append(min(failed, key=lambda part: part[1]))
        return tuple(path[::-1])
