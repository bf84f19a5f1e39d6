"""Whether two numbered programs make the same values, and where they part.

Values that have not the same number are walked down in pairs, operand by operand, to where the two
programs do different things. Such a pair may still be proven by evaluating both of it, from the
values that both programs hold; how, `_evaluate` says.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Mapping

from shapeexec.checking._evaluate import agree
from shapeexec.checking._number import Program
from shapeexec.checking._values import Table

Pair = tuple[int, int]

_SUM = "add_any"  # of cotangents

_MOST_EVALUATIONS = 12
_MOST_TERMS = 1024  # a sum of a value and itself, again and again, has very many
_MOST_LEVELS = 2
"""How far above the place where two programs part they are still taken for the same."""


@dataclasses.dataclass(frozen=True)
class Proof:
    """What came of comparing two programs.

    Attributes:
        parted: The first pair of values that are not the same, with the pairs from a result down
            to it, the last one first; None: all are the same.
        unequal: How many places there are where the programs do different things.
        evaluated: How many of those evaluation found equal.
    """

    parted: tuple[Pair, ...] | None
    unequal: int
    evaluated: int


def prove(table: Table, symbolic: Program, plain: Program) -> Proof:
    """Compare the results and effects of two programs, as many in the one as in the other."""
    roots = [*zip(symbolic.results, plain.results, strict=True)]
    effects = [*zip(symbolic.effects, plain.effects, strict=True)]
    below = _below(table, [*roots, *effects])
    acts = frozenset(symbolic.effects) | frozenset(plain.effects)
    search = _Search(table, below, acts)
    for pair in sorted(below):  # operands have smaller numbers than what is made of them
        search.decide(pair)
    failed = [pair for pair in (*roots, *effects) if not search.holds(pair)]
    unequal = sum(search.levels.get(pair) == 0 for pair in below)
    parted = min((search.path(pair) for pair in failed), key=lambda path: path[0][1], default=None)
    return Proof(parted, unequal, len(search.proven))


def _below(table: Table, roots: list[Pair]) -> dict[Pair, list[Pair]]:
    """Every pair of values to compare, and the pairs that it hangs on; none: other operations."""
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
    """What is added up: JAX adds cotangents in the order in which it meets their equations."""
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
        acts: Values that stand for effects.
        same: The pairs that are the same value.
        levels: How many levels a pair that is told apart lies above the place where its two
            programs part; 0 also where evaluation then proved it.
        proven: The pairs that evaluation proved, by the plain value.
        final: The pairs that differ whatever evaluation would say: constants and parameters, for
            neither rounding nor a draw that misses them must hide that.
        evaluations: How many there were.
    """

    table: Table
    below: Mapping[Pair, list[Pair]]
    acts: frozenset[int]
    same: set[Pair] = dataclasses.field(default_factory=set)
    levels: dict[Pair, int] = dataclasses.field(default_factory=dict)
    proven: dict[int, int] = dataclasses.field(default_factory=dict)
    final: set[Pair] = dataclasses.field(default_factory=set)
    evaluations: int = 0

    def holds(self, pair: Pair) -> bool:
        """Whether two values are the same."""
        return pair[0] == pair[1] or pair in self.same

    def decide(self, pair: Pair) -> None:
        """Find out whether two values are the same, once it is known of what they hang on."""
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
            if agree(self.table, *pair, self.proven):
                self.same.add(pair)
                self.proven[pair[1]] = pair[0]
                return
        if all(self.table[value].is_fixed for value in pair):
            self.final.add(pair)

    def _is_in_order(self, pair: Pair) -> bool:
        """Whether sums add the same up in the same order: in another one they round otherwise."""
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
        """Whether one operation has other parameters, or one more is done with a constant.

        A precision may not show on this machine, nor 1.0000001 beside rounding.
        """
        left, right = (self.table[value] for value in pair)
        if left.op == right.op and left.params != right.params:
            return True
        return self._is_one_more(*pair) or self._is_one_more(*pair[::-1])

    def _is_one_more(self, value: int, other: int) -> bool:
        """Whether a value is made of another and of constants alone."""
        operands = self.table[value].operands
        rest = [operand for operand in operands if operand != other]
        return len(rest) == 1 < len(operands) and self.table[rest[0]].is_fixed

    def _may_be_evaluated(self, pair: Pair) -> bool:
        if self.acts & {*pair} or self.evaluations >= _MOST_EVALUATIONS:
            return False
        return self.levels[pair] <= _MOST_LEVELS and pair not in self.final

    def path(self, pair: Pair) -> tuple[Pair, ...]:
        """From where two programs part, first in the order of the plain one, up to `pair`."""
        path = [pair]
        while failed := [part for part in self.below[path[-1]] if not self.holds(part)]:
            path.append(min(failed, key=lambda part: part[1]))
        return tuple(path[::-1])
