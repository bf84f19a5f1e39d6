"""The error of a call whose graph is missing and may not be made.

`_store` decides when that is so.
"""

from shapeexec import _compat
from shapeexec._errors import FrozenError
from shapeexec.execution._key import kind_of
from shapeexec.execution._plan import Planned
from shapeexec.execution._row import GraphRow


def missing_graph(planned: Planned, *, is_frozen: bool) -> FrozenError:
    """The error of a call, or of examples, whose graph is missing.

    Args:
        planned: The call, or the examples.
        is_frozen: Whether the Exec is frozen; else it has `missing="error"`.
    """
    placed = kind_of(planned.key).sharding_texts.items()
    arguments = f"arguments {', '.join(planned.recipe.trace.ragged_arguments)}"
    state, fix = (
        ("frozen", f"warm up these sizes before freeze(), {planned.warm_up}; or do not freeze")
        if is_frozen
        else ('missing="error"', f'warm up these sizes, {planned.warm_up}; or missing="wait"')
        if planned.examples is None
        else ('missing="error"', f'missing="wait", and freeze() after {planned.warm_up[3:]}')
    )
    return FrozenError(
        f"{state}, and no graph is compiled for {planned}.",
        graph=str(planned),
        where=_compat.describe_line(_compat.user_place()),
        got="; ".join([arguments, *(f"{path} on {text}" for path, text in placed)]),
        fix=fix,
    )


def forgotten_graph(row: GraphRow) -> FrozenError:
    """The error of a call for which JAX has compiled a graph again."""
    return FrozenError(
        "frozen, but JAX compiled the graph again for this call.",
        graph=row.sizes,
        where=_compat.describe_line(_compat.user_place()),
        got=f"the graph {row.sizes}",
        why="JAX had forgotten it, as after jax.clear_caches()",
        fix="do not clear JAX's caches after warmup()",
    )
