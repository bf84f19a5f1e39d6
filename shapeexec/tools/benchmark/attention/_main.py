"""`benchmark_attention`: from names to a report.

`_run` knows the order of all measurements.
"""

import re
import time
from collections.abc import Iterable

import jax

from shapeexec._errors import ConfigError
from shapeexec.tools._given import Names, check_time, chosen, listed
from shapeexec.tools._machine import machine
from shapeexec.tools._progress import Tell, progress
from shapeexec.tools.benchmark.attention._finding import Finding
from shapeexec.tools.benchmark.attention._ours import contestants
from shapeexec.tools.benchmark.attention._problems import defaults, pattern_of, shape_of
from shapeexec.tools.benchmark.attention._report import AttentionReport
from shapeexec.tools.benchmark.attention._run import Plan, Row, measure
from shapeexec.tools.benchmark.attention._studies import STUDIES
from shapeexec.tools.benchmark.attention.rivals import rivals as all_rivals

_VERSIONS = ("torch", "triton", "nvidia-cudnn-cu13", "dew-flash-attn-cu13")


def benchmark_attention(
    *,
    shapes: Names = None,
    masks: Names = None,
    implementations: Names = None,
    rivals: Names = None,
    studies: Names = None,
    only: str = "",
    minutes: float = 8.0,
    tell: Tell | None = lambda line: None,
) -> AttentionReport:
    """Run `sx.dot_product_attention` beside its rivals; compare results with the formula, and time.

    Ctrl-C ends it early, with its report. Rivals in processes of their own need memory of the
    device, too: on a GPU, set `XLA_PYTHON_CLIENT_PREALLOCATE=false` before JAX is used.

    Args:
        shapes: By name, such as `"4k_128"`, or as `"1x512x4x2x64:float32"`: batch, length, heads,
            key heads, head size and dtype. None: those for this device.
        masks: By name: `"full"`, `"causal"`, `"window"`, `"documents"`, `"alibi"`, `"random10"`
            for 10 percent of the tiles, and `"elements10"` for 10 percent of the single pairs.
            None: those for this device.
        implementations: `"default"`, `"any_bits"` (`deterministic=False`), and the names that
            `implementation=` takes. None: all.
        rivals: By name. None: all.
        studies: `"lists"` (the cost of making them), `"padding"`, `"memory"`, `"decode"`,
            `"short"`, `"launches"` (a model of short kernels), `"compile"` (seconds to lower
            and to compile) and `"bytes"` (the bytes moved, relative to the least possible). None:
            all.
        only: A regular expression: only matching cells `shape/mask/name/pass` are measured; the
            pass is `forward` or `both`.
        minutes: After this time nothing new is started.
        tell: Called with lines of progress. None: they are printed on stdout, as by the command.

    Returns:
        The figures; `print` them. Contestants that are not installed or refuse are listed with the
        reason.

    Raises:
        ConfigError: A name is unknown, `only` is not a regular expression, or `minutes` is not a
            positive number.

    Example:
        >>> report = benchmark_attention(  # doctest: +SKIP
        ...     shapes=["1x512x4x2x64:float32"], masks=["causal"], rivals=["jax_nn_xla"]
        ... )
        >>> report.has_failed  # doctest: +SKIP
        False
    """
    start = time.monotonic()
    check_time("minutes", minutes, such_as=8)
    device_shapes, device_masks = defaults(jax.default_backend())
    ours = {one.name: one for one in contestants()}
    others = {one.name: one for one in all_rivals()}
    asked = chosen({name: name for name in STUDIES}, studies, option="studies")
    everyone = (
        *chosen(ours, implementations, option="implementations"),
        *chosen(others, rivals, option="rivals"),
    )
    absent = {one.name: reason for one in everyone if (reason := one.missing())}
    plan = Plan(
        shapes=tuple(map(shape_of, listed(shapes, device_shapes, option="shapes"))),
        patterns=tuple(map(pattern_of, listed(masks, device_masks, option="masks"))),
        contestants=tuple(one for one in everyone if one.name not in absent),
        only=_pattern(only),
        deadline=start + 60 * minutes,
    )
    where = machine(_VERSIONS)  # before this run is itself the load
    try:
        rows, findings = _measure(plan, asked, tell=tell)
    finally:
        for contestant in plan.contestants:
            contestant.close()
    return AttentionReport(where, time.monotonic() - start, rows, findings, absent)


def _pattern(only: str) -> re.Pattern[str]:
    try:
        return re.compile(only)
    except (re.error, TypeError) as error:
        raise ConfigError(
            f"only={only!r:.80} is not a regular expression.",
            option="only",
            why=str(error),
            fix='only="4k.*causal"',
        ) from None


def _measure(
    plan: Plan, studies: Iterable[str], *, tell: Tell | None
) -> tuple[list[Row], list[Finding]]:
    rows: list[Row] = []
    findings: list[Finding] = []
    total = sum(len(group) for rank in (0, 1) for group in plan.groups(rank))
    with progress(total, tell) as (say, advance):

        def measure_rank(rank: int) -> None:
            for row in measure(plan, rank, tell=say):
                rows.append(row)
                advance()
                if row.milliseconds is not None or row.is_failure:
                    say(_told(row))

        try:
            measure_rank(0)
            for name in studies if plan.shapes else ():
                if plan.is_over():
                    say(f"{name}: out of time")
                    continue
                say(f"{name}: compiling and measuring")
                findings.extend(STUDIES[name](plan, rows))
            measure_rank(1)
        except KeyboardInterrupt:  # the measurements so far are reported
            say("interrupted")
    return rows, findings


def _told(row: Row) -> str:
    place = f"{row.shape:8} {row.mask:10} {row.contestant:17} {row.passes:8}"
    if row.milliseconds is None:
        return f"{place} {row.reason}"
    return f"{place} {row.milliseconds:9.4f} ms {row.teraflops:8.4g} TFLOP/s"
