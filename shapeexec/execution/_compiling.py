"""How XLA compiles the graphs of an Exec: its options, and whether a quick graph serves first.

`_store` makes quick graphs and replaces them; `_compile` hands the options to XLA.
"""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Literal

from shapeexec import _compat
from shapeexec._errors import ConfigError
from shapeexec.execution._narrow import is_mapping
from shapeexec.execution._options import check_choice

Option = str | int | float | bool

_ON_A_GPU: Mapping[str, Option] = {"xla_gpu_autotune_level": 0}
_QUICK: Mapping[str, Mapping[str, Option]] = {
    "gpu": _ON_A_GPU,
    "cuda": _ON_A_GPU,
    "rocm": _ON_A_GPU,
    # Of a transformer's score and gradient: 1.3 to 2 times as fast to compile, 1.3 to 4 times as
    # long to run. xla_llvm_disable_expensive_passes gains nothing.
    "cpu": {"xla_backend_optimization_level": 0},
}
"""By platform the options that compile fastest; nothing elsewhere."""


@dataclasses.dataclass(frozen=True)
class Compiling:
    """How XLA compiles graphs.

    With `first="quick"` each graph is compiled twice. The first version uses the options that
    compile fastest (on a GPU without autotuning, on a CPU with few optimizations) and serves at
    once. Another thread compiles the tuned version, which replaces the first between two calls.
    Both are the same function up to rounding: **the last bits of results may change at that
    moment**.

    Attributes:
        first: `"tuned"`: each graph is compiled once. `"quick"`: see above.
        options: XLA's options by name, as `jax.jit(compiler_options=...)` takes them; kept as an
            immutable copy. They override the options of quick graphs.

    Raises:
        ConfigError: `first` is neither, or `options` is not a mapping of names to numbers and
            strings.

    Example:
        >>> Compiling(first="quick", options={"xla_cpu_enable_fast_math": False}).first
        'quick'
    """

    first: Literal["tuned", "quick"] = "tuned"
    options: Mapping[str, Option] = dataclasses.field(default_factory=dict[str, Option])

    def __post_init__(self) -> None:
        check_choice("first", self.first, choices=("tuned", "quick"))
        given: Any = self.options
        if not is_mapping(given) or not all(
            isinstance(name, str) and isinstance(value, Option) for name, value in given.items()
        ):
            raise ConfigError(
                f"options={given!r:.80} are not XLA options.",
                option="options",
                fix='a dict of numbers and strings, options={"xla_gpu_autotune_level": 0}',
            )
        object.__setattr__(self, "options", types.MappingProxyType(dict(given)))

    def __hash__(self) -> int:
        return hash((self.first, frozenset(self.options.items())))

    def __repr__(self) -> str:
        return f"Compiling(first={self.first!r}, options={dict(self.options)})"

    def __reduce__(self) -> Any:
        return Compiling, (self.first, dict(self.options))  # a proxy cannot be pickled

    @property
    def quick(self) -> Mapping[str, Option] | None:
        """The options of a quick graph on JAX's default platform; None: as for a tuned one."""
        if self.first == "tuned":
            return None
        quick = {**_QUICK.get(_compat.default_device().platform, {}), **self.options}
        return None if quick == self.options else quick


TUNED = Compiling()
"""The default."""


def refused_options(options: Mapping[str, Option], error: Exception) -> ConfigError | None:
    """The error if XLA refuses an option; None: `error` is about something else."""
    text = str(error)
    if not any(name in text for name in options):
        return None
    return ConfigError(
        "compiling: XLA refuses an option.",
        option="compiling",
        got=", ".join(f"{name}={value!r}" for name, value in options.items()),
        why=text.splitlines()[0],
        fix="the name and the type of one of XLA's flags, without dashes before it",
    )
