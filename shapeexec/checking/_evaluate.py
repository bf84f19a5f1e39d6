"""Compares two values on random data.

The common ancestors of both values are drawn at random, so that only the operations that differ are
run.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np
from jax import numpy as jnp

from shapeexec import _compat
from shapeexec.checking._values import Kind, Node, Table

_MOST_OPERATIONS = 60
_MOST_ELEMENTS = 1 << 18
_MOST_FLOPS = 1 << 24
_ROUNDING = 64
"""The tolerance, in units of the last place of a result's largest element."""


def agree(table: Table, *, left: int, right: int, proven: Mapping[int, int]) -> bool:
    """Whether two values are equal up to rounding, on random values of their common ancestors.

    Args:
        table: The values.
        left: A value.
        right: Another.
        proven: Values to replace by equal ones.

    Returns:
        False, too, if they are too large to evaluate or contain loops without a known end, if JAX
        cannot evaluate them, or if the results are all NaN or do not depend on the data.
    """
    if table.kind(left) != table.kind(right):
        return False
    inputs, order = _between(table, (left, right), proven=proven)
    nodes = [table[value] for value in order]
    if any(node.run is None and node.constant is None for node in nodes):
        return False
    if not _is_cheap(table, nodes, inputs=inputs):
        return False
    run = _runner(table, inputs, order=order, ends=(left, right), proven=proven)
    kinds = [table.kind(value) for value in inputs]
    try:
        return _agree_on_draws(run, kinds, special=_constants(nodes))
    except _NotEvaluated:
        return False


def _between(
    table: Table, ends: tuple[int, int], *, proven: Mapping[int, int]
) -> tuple[list[int], list[int]]:
    """The common ancestors of both ends, and the values between, operands first."""
    above = [_ancestors(table, end, proven=proven) for end in ends]
    common = above[0] & above[1]
    inputs: set[int] = set()
    order: set[int] = set()
    waiting = [*ends]
    while waiting:
        value = waiting.pop()
        if value in order or value in inputs:
            continue
        node = table[value]
        is_given = node.run is None and node.constant is None
        if (value in common or is_given) and node.op != "constant":
            inputs.add(value)
            continue
        order.add(value)
        waiting += [proven.get(operand, operand) for operand in node.inputs]
    return sorted(inputs), sorted(order)


def _ancestors(table: Table, end: int, *, proven: Mapping[int, int]) -> set[int]:
    found: set[int] = set()
    waiting = [end]
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            waiting += [proven.get(operand, operand) for operand in table[value].inputs]
    return found


def _is_cheap(table: Table, nodes: Sequence[Node], *, inputs: Sequence[int]) -> bool:
    if len(nodes) > _MOST_OPERATIONS or any(node.op == "while" for node in nodes):
        return False
    elements = sum(node.kind.size for node in nodes)
    elements += sum(table.kind(value).size for value in inputs)
    return elements <= _MOST_ELEMENTS and sum(_flops(table, node) for node in nodes) <= _MOST_FLOPS


def _flops(table: Table, node: Node) -> int:
    """An upper bound on the operations of a node."""
    if node.op == "scan" and isinstance(node.params, tuple):
        params: Any = node.params
        return int(params[0][0]) * 16 * sum(table.kind(value).size for value in node.inputs)
    if node.op in ("dot_general", "conv_general_dilated") and len(node.inputs) > 1:
        first = table.kind(node.inputs[0]).size
        return first * table.kind(node.inputs[1]).size
    return node.kind.size


def _runner(
    table: Table,
    inputs: Sequence[int],
    *,
    order: Sequence[int],
    ends: tuple[int, int],
    proven: Mapping[int, int],
) -> Callable[..., Any]:
    def run(arrays: Sequence[Any]) -> tuple[Any, Any]:
        env: dict[int, Any] = dict(zip(inputs, arrays, strict=True))
        made: dict[int, Sequence[Any]] = {}
        for value in order:
            node = table[value]
            if id(node.call) not in made or node.call is None:
                operands = [env[proven.get(operand, operand)] for operand in node.inputs]
                with _by_jax():
                    results = [node.constant] if node.run is None else node.run(operands)
                made[id(node.call)] = results
            env[value] = made[id(node.call)][node.result]
        return env[ends[0]], env[ends[1]]

    return run


