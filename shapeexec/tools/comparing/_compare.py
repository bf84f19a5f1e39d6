"""`compare`: values, gradients, dtypes and speed of two implementations of one function.

Either may be an `Exec`. `_closeness` decides whether rounding explains a difference.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from shapeexec.execution import Exec
from shapeexec.execution._split import taken
from shapeexec.execution._table import grid_lines
from shapeexec.tools import _closeness
from shapeexec.tools._clock import in_turns, seconds_text, timed
from shapeexec.tools._gradients import by_floats, gradient_of, is_inexact


@dataclasses.dataclass(frozen=True)
class ComparisonRow:
    """The comparison of one call.

    Attributes:
        sizes: The name of the call.
        what: `"values"` or `"gradients"`.
        difference: How the first differs from the other; None: not by more than rounding.
        note: A remark: that rounding is amplified, or why nothing was compared.
        seconds: The seconds of the first and of the other, once compiled; None: one has failed.

    Example:
        >>> found = compare(jnp.sum, jnp.sum, calls={"s=3": (np.ones(3, np.float32),)})
        >>> [(row.what, row.difference) for row in found.rows]
        [('values', None), ('gradients', None)]
    """

    sizes: str
    what: str
    difference: str | None
    note: str = ""
    seconds: tuple[float, float] | None = None

    @property
    def speed_up(self) -> float | None:
        """How many times as fast as the other the first one is."""
        return self.seconds[1] / self.seconds[0] if self.seconds else None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two implementations side by side; `print` it.

    Attributes:
        names: The names of the two.
        rows: For each call a row for values, and one for gradients.

    Example:
        >>> x = np.ones(3, np.float32)
        >>> found = compare(jnp.sum, jnp.mean, calls={"s=3": (x,)}, gradients=False)
        >>> found.rows[0].difference
        'the array is 3.0 instead of 1.0 at []; 1 of 1 elements differ'
    """

    names: tuple[str, str]
    rows: tuple[ComparisonRow, ...]

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs by more than rounding, and something was compared."""
        are_compared = any(row.seconds is not None for row in self.rows)
        return are_compared and all(row.difference is None for row in self.rows)

    def __str__(self) -> str:
        heads = ["sizes", "what", "equal", *self.names, "speed-up"]
        grid = [heads, *map(_cells, self.rows)]
        notes = [
            f"{row.sizes}, {row.what}: {text}"
            for row in self.rows
            for text in (row.difference, row.note)
            if text
        ]
        wrong = sum(row.difference is not None for row in self.rows)
        end = "all equal" if self.is_equal else f"{wrong} of {len(self.rows)} differ"
        if not wrong and not self.is_equal:
            end = "nothing was compared"
        return "\n".join([*grid_lines(grid, ("sizes", "what", "equal")), *notes, end])

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, as JSON has them."""
        rows = [{**dataclasses.asdict(row), "speed_up": row.speed_up} for row in self.rows]
        return {"names": list(self.names), "is_equal": self.is_equal, "rows": rows}


def compare(
    one: Callable[..., Any],
    other: Callable[..., Any],
    *,
    calls: Mapping[str, Sequence[Any]],
    gradients: bool = True,
    rounds: int = 5,
    names: tuple[str, str] = ("one", "other"),
) -> Comparison:
    """Compare two implementations: trees, shapes, dtypes, values up to rounding, and speed.

    Args:
        one: An `Exec`, or a function that `jax.jit` can run.
        other: Another `Exec` or function, with the same arguments.
        calls: The positional arguments of each call, by its name: `{"s=3": (x,)}`.
        gradients: Whether to compare gradients by all float arguments, too.
        rounds: How often each is timed, in turns with the other.
        names: Their names in the table.

    Returns:
        The differences, and the speed of both.

    Example:
        >>> calls = {f"s={n}": (np.arange(n, dtype=np.float32),) for n in (3, 5)}
        >>> compare(sx.Exec(jnp.mean, ("s",)), jnp.mean, calls=calls, gradients=False).is_equal
        True
    """
    sides = _Side(one), _Side(other)
    rows = (
        row
        for name, args in calls.items()
        for row in _rows(name, args, sides=sides, gradients=gradients, rounds=rounds)
    )
    return Comparison(names, tuple(rows))


