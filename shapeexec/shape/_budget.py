"""How long is searched for the facts of sizes that let JAX trace a function, and of how many."""

import dataclasses
import time
from collections.abc import Iterable

from shapeexec.shape._guards import Guard

MOST_FACTS = 64
MOST_REMAINDERS = 8
MOST_TRIES = 48
MOST_SECONDS = 30.0


class SpentError(Exception):
    """A search is given up; its text says at what."""


@dataclasses.dataclass
class Budget:
    """What is left of one search. Each try traces the function, and may take seconds.

    Attributes:
        tries: How many tries were made.
        start: When the search began.
    """

    tries: int = 0
    start: float = dataclasses.field(default_factory=time.monotonic)

    def spend(self, facts: Iterable[Guard]) -> None:
        """Note one more try, with these facts to choose from.

        Raises:
            SpentError: It would be one too many, or there are too many facts.
        """
        facts = list(facts)
        remainders = sum(fact.splits for fact in facts)
        if len(facts) > MOST_FACTS:
            raise SpentError(f"JAX asks {len(facts)} facts of the sizes")
        if remainders > MOST_REMAINDERS:
            raise SpentError(f"{remainders} remainders make 2^{remainders} graphs or more")
        if self.tries >= MOST_TRIES:
            raise SpentError(f"{self.tries} traces did not tell which facts it takes")
        seconds = time.monotonic() - self.start
        if seconds > MOST_SECONDS:
            raise SpentError(f"{self.tries} traces in {seconds:.0f} s did not tell which it takes")
        self.tries += 1
