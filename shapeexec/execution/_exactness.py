"""Which symbols run at their exact sizes, and why.

The reasons are a strategy, a primitive without a rule, memory, and sizes at which plain JAX traces
another program. `_exact_choice` finds the symbols; they are only stored here.
"""

import dataclasses
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping

from shapeexec._errors import ShapeExecError, beside
from shapeexec.bucketing import Strategy
from shapeexec.bucketing._fixed import runs_exact
from shapeexec.execution._proofs import Proofs
from shapeexec.execution._settings import Settings
from shapeexec.masking._registry import KNOWLEDGE, NESTED, RULES


@dataclasses.dataclass(frozen=True)
class Exactness:
    """The symbols that are known to be exact in calls of one kind.

    Attributes:
        strategy: The strategy of a symbol.
        always: Symbols that are exact at all sizes, since a primitive has no rule for them.
        apart: The symbols that are exact at some sizes only. The keys are these sizes, as pairs of
            a symbol and its size, sorted by symbol.
        given_up: Buckets that do not fit into memory, by symbol: their calls are exact.
    """

    strategy: Callable[[str], Strategy]
    always: frozenset[str]
    apart: Mapping[tuple[tuple[str, int], ...], frozenset[str]]
    given_up: tuple[Mapping[str, int], ...] = ()

    def symbols(self, sizes: Mapping[str, int]) -> frozenset[str]:
        """The symbols that are exact in a call of these sizes."""
        found = self.always | self.apart.get(tuple(sorted(sizes.items())), frozenset())
        for buckets in self.given_up:
            found |= frozenset(_held_by(buckets, sizes, strategy=self.strategy))
        return found | {s for s, size in sizes.items() if runs_exact(self.strategy(s), size)}


def _held_by(
    buckets: Mapping[str, int],
    sizes: Mapping[str, int],
    *,
    strategy: Callable[[str], Strategy],
) -> Iterable[str]:
    """The symbols of `buckets` if these are the buckets of the sizes; else none."""
    mine = all(
        symbol in sizes and strategy(symbol).bucket(sizes[symbol]) == bucket
        for symbol, bucket in buckets.items()
    )
    return buckets if mine else ()


def known_rules() -> int:
    """How many rules are registered. They are never removed, so a new number means new rules."""
    return len(RULES) + len(NESTED) + len(KNOWLEDGE)


class ExactSymbols:
    """The symbols that are exact despite their strategies, by the base of their calls.

    A rule that is registered later may be the one that was missing, so all symbols are tried again.

    Args:
        settings: Whether symbols may be made exact at all.
        proofs: The symbols that are exact at some sizes only.
        strategy: The strategy of a symbol.
    """

    def __init__(
        self, settings: Settings, proofs: Proofs, *, strategy: Callable[[str], Strategy]
    ) -> None:
        self._settings, self._proofs, self._strategy = settings, proofs, strategy
        self._lock = threading.Lock()
        self._forced: dict[Hashable, dict[str, str]] = {}
        self._given_up: dict[Hashable, list[tuple[Mapping[str, int], str]]] = {}
        self._rules = known_rules()

    def clear(self) -> None:
        """Forget the symbols that have no rule, and buckets given up; the proofs keep theirs."""
        with self._lock:
            self._forced.clear()
            self._given_up.clear()

    def reasons(self, base: Hashable, sizes: Mapping[str, int]) -> dict[str, str]:
        """Per symbol that is exact in a call despite its strategy, the reason."""
        with self._lock:
            forced = self._known(base)
            given_up = list(self._given_up.get(base, ()))
        found = {**forced, **self._proofs.exact(base, sizes)}
        for buckets, reason in given_up:
            own = _held_by(buckets, sizes, strategy=self._strategy)
            found |= dict.fromkeys(own, reason)
        return found

    def add(self, base: Hashable, symbols: Iterable[str], *, error: ShapeExecError) -> bool:
        """Run calls of one kind at the exact sizes of `symbols` from now on, because of `error`.

        Returns:
            False if `on_unsupported` forbids it, or if all `symbols` are exact already.
        """
        reason = beside(error.what, error.where)
        with self._lock:
            known = self._known(base)
            if self._settings.on_unsupported == "raise" or not frozenset(symbols) - known.keys():
                return False
            self._forced[base] = {**dict.fromkeys(symbols, reason), **known}
            return True

    def give_up(self, base: Hashable, buckets: Mapping[str, int], *, reason: str) -> bool:
        """Run calls of one kind at their exact sizes if they have these buckets.

        Returns:
            False if `on_memory` forbids it, nothing is padded, or the buckets are given up already.
        """
        with self._lock:
            known = self._given_up.setdefault(base, [])
            if self._settings.on_memory == "raise" or not buckets:
                return False
            if any(held == buckets for held, _ in known):
                return False
            known.append((dict(buckets), reason))
            return True

    def exactness(self, base: Hashable) -> Exactness:
        """The symbols that are exact in calls of one kind."""
        with self._lock:
            always = frozenset(self._known(base))
            given_up = tuple(buckets for buckets, _ in self._given_up.get(base, ()))
        return Exactness(self._strategy, always, self._proofs.apart(base), given_up)

    def _known(self, base: Hashable) -> Mapping[str, str]:
        rules = known_rules()
        if rules != self._rules:
            self._rules = rules
            self._forced.clear()
        return self._forced.get(base, {})