class _Side:
    """An implementation; an Exec returns arrays, and keeps its arguments."""

    def __init__(self, given: Callable[..., Any]) -> None:
        is_exec = isinstance(given, Exec)
        self.run = given.variant(returns="device", donate_argnums=()) if is_exec else None
        self.settings = (self.run or Exec(given)).settings
        self._gradient: Exec | None = None

    def work(self, args: Sequence[Any], what: str) -> Callable[[], Any]:
        """A function that makes one call."""
        if self.run is None:
            flat, leaves = self.flat(args, what)
            return lambda: flat(*leaves)
        run = self.run if what == "values" else self._gradients()
        return lambda: run(*args)

    def flat(self, args: Sequence[Any], what: str) -> tuple[Callable[..., Any], list[Any]]:
        """The plain function of flat arrays, and the arrays of a call."""
        call = taken(self.settings, args, kwargs={})
        pure = call.pure()
        leaves = jax.tree.leaves((tuple(call.arrays), dict(call.named)))
        return jax.jit(pure if what == "values" else by_floats(pure)), leaves

    def why_no_gradients(self, args: Sequence[Any]) -> str | None:
        """The reason why there are no gradients; None: there are some."""
        if not any(map(is_inexact, self.flat(args, "values")[1])):
            return "no argument is a float"
        if not self.settings.masking:
            return "masking=False sums over padding; sx.validate compares them"
        return None

    def _gradients(self) -> Exec:
        if self._gradient is None:
            assert self.run is not None
            self._gradient = self.run.variant(fn=gradient_of(self.settings))
        return self._gradient


def _rows(
    name: str, args: Sequence[Any], *, sides: tuple[_Side, _Side], gradients: bool, rounds: int
) -> Iterator[ComparisonRow]:
    yield _row(name, "values", args=args, sides=sides, rounds=rounds)
    if gradients:
        why = next(filter(None, (side.why_no_gradients(args) for side in sides)), None)
        if why is None:
            yield _row(name, "gradients", args=args, sides=sides, rounds=rounds)
        else:
            yield ComparisonRow(name, "gradients", None, f"not compared: {why}")


def _row(
    name: str, what: str, *, args: Sequence[Any], sides: tuple[_Side, _Side], rounds: int
) -> ComparisonRow:
    works = {side: each.work(args, what) for side, each in zip("ab", sides, strict=True)}
    results: dict[str, Any] = {}
    failures: dict[str, str] = {}
    for side, work in works.items():
        try:
            results[side] = timed(work)[1]
        except Exception as error:  # user code may raise anything at these sizes
            failures[side] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    if len(failures) == 2:
        return ComparisonRow(name, what, None, f"not compared, for both fail: {failures['b']}")
    if failures:
        (side, failure), *_ = failures.items()
        which = "the first" if side == "a" else "the other"
        return ComparisonRow(name, what, f"{which} alone fails: {failure}")
    flat, leaves = sides[1].flat(args, what)
    text, is_rounding = difference(results["a"], results["b"], flat=flat, leaves=leaves)
    seconds = in_turns(works, rounds=rounds)
    note = f"rounding that the function amplifies: {text}" if is_rounding else ""
    return ComparisonRow(
        name, what, None if is_rounding else text, note, (seconds["a"], seconds["b"])
    )


def difference(
    got: Any, want: Any, *, flat: Callable[..., Any], leaves: Sequence[Any]
) -> tuple[str | None, bool]:
    """How two results differ by more than rounding, and whether the function amplifies rounding.

    Args:
        got: A tree of arrays.
        want: The expected tree.
        flat: The function of flat arrays that returned `want`.
        leaves: The arguments of `flat`.
    """
    if jax.tree.structure(got) != jax.tree.structure(want):
        return f"{jax.tree.structure(got)} instead of {jax.tree.structure(want)}", False
    pairs = list(zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True))
    for (path, a), b in pairs:
        text = _closeness.difference(a, b)
        if text is None:
            continue
        is_alike = all(x.dtype == y.dtype and x.shape == y.shape for (_, x), y in pairs)
        is_rounding = is_alike and _closeness.is_rounding(
            lambda *flat_leaves: jax.tree.leaves(flat(*flat_leaves)),
            leaves,
            got=[x for (_, x), _ in pairs],
            want=[y for _, y in pairs],
        )
        return f"{jax.tree_util.keystr(path) or 'the array'} is {text}", is_rounding
    return None, False


def _cells(row: ComparisonRow) -> list[str]:
    if row.seconds is None:
        return [row.sizes, row.what, "-" if row.difference is None else "NO", "-", "-", "-"]
    state = "yes" if row.difference is None else "NO"
    times = map(seconds_text, row.seconds)
    return [row.sizes, row.what, state, *times, f"{row.speed_up:.2f}"]
