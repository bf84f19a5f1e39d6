"""`pad_safe`: the masked function itself, without bucketing, padding or caching.

The masking is in `_masked`; graphs and their cache are in `execution`.
"""

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

import jax

from shapeexec._errors import (
    InconclusiveShapeError,
    SpecError,
    UnsupportedPrimitiveError,
    made_exact,
    tell_fix,
)
from shapeexec.masking._masked import Masked
from shapeexec.masking._poison import check_poison
from shapeexec.shape import _trees
from shapeexec.shape._guards import parse_constraints
from shapeexec.shape._spec import compile_spec
from shapeexec.shape._trace import Leaf, trace


def pad_safe(
    fn: Callable[..., Any],
    in_shapes: Sequence[Any],
    *,
    constraints: str | Iterable[str] = (),
    poison: str | None = None,
) -> Callable[..., Any]:
    """Rewrite `fn` so that padding never reaches a valid element.

    Args:
        fn: A function of arrays and trees of arrays.
        in_shapes: One spec per positional argument, as for `Exec`.
        constraints: A fact about the sizes, such as `"s >= 2"`, or several.
        poison: The name of a poison for padding without known facts, for tests; see `Exec`.

    Returns:
        `padded(sizes, *args)`: `sizes` maps each symbol to its true size, an int or i32[], which
        may be traced or vmapped over. The shapes of `args` are the buckets: along each ragged axis
        the valid elements come first, and what is behind them may be anything. Results are at
        capacity, valid elements first. It may be jitted and vmapped; take gradients of `fn`, not of
        `padded`. It raises an `UnsupportedPrimitiveError` or an `InconclusiveShapeError` as an
        `Exec` does.

    Raises:
        SpecError: A spec is malformed.
        ConfigError: A constraint or the poison is not known.

    Example:
        >>> mean = pad_safe(lambda x: x.mean(), ("s",))
        >>> float(mean({"s": 2}, jax.numpy.array([1.0, 3.0, jax.numpy.nan])))
        2.0
    """
    facts = parse_constraints(constraints)
    poison = check_poison(poison)

    def padded(sizes: Mapping[str, Any], *args: Any) -> Any:
        leaves, treedef = _trees.flatten(args)
        bound = compile_spec(in_shapes, args)
        shapes = bound.shapes(leaves)
        buckets = bound.sizes(shapes)
        _check_sizes(sizes, buckets)
        dims = [() if d is None else d for d in bound.dims(shapes)]
        avals = [jax.typeof(leaf) for leaf in leaves]
        described = [Leaf(d, a.dtype, a.weak_type) for d, a in zip(dims, avals, strict=True)]
        known = sizes if all(isinstance(size, int) for size in sizes.values()) else None

        def flat(*flat: Any) -> Any:
            return fn(*_trees.unflatten(treedef, flat))

        with _exact_in_an_exec():
            traced = trace(flat, described, sizes=known, constraints=facts)
            ranges = {symbol: (1, buckets[symbol]) for symbol in sorted(buckets)}
            results = Masked(traced, ranges, poison)(sizes, traced.jaxpr.consts, leaves=leaves)
        return _trees.unflatten(traced.out_tree, results)

    return padded


@contextlib.contextmanager
def _exact_in_an_exec() -> Generator[None, None, None]:
    """Make errors whose fix is an option of `Exec` say so: `pad_safe` has no such options."""
    try:
        yield
    except (UnsupportedPrimitiveError, InconclusiveShapeError) as error:
        exact = made_exact(error.symbols)
        tell_fix(error, error.fix.replace(exact, f"run the function by sx.Exec, and {exact}"))
        raise


def _check_sizes(sizes: Mapping[str, Any], buckets: Mapping[str, int]) -> None:
    fix = f"sizes={{{', '.join(f'{symbol!r}: ...' for symbol in sorted(buckets))}}}"
    if sizes.keys() != buckets.keys():
        raise SpecError(
            f"sizes has {', '.join(sorted(sizes)) or 'no symbol'}, but the specs have "
            f"{', '.join(sorted(buckets)) or 'none'}.",
            path="sizes",
            fix=fix,
        )
    for symbol, size in sizes.items():
        if isinstance(size, int) and not 1 <= size <= buckets[symbol]:
            raise SpecError(
                f"`{symbol}` is {size}, but the arguments hold 1 to {buckets[symbol]}.",
                path="sizes",
                fix="a size of at least 1 that the padded arguments can hold",
            )
