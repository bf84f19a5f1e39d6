"""The limits of the search for the facts of sizes that let JAX trace a function.

It only counts; `_trace` stops the search, and `_search` chooses what to try.
"""

import dataclasses
import time
from collections.abc import Iterable

from shapeexec.shape._guards import Guard

MOST_FACTS = 64
MOST_REMAINDERS = 8
MOST_TRIES = 48
MOST_SECONDS = 30.0


class SpentError(Exception):
    """A search was given up; its text names the limit that was reached."""


@dataclasses.dataclass
class Budget:
    """The tries and the time of one search. Each try traces the function and may take seconds.

    Attributes:
        tries: How many tries were made.
        start: When the search began, in seconds of this thread's own work: what else the machine
            does must not decide which graph a call gets.
    """

    tries: int = 0
    start: float = dataclasses.field(default_factory=time.thread_time)

    def spend(self, facts: Iterable[Guard]) -> None:
        """Count one more try.

        Args:
            facts: The facts to choose from.

        Raises:
            SpentError: The tries or the time are used up, or there are too many facts.
        """
        facts = list(facts)
        remainders = sum(fact.splits for fact in facts)
        if len(facts) > MOST_FACTS:
            raise SpentError(f"JAX needs {len(facts)} facts about the sizes")
        if remainders > MOST_REMAINDERS:
            raise SpentError(f"{remainders} remainders make 2^{remainders} graphs or more")
        if self.tries >= MOST_TRIES:
            raise SpentError(f"{self.tries} traces did not show which facts are needed")
        seconds = time.thread_time() - self.start
        if seconds > MOST_SECONDS:
            raise SpentError(
                f"{self.tries} traces in {seconds:.0f} s did not show which facts are needed"
            )
        self.tries += 1
