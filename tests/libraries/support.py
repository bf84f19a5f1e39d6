"""What tests of libraries share: a step of training, run beside plain `jax.jit`."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

import shapeexec as sx
from tests.execution.support import batch
from tests.tolerance import SUMS, assert_close

BUCKETS = sx.Pow2(minimum=4)
SIZES = (3, 4, 2, 5)  # two buckets, of which one size fills the first
KEY = jax.random.key(0)


def rows(size: int) -> tuple[Any, ...]:
    return (batch(size),)


@dataclasses.dataclass(frozen=True)
class Program:
    """A step of a library's as users write it, in which nothing knows of padding.

    Attributes:
        step: `(state, *data)` to the next state and what else it tells.
        state: Where it starts; None: it keeps none.
        specs: Those of the data.
        data: The data of a size.
        graphs: How many graphs the sizes take.
        options: Further ones of `Exec` and of `jax.jit`.
    """

    step: Callable[..., Any]
    state: Any = None
    specs: tuple[Any, ...] = ("b, 3",)
    data: Callable[[int], tuple[Any, ...]] = rows
    graphs: int = 2
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def exec(self) -> sx.Exec:
        return sx.Exec(self.step, (None, *self.specs), buckets=BUCKETS, **self.options)

    def start(self) -> Any:
        """A state of its own, for a step may take the memory of it."""
        return jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else x, self.state)


def assert_trains_as_jit(program: Program) -> None:
    """Through all sizes state and results are those of `jax.jit`."""
    ex, plain_step = program.exec(), jax.jit(program.step, **program.options)
    state, plain = program.start(), program.start()
    for size in SIZES:
        before = [jax.tree.leaves(tree) for tree in (state, plain)]
        state, told = ex(state, *program.data(size))
        plain, wanted = plain_step(plain, *program.data(size))
        assert_close(told, wanted, loose=SUMS)
        assert_close(state, plain, loose=SUMS)
        gone, gone_in_jit = ([_is_gone(x) for x in leaves] for leaves in before)
        assert gone == gone_in_jit
    assert ex.cache_size == program.graphs
    assert ex.stats.differences == 0


def _is_gone(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and leaf.is_deleted()