def _agree_on_draws(
    run: Callable[..., Any], kinds: Sequence[Kind], *, special: Sequence[np.ndarray]
) -> bool:
    if not kinds:
        left, right = run([])
        with _by_jax():
            jax.block_until_ready([left, right])
        return _is_equal(_comparable(left), _comparable(right), tolerance=0.0)
    rng = np.random.default_rng(0)
    seen: list[np.ndarray] = []
    compiled: Callable[..., Any] | None = None
    for draw in _DRAWS:
        arrays = [_drawn(kind, draw, special=special, rng=rng) for kind in kinds]
        compiled = compiled or _compiled(run, arrays)
        with _by_jax():
            left, right = cast(tuple[Any, Any], jax.block_until_ready(compiled(arrays)))
        if left.shape != right.shape or left.dtype != right.dtype:
            return False
        tolerance = _tolerance(left.dtype)
        if not _is_equal(_comparable(left), _comparable(right), tolerance=tolerance):
            return False
        seen.append(_comparable(right))
    return _tells_something(seen)


class _NotEvaluated(Exception):
    """JAX cannot evaluate an operation on its own, or not on random data."""


@contextlib.contextmanager
def _by_jax() -> Generator[None]:
    """Only JAX's code, and user code that it calls, runs inside: its errors mean no proof.

    An operation may need a mesh, another device, or data for which a callback does not raise.
    """
    try:
        yield
    except MemoryError:  # of the machine, not of the program
        raise
    except Exception as error:  # of any kind: it is JAX's, or that of a callback
        raise _NotEvaluated from error


def _compiled(run: Callable[..., Any], arrays: Sequence[Any]) -> Callable[..., Any]:
    traced = jax.jit(run).trace(arrays)
    with _by_jax():
        return traced.lower().compile()


# Data

Draw = Callable[[np.random.Generator, tuple[int, ...], Any], Any]
"""`draw(rng, shape, dtype)`: an array of random numbers."""


def _integers_from(low: int, high: int) -> Draw:
    return lambda rng, shape, _: rng.integers(low, high, shape)


def _scaled(power: float) -> Draw:
    """Normal numbers times a power of the dtype's smallest number."""
    return lambda rng, shape, dtype: rng.normal(size=shape) * _tiny(dtype) ** power


def _tiny(dtype: Any) -> float:
    return float(jnp.finfo(dtype).tiny) if jnp.issubdtype(dtype, np.inexact) else 1.0


# Draws of floats and of integers: plain, positive, tiny, huge, and with many ties and zeros. Small
# integers are valid indices of most arrays; larger ones test out-of-range indices.
_PLAIN: Sequence[tuple[Draw, Draw]] = (
    (_scaled(0), _integers_from(0, 2)),
    (lambda rng, shape, _: rng.uniform(0.1, 2.0, shape), _integers_from(0, 2)),
    (_scaled(0.4), _integers_from(-6, 12)),
    (_scaled(-0.2), _integers_from(0, 128)),
    (_integers_from(-1, 2), _integers_from(-1, 2)),
)
_SPECIAL_DRAWS = 8
_DRAWS: Sequence[tuple[Draw, Draw] | None] = (*_PLAIN, *[None] * _SPECIAL_DRAWS, _PLAIN[0])
"""None: half of the elements are constants of the program, their neighbours, and extremes."""


def _drawn(
    kind: Kind,
    draw: tuple[Draw, Draw] | None,
    *,
    special: Sequence[np.ndarray],
    rng: np.random.Generator,
) -> Any:
    of_dtype = _compat.kind_of_dtype(kind.dtype)
    drawn = _BY_DTYPE[of_dtype](kind, rng, draws=draw or _PLAIN[3])
    if draw is not None or of_dtype in ("bool", "opaque"):
        return drawn
    pool = _pool(kind.dtype, special)
    return np.where(rng.random(kind.shape) < 0.5, rng.choice(pool, kind.shape), drawn)


def _bools(kind: Kind, rng: np.random.Generator, *, draws: tuple[Draw, Draw]) -> Any:
    return rng.random(kind.shape) < 0.5


