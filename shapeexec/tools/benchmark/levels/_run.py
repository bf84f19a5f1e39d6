"""`benchmark_levels`: one model from op by op to the user's own kernels, all results compared.

`_contest` runs and compares calls, and `_report` shows the figures.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jax import Array

from shapeexec import _compat
from shapeexec._errors import ConfigError
from shapeexec.attention import dot_product_attention
from shapeexec.bucketing import as_strategy
from shapeexec.execution import Compiling, Exec
from shapeexec.tools._examples import sizes_of
from shapeexec.tools._progress import Tell
from shapeexec.tools.benchmark._contest import contest
from shapeexec.tools.benchmark._contestants import (
    Ahead,
    Args,
    Bucketed,
    Contestant,
    Jitted,
    OpByOp,
)
from shapeexec.tools.benchmark.levels._report import LevelsReport
from shapeexec.tools.benchmark.models._configs import CONFIGS, Config, config_of, config_target
from shapeexec.tools.benchmark.models._transformer import Parts, transformer

Option = str | int | float | bool

SHAPES, QUICK = "b=2,4 s=50,100,150", "b=2 s=5,9"
_TUNED: Mapping[str, Mapping[str, Option]] = {
    "cpu": {"xla_cpu_prefer_vector_width": 512},
    "gpu": {"xla_gpu_enable_latency_hiding_scheduler": True},
}
"""The options of XLA that are tried by default, by platform; other platforms have none."""


def benchmark_levels(
    config: str = "small_transformer",
    *,
    shapes: str | None = None,
    buckets: str = "pow2",
    options: Mapping[str, Option] | None = None,
    rounds: int = 3,
    is_quick: bool = False,
    tell: Tell = lambda line: None,
) -> LevelsReport:
    """Run a transformer at each level of compiling, and compare all results.

    The levels: op by op, an example at a time; `jax.jit` at exact shapes; the same compiled ahead;
    an `Exec`; with the attention of this library; with a layer norm and a GELU in Pallas as well;
    with options of XLA. Kernels that Pallas interprets are compared, and not timed.

    Args:
        config: One of the ready-made transformers.
        shapes: Sizes such as `"b=2,4 s=50,100"`; all their combinations run.
        buckets: The strategy of all sizes.
        options: XLA's options, by name; None: an option that may help on this platform.
        rounds: How often all calls run once everything is compiled.
        is_quick: Whether a small model runs at small sizes.
        tell: Called with a line whenever a level is done.

    Returns:
        The figures; `print` them.

    Raises:
        ConfigError: `config` is not a transformer, or an option has an invalid value.

    Example:
        >>> report = benchmark_levels(is_quick=True)  # doctest: +SKIP
        >>> report.are_equal  # doctest: +SKIP
        True
    """
    from shapeexec.tools.benchmark.levels import _kernels  # noqa: PLC0415 - it imports Pallas

    if rounds < 1:
        raise ConfigError(f"rounds={rounds} is not >= 1.", option="rounds", fix="rounds=3")
    strategy, model = as_strategy(buckets), _transformer_of(config, is_quick=is_quick)
    target, _ = config_target(config, is_quick=is_quick)
    sizes = sizes_of(shapes or (QUICK if is_quick else SHAPES), target.defaults)
    calls = [target.arguments(**at) for at in sizes]
    if options is None:
        options = _TUNED.get(_compat.default_device().platform, {})
    plain = target.run.variant(strategies=strategy)
    exact = Jitted(plain, calls)
    with _kernels.rules():
        levels: list[Contestant] = [
            OpByOp(target.plain, calls),
            exact,
            Ahead(plain, calls),
            Bucketed("Exec", plain, calls),
            *_with_kernels(_kernels, plain, calls=calls, heads=model.heads),
            _with_options(plain, calls, options=options),
        ]
        rows = contest(levels, sizes, exact=exact, rounds=rounds, tell=tell)
    return LevelsReport(config, tuple(rows), tuple(sizes))


def _transformer_of(config: str, *, is_quick: bool) -> Config:
    model = config_of(config, is_quick=is_quick)
    if model.kind != "transformer":
        raise ConfigError(
            f"--config {config} is not a transformer, and has no attention to exchange.",
            option="config",
            fix=", ".join(name for name, one in CONFIGS.items() if one.kind == "transformer"),
        )
    return model


def _with_kernels(
    kernels: Any, plain: Exec, *, calls: Sequence[Args], heads: int
) -> list[Bucketed]:
    def attend(query: Array, key: Array, value: Array) -> Array:  # noqa: PLR0917 - operands
        return dot_product_attention(query, key, value, is_causal=True)

    attention = Parts(attention=attend)
    fused = Parts(attention=attend, norm=kernels.norm, gelu=kernels.gelu)
    is_interpreted = kernels.is_interpreted()
    platform = _compat.default_device().platform
    note = f"not timed: Pallas interprets kernels on {platform}" if is_interpreted else ""
    return [
        Bucketed(
            "Exec, attention",
            plain.variant(fn=transformer(heads=heads, parts=attention)),
            calls,
            note=f"sx.dot_product_attention, by what it chooses on {platform}",
        ),
        Bucketed(
            "Exec, own kernels",
            plain.variant(fn=transformer(heads=heads, parts=fused)),
            calls,
            note=note or "layer norm and GELU in Pallas, beside that attention",
            is_timed=not is_interpreted,
        ),
    ]


def _with_options(plain: Exec, calls: Sequence[Args], *, options: Mapping[str, Option]) -> Bucketed:
    listed = ", ".join(f"{name}={value}" for name, value in options.items()) or "none"
    run = plain.variant(compiling=Compiling(options=options))
    return Bucketed("Exec, options", run, calls, note=f"XLA's options: {listed}")
