"""`jax.tree` and `jax.tree_util` with types.

The structure of a tree (`PyTreeDef`) comes from JAX's C extension, which has no stubs: for type
checkers it is unknown, and so is every function that takes or returns one. Here it is `Any`.
"""

# The one place that names these untyped functions.
# pyright: reportUnknownMemberType=false

from collections.abc import Callable
from typing import Any, cast

import jax

flatten = cast(Callable[..., tuple[list[Any], Any]], jax.tree.flatten)
leaves = cast(Callable[..., list[Any]], jax.tree.leaves)
unflatten = cast(Callable[[Any, Any], Any], jax.tree.unflatten)
structure = cast(Callable[..., Any], jax.tree.structure)
leaves_with_path = cast(
    Callable[..., list[tuple[tuple[Any, ...], Any]]], jax.tree_util.tree_leaves_with_path
)
map_with_path = cast(Callable[..., Any], jax.tree_util.tree_map_with_path)
keystr = cast(Callable[[tuple[Any, ...]], str], jax.tree_util.keystr)
is_leaf_structure = cast(Callable[[Any], bool], jax.tree_util.treedef_is_leaf)
register = cast(
    Callable[[type, Callable[[Any], Any], Callable[[Any, Any], Any]], None],
    jax.tree_util.register_pytree_node,
)
