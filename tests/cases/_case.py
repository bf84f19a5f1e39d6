"""A program with the shapes of its arguments and the sizes it is tried at."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec import _compat
from shapeexec.shape._dim import Dim, evaluate
from tests.tolerance import DERIVED


@dataclasses.dataclass(frozen=True)
class Case:
    """One program.

    Attributes:
        name: What it shows; unique in its family.
        fn: A function of arrays.
        in_shapes: Per argument its dims, such as "b, s, 4"; "" is a scalar.
        sizes: Sizes to try first; others are drawn from `least` up to 7.
        dtypes: Per argument; one dtype stands for all.
        integers: Integer arguments are drawn from this range (the end excluded).
        least: Smallest size per symbol, where the program needs one (1 otherwise).
        naive: Whether zero padding without masks gives another result at `sizes`, or the same, or
            does not end.
        no_gradient: Why JAX itself has no gradient of it; empty: it has, and that is tested too.
        loose: Times the tolerance of each result's dtype, see `tests.tolerance`.
    """

    name: str
    fn: Callable[..., Any]
    in_shapes: tuple[str, ...]
    sizes: Mapping[str, int] = dataclasses.field(default_factory=lambda: {"b": 3, "s": 5, "t": 2})
    dtypes: Any = np.float32
    integers: tuple[int, int] = (0, 5)
    least: Mapping[str, int] = dataclasses.field(default_factory=dict)
    naive: Literal["differs", "agrees", "never ends"] = "differs"
    no_gradient: str = ""
    loose: float = 1

    @property
    def dims(self) -> tuple[tuple[Any, ...], ...]:
        """Per argument its dims, int or `Dim`."""
        return tuple(
            tuple(
                int(d) if d.strip().isdigit() else Dim(d.strip())
                for d in text.split(",")
                if d.strip()
            )
            for text in self.in_shapes
        )

    @property
    def symbols(self) -> tuple[str, ...]:
        """Its symbols, sorted."""
        found = {s for dims in self.dims for d in dims if isinstance(d, Dim) for s in d.symbols}
        return tuple(sorted(found))

    @property
    def arg_dtypes(self) -> tuple[Any, ...]:
        """One dtype per argument."""
        if isinstance(self.dtypes, tuple):
            return tuple(np.dtype(dtype) for dtype in self.dtypes)
        return (np.dtype(self.dtypes),) * len(self.in_shapes)

    def make_args(self, sizes: Mapping[str, int], seed: int = 0) -> list[np.ndarray]:
        """Random arguments at `sizes`."""
        rng = np.random.default_rng(seed)
        args = []
        for dims, dtype in zip(self.dims, self.arg_dtypes, strict=True):
            shape = tuple(evaluate(dim, sizes) for dim in dims)
            drawn = _DRAWN[_compat.kind_of_dtype(dtype)](self, rng, shape)
            args.append(np.asarray(drawn).astype(dtype))
        return args

    def gradient(self) -> "Case | None":
        """The program's gradient; None if JAX has none, or no argument is inexact."""
        return None if self.no_gradient else self.gradient_if_any()

    def gradient_if_any(self) -> "Case | None":
        """The gradient with respect to all inexact arguments, whether or not JAX has it."""
        inexact = tuple(
            i for i, dtype in enumerate(self.arg_dtypes) if jnp.issubdtype(dtype, np.inexact)
        )
        if not inexact:
            return None

        def loss(*args: Any) -> Any:
            return sum(map(_varied, jax.tree.leaves(self.fn(*args))), jnp.float32(0))

        return dataclasses.replace(
            self,
            name=f"gradient of {self.name}",
            fn=jax.grad(loss, argnums=inexact),
            loose=self.loose * DERIVED,
        )


_DRAWN: dict[str, Callable[[Case, np.random.Generator, tuple[int, ...]], Any]] = {
    "bool": lambda _, rng, shape: rng.random(shape) < 0.5,
    "int": lambda case, rng, shape: rng.integers(*case.integers, size=shape),
    "float": lambda _, rng, shape: rng.normal(size=shape),
    "complex": lambda _, rng, shape: rng.normal(size=shape) + 1j * rng.normal(size=shape),
}
"""Random arguments, by the kind of their dtype."""


def _varied(x: Any) -> Any:
    """A number whose cotangent of `x` differs from element to element, and from 1."""
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, np.inexact):
        return jnp.float32(0)
    parts = (x.real, x.imag) if jnp.iscomplexobj(x) else (x,)
    return sum(jnp.sum(jnp.sin(part.astype(jnp.float32))) for part in parts)
