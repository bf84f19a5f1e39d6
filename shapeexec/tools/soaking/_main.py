"""`soak`: from names and numbers to a report.

`_run` runs the soak.
"""

from shapeexec.tools._given import Names, chosen
from shapeexec.tools._machine import machine
from shapeexec.tools._progress import Tell
from shapeexec.tools.soaking._models import MODELS
from shapeexec.tools.soaking._outcome import Soak
from shapeexec.tools.soaking._report import SoakReport
from shapeexec.tools.soaking._run import run
from shapeexec.tools.soaking._services import WAYS


def soak(
    *,
    minutes: float = 10.0,
    threads: int = 32,
    seed: int = 0,
    shapes: int = 500,
    stall: float = 120.0,
    models: Names = None,
    ways: Names = None,
    tell: Tell = lambda line: None,
) -> SoakReport:
    """Run random traffic of many threads, with injected failures, and compare each answer.

    Ctrl-C ends it early, with its report. After a stall the stacks of all threads go to stderr,
    and threads that are stuck stay.

    Args:
        minutes: The duration.
        threads: The number of threads that call.
        seed: The seed of all random draws.
        shapes: The number of shapes, at least one for each model.
        stall: Seconds after which a call that has not ended is a stall.
        models: Only these functions, by name. None: all.
        ways: Only these sets of options, by name. None: all.
        tell: Called with a line of progress every few seconds.

    Returns:
        The report; `print` it.

    Raises:
        ConfigError: A name is unknown, or a number is out of range.

    Example:
        >>> report = soak(minutes=1, threads=8, models=["sizes", "gradient"])  # doctest: +SKIP
        >>> report.status  # doctest: +SKIP
        0
    """
    wanted = Soak(
        minutes=minutes,
        threads=threads,
        seed=seed,
        shapes=shapes,
        stall=stall,
        models=chosen({one.name: one for one in MODELS}, models, option="models"),
        ways=chosen({one.name: one for one in WAYS}, ways, option="ways"),
    )
    where = machine(("prometheus_client",))  # before this run is itself the load
    return SoakReport(where, run(wanted, tell))