def _integers(kind: Kind, rng: np.random.Generator, *, draws: tuple[Draw, Draw]) -> Any:
    numbers = draws[1](rng, kind.shape, kind.dtype)
    is_unsigned = jnp.issubdtype(kind.dtype, np.unsignedinteger)
    return np.asarray(np.abs(numbers) if is_unsigned else numbers).astype(kind.dtype)


def _floats(kind: Kind, rng: np.random.Generator, *, draws: tuple[Draw, Draw]) -> Any:
    return np.asarray(draws[0](rng, kind.shape, kind.dtype)).astype(kind.dtype)


def _complexes(kind: Kind, rng: np.random.Generator, *, draws: tuple[Draw, Draw]) -> Any:
    real, imaginary = (draws[0](rng, kind.shape, kind.dtype) for _ in range(2))
    return np.asarray(real + 1j * imaginary).astype(kind.dtype)


def _opaque(kind: Kind, rng: np.random.Generator, *, draws: tuple[Draw, Draw]) -> Any:
    if not _compat.is_extended(kind.dtype):  # float0
        return np.zeros(kind.shape, kind.dtype)
    struct = jax.ShapeDtypeStruct(kind.shape, kind.dtype)
    words = jax.eval_shape(jax.random.key_data, struct)
    data = rng.integers(0, 2**32, words.shape).astype(np.uint32)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(_key_of(kind.dtype)))


_BY_DTYPE = {
    "bool": _bools,
    "int": _integers,
    "float": _floats,
    "complex": _complexes,
    "opaque": _opaque,
}


def _pool(dtype: Any, special: Sequence[np.ndarray]) -> np.ndarray:
    """The numbers at which the program may branch."""
    if jnp.issubdtype(dtype, np.integer):
        info = jnp.iinfo(dtype)
        near = [int(c) + step for c in special for step in (-1, 0, 1)]
        kept = [n for n in near if info.min <= n <= info.max]
        return np.asarray([info.min, info.max, 0, *kept]).astype(dtype)
    near = [float(c) * by for c in special for by in (0.99, 1, 1.01)]
    return np.asarray([0.0, 1.0, *near]).astype(dtype)


def _constants(nodes: Sequence[Node]) -> list[np.ndarray]:
    """The finite real numbers among the constants of the program."""
    scalars = (
        node.constant.flat[0] for node in nodes if node.constant is not None and node.kind.size
    )
    return [x for x in scalars if x.dtype.kind in "iuf" and np.isfinite(x)]


def _key_of(dtype: Any) -> Any:
    return jax.ShapeDtypeStruct((), dtype)


def _comparable(x: Any) -> np.ndarray:
    if _compat.is_extended(getattr(x, "dtype", np.float32)):
        x = jax.random.key_data(x)
    x = np.asarray(x)
    if x.dtype.kind in "biufc":
        return x
    return x.astype(np.float64) if jnp.issubdtype(x.dtype, np.inexact) else x.astype(np.int64)


def _tolerance(dtype: Any) -> float:
    """Relative to the largest element; 0 for dtypes that do not round."""
    inexact = not _compat.is_extended(dtype) and jnp.issubdtype(dtype, np.inexact)
    return _ROUNDING * float(jnp.finfo(dtype).eps) if inexact else 0.0


def _is_equal(left: np.ndarray, right: np.ndarray, *, tolerance: float) -> bool:
    if left.shape != right.shape:
        return False
    if not tolerance:
        return bool(np.array_equal(left, right, equal_nan=left.dtype.kind in "fc"))
    finite = np.isfinite(left) & np.isfinite(right)
    with np.errstate(all="ignore"):
        odd = (left == right) | (np.isnan(left) & np.isnan(right))
        largest = np.abs(right[finite]).max(initial=0.0)
        close = np.abs(left - right) <= tolerance * largest
    return bool(np.all(np.where(finite, close, odd)))


def _tells_something(draws: Sequence[np.ndarray]) -> bool:
    """Whether results depend on the data: they are not all NaN and not equal at each draw."""
    telling = [x for x in draws if x.dtype.kind not in "fc" or np.isfinite(x).any()]
    return any(not np.array_equal(x, telling[0], equal_nan=True) for x in telling)
