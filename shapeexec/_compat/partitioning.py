"""Functions that XLA's partitioner runs on each device's part of arrays, as their caller says how.

JAX's `custom_partitioning` does it. It needs the program's devices, which JAX gives to primitives
that ask for them; whoever asks refuses programs over several meshes or an abstract one. Only their
number and order count here, so any devices stand in for them.
"""

# The functions that this takes of JAX are private, and have no types.
# pyright: reportPrivateUsage=false
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import mesh as _mesh
from jax._src import sharding_impls as _sharding_impls
from jax.experimental.custom_partitioning import custom_partitioning

Axes = tuple[str, ...]
Spec = tuple[Axes, ...]
"""For each axis of an array the mesh axes that it is sharded over, the major one first."""
Partition = Callable[
    [jax.sharding.Mesh, Sequence[Spec], Sequence[Spec]],
    tuple[Sequence[Spec], Sequence[Spec], Callable[..., Any]],
]


def context_of_partitioned(ctx: Any) -> Any | None:
    """A context of lowering in which `partitioned` works; None: nothing is to be partitioned.

    That is so on one device, inside `jax.shard_map`, for `jax.export`, whose programs cannot hold
    a Python function, and under GSPMD, the partitioner before Shardy.
    """
    module = ctx.module_context
    axes = module.axis_context
    is_shardy = jax.config.jax_use_shardy_partitioner  # pyright: ignore[reportAttributeAccessIssue] - without stubs
    if (
        not isinstance(axes, _sharding_impls.ShardingContext)
        or axes.num_devices == 1
        or module.lowering_parameters.for_export
        or not is_shardy
    ):
        return None
    stand_ins = jax.devices(module.platforms[0])[: axes.num_devices]
    if len(stand_ins) < axes.num_devices:  # it is compiled for devices that are not here
        return None
    sizes = _prime_factors(ctx.avals_in, axes.num_devices)
    mesh = jax.sharding.AbstractMesh(sizes, tuple(f"part{i}" for i in range(len(sizes))))
    axes = _sharding_impls.ShardingContext(axes.num_devices, tuple(stand_ins), mesh)
    return ctx.replace(module_context=module.replace(axis_context=axes))


def _prime_factors(avals: Sequence[Any], devices: int) -> tuple[int, ...]:
    """The sizes of mesh axes that all shardings are over: those of the program's, in primes.

    An array may be sharded over a part of a mesh axis, and `in_shardings=` may be all that names
    the mesh, which is not to be had here. The primes of the number of devices serve unless it has
    several in another order.
    """
    sizes = next(
        (mesh.axis_sizes for aval in avals if (mesh := aval.sharding.mesh).size == devices),
        (devices,),
    )
    return tuple(prime for size in sizes for prime in _primes(size))


def _primes(number: int) -> list[int]:
    for factor in range(2, number + 1):
        if number % factor == 0:
            return [factor, *_primes(number // factor)]
    return []


def partitioned(
    function: Callable[..., Sequence[Any]], rule: str, *, partition: Partition
) -> Callable[..., Sequence[Any]]:
    """The function of arrays, which XLA divides as `partition` says.

    Args:
        function: Of whole arrays; results of that shape.
        rule: How shardings propagate from operands to results and back, as `custom_partitioning`
            takes it.
        partition: Of the mesh, and of how operands and results are sharded. It returns how they
            must be, and the function of each device's parts, where the mesh axes have names.
    """

    def by_jax(mesh: Any, operands: Any, results: Any) -> Any:  # noqa: PLR0917 - JAX calls it
        known = [
            [_spec(x.sharding, x.shape, mesh=mesh) for x in side] for side in (operands, results)
        ]
        of_operands, of_results, local = partition(mesh, *known)

        def without_mesh(*parts: Any) -> Any:
            # The caller's mesh may have explicit axes, but here is one device.
            with _no_mesh():
                return tuple(local(*parts))

        cut = [
            tuple(jax.NamedSharding(mesh, jax.P(*(axes or None for axes in spec))) for spec in side)
            for side in (of_operands, of_results)
        ]
        return mesh, without_mesh, cut[1], cut[0]

    def on_all(*operands: Any) -> tuple[Any, ...]:
        return tuple(function(*operands))

    whole = custom_partitioning(on_all)
    whole.def_partition(by_jax, sharding_rule=rule, decode_shardings=False)
    return whole


def _no_mesh() -> contextlib.AbstractContextManager[Any]:
    return jax.sharding.use_abstract_mesh(_mesh.empty_abstract_mesh)


def _spec(sharding: Any, shape: Sequence[int], *, mesh: jax.sharding.Mesh) -> Spec:
    """How an array is sharded; an axis whose parts are not in the mesh's order counts as whole."""
    whole: Spec = ((),) * len(shape)
    if sharding is None:
        return whole
    hlo = sharding._to_xla_hlo_sharding(len(shape))
    if not hlo.is_tiled():
        return whole
    tiles = hlo.tile_assignment_dimensions()
    place = np.empty(math.prod(tiles), np.int64)
    place[list(hlo.tile_assignment_devices())] = np.arange(len(place))
    numbers = np.unravel_index(place.reshape(mesh.devices.shape), tiles)
    return tuple(_axes_of(number, mesh) for number in numbers[: len(shape)])


def _axes_of(number: np.ndarray, mesh: jax.sharding.Mesh) -> Axes:
    """The mesh axes of an axis of an array, by the number of each device's part of it."""
    steps = {
        name: int(number.take(1, axis).reshape(-1)[0]) for axis, name in enumerate(mesh.axis_names)
    }
    axes = tuple(sorted((name for name in steps if steps[name]), key=lambda name: -steps[name]))
    expected, step = np.zeros_like(number), 1
    for name in reversed(axes):
        axis = mesh.axis_names.index(name)
        size = number.shape[axis]
        others = [i for i in range(number.ndim) if i != axis]
        expected += np.expand_dims(np.arange(size) * step, others)
        step *= size
    return axes if np.array_equal(number, expected) else ()
