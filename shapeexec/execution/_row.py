"""One compiled graph as a row of `run.graphs`.

`_graphs` makes the table of all rows.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from shapeexec._errors import ConfigError
from shapeexec.execution._key import Key, shown_sizes


@dataclasses.dataclass(frozen=True)
class GraphBytes:
    """The memory of a graph, in bytes, as XLA reports it.

    Attributes:
        code: The program; 0 where a back end counts none.
        temporaries: Its buffers while it runs, without inputs and outputs.
        inputs: Its arguments at their buckets.
        outputs: Its results, before they are cut.
    """

    code: int
    temporaries: int
    inputs: int
    outputs: int

    @property
    def total(self) -> int:
        """All of them, in bytes."""
        return self.code + self.temporaries + self.inputs + self.outputs


@dataclasses.dataclass(frozen=True)
class GraphSeconds:
    """The time that a graph took to make, in seconds by the clock.

    Attributes:
        trace: Tracing the function at symbolic sizes. Graphs of all buckets share a trace, and have
            the same time here.
        check: Proving that the trace is the plain function at the sizes of the call, while XLA
            compiles or the graph is read.
        mask: Putting in the masks, at the buckets.
        lower: Writing the program for XLA.
        compile: The time of XLA, as JAX counts it; 0 if JAX had the program in its cache.
        load: Reading the graph from a file, which replaces masking, lowering and compiling; for an
            exported program it replaces masking.
    """

    trace: float = 0.0
    check: float = 0.0
    mask: float = 0.0
    lower: float = 0.0
    compile: float = 0.0
    load: float = 0.0

    @property
    def total(self) -> float:
        """From the first to the last, in seconds: the trace is checked meanwhile."""
        return self.trace + self.mask + self.lower + max(self.check, self.compile + self.load)

    def __str__(self) -> str:
        parts = (f"{name} {value:.2f} s" for name, value in dataclasses.asdict(self).items())
        return f"{self.total:.2f} s ({', '.join(parts)})"


@dataclasses.dataclass(frozen=True)
class GraphRow:
    """One compiled graph: its key, its calls, and its costs.

    Attributes:
        buckets: The size that each symbol is padded to; the exact size of one in `exact`.
        least: Per symbol the smallest size that runs in this graph; the bucket is the largest.
        signature: For each array argument its place, its dtype and its dims: `"args[0]:
            f32[b,s,4]"`.
        constants: Each argument that is not an array, by place, as a string.
        guards: The conditions on the sizes, as strings.
        exact: The size of each symbol that runs at its exact size, for any reason.
        examples: How many examples a graph of `Exec.map` takes; None: a graph of plain calls.
        reduce: `"sum"` if a graph of `Exec.map` adds results up.
        shardings: The shardings of committed arguments, by place, when the graph was compiled. JAX
            places the others by default.
        hits: Calls that found this graph compiled.
        last_use: How long ago a call last used it, in seconds; None: no call has.
        valid_elements: Valid elements of padded arguments, over all its calls.
        bucket_elements: All elements of these arguments at capacity: data and padding.
        bytes: Its memory; None if the backend does not report it.
        seconds: The time that each step of making it took.
        run_seconds: The wall-clock time of its hits from call to result, in seconds; an accelerator
            may still have been working on the results.
        origin: What created it: `"made"` by a call that needed it, `"warmup"` by `Exec.warmup`,
            `"worker"` in another thread, while calls ran in larger ones. With
            `Compiling(first="quick")` it is `"quick"`, and `"tuned"` when it was replaced.
            `"loaded"`: from a file that `save` wrote. `"exported"`: compiled from a program that
            `save` wrote on another kind of machine.
        key: Its key, as one value.
        is_ragged: Per string of `signature` whether its spec has a symbol.
        has_zero_results: Whether it zeroes the padding of its results, for `Exec.padded`.
        trace: The function at symbolic sizes, which graphs of other buckets share.
        exactness: The symbols that were known to be exact in calls of this kind.
        compiled: The `jax.stages.Compiled` of JAX, which the row keeps alive. None if the row only
            describes a graph, as in `WhyNew`.

    Example:
        >>> run = sx.Exec(jnp.sum, ("s",))
        >>> _ = run(np.ones(5, np.float32))
        >>> (row,) = run.graphs
        >>> row.buckets, row.signature, row.origin
        ({'s': 8}, ('args[0]: f32[s]',), 'made')
    """

    buckets: Mapping[str, int]
    least: Mapping[str, int]
    signature: tuple[str, ...]
    constants: Mapping[str, str]
    guards: tuple[str, ...]
    exact: Mapping[str, int]
    examples: int | None
    reduce: str | None
    shardings: Mapping[str, str]
    origin: str
    key: Key = dataclasses.field(repr=False)
    is_ragged: tuple[bool, ...] = dataclasses.field(repr=False)
    has_zero_results: bool = False
    hits: int = 0
    last_use: float | None = None
    valid_elements: int = 0
    bucket_elements: int = 0
    bytes: GraphBytes | None = None
    seconds: GraphSeconds = GraphSeconds()
    run_seconds: float = 0.0
    trace: Any = dataclasses.field(default=None, repr=False, compare=False)
    exactness: Any = dataclasses.field(default=None, repr=False, compare=False)
    compiled: Any = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def waste(self) -> float:
        """The share of `bucket_elements` that was padding, 0 to 1; 0 before the first call."""
        return 1 - self.valid_elements / self.bucket_elements if self.bucket_elements else 0.0

    @property
    def sizes(self) -> str:
        """The buckets as a string, such as `b=4, s=64`, `s=7 exact` or `map of 8: s=64`."""
        return shown_sizes(self.buckets, self.exact, examples=self.examples)

    @property
    def named(self) -> tuple[str, ...]:
        """The parts of the key other than the buckets, one string each."""
        return (
            *self.signature,
            *(f"{place}={text}" for place, text in self.constants.items()),
            *(f"if {guard}" for guard in self.guards),
            *(f"{path} on {device}" for path, device in self.shardings.items()),
            *(("summed",) if self.reduce else ()),
            *(("results padded with zeros",) if self.has_zero_results else ()),
        )

    def serves(self, sizes: Mapping[str, int]) -> bool:
        """Say whether a call of these sizes, of all symbols, may run in this graph.

        Args:
            sizes: By symbol.

        Returns:
            Whether the graph takes each size, and its guards hold; False for a graph of a map.
        """
        if self.examples is not None or sizes.keys() != self.buckets.keys():
            return False
        if any(not self.least[s] <= size <= self.buckets[s] for s, size in sizes.items()):
            return False
        if self.exactness is not None and self.exactness.symbols(sizes) != self.exact.keys():
            return False
        return self.trace.admits(sizes)

    def __str__(self) -> str:
        share = f", {self.waste:.1%} padding" if self.bucket_elements else ""
        hits = f"{self.hits} hit{'s' * (self.hits != 1)}"
        return f"{self.sizes}: {'; '.join(self.named)}; {self.origin}, {hits}{share}"

    def __copy__(self) -> "GraphRow":
        return self

    def __deepcopy__(self, memo: Any) -> "GraphRow":
        return self  # it is immutable

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ConfigError(
            "graphs hold programs that were compiled in this process, and cannot be pickled.",
            got=f"the graph {self}",
            fix="pickle `graphs.to_json()`, or the Exec, which compiles again",
        )

    def hlo(self) -> str:
        """Print the program as XLA compiled it, as HLO text.

        Raises:
            ConfigError: The row keeps no graph.
        """
        return self._kept().as_text()

    def cost(self) -> dict[str, float]:
        """Ask XLA for its estimates of one run: `"flops"`, `"bytes accessed"` and more.

        Empty if the backend makes none.

        Raises:
            ConfigError: The row keeps no graph.
        """
        costs: Mapping[str, Any] = self._kept().cost_analysis() or {}
        return {name: float(value) for name, value in sorted(costs.items())}

    def _kept(self) -> Any:
        if self.compiled is None:
            raise ConfigError(
                f"this row describes a graph ({self.sizes}) and does not keep it.",
                fix="use the rows of the Exec: run.graphs",
            )
        return self.compiled

    def to_dict(self) -> dict[str, Any]:
        """Return the row as values that JSON knows: bytes in bytes, times in seconds."""
        return {
            "buckets": dict(self.buckets),
            "least": dict(self.least),
            "signature": list(self.signature),
            "constants": dict(self.constants),
            "guards": list(self.guards),
            "exact": dict(self.exact),
            "examples": self.examples,
            "reduce": self.reduce,
            "shardings": dict(self.shardings),
            "hits": self.hits,
            "last_use": self.last_use,
            "waste": self.waste,
            "valid_elements": self.valid_elements,
            "bucket_elements": self.bucket_elements,
            "bytes": None if self.bytes is None else dataclasses.asdict(self.bytes),
            "seconds": dataclasses.asdict(self.seconds),
            "run_seconds": self.run_seconds,
            "origin": self.origin,
            "has_zero_results": self.has_zero_results,
        }


def volume(row: GraphRow) -> int:
    """The product of a graph's buckets, by which graphs are compared: the least is the cheapest."""
    return math.prod(row.buckets.values())
