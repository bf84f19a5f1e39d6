"""Primitives and private functions of JAX's, by name. Attention's are in `cudnn`."""

# The functions that this takes of JAX are private, and have no types.
# pyright: reportPrivateUsage=false
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import jax
from jax._src.random import core as _random_core
from jax.extend import core as _extend_core
from jax.extend import random as _extend_random
from jax.interpreters import mlir

Primitive = _extend_core.Primitive

threefry2x32_p = _extend_random.threefry2x32_p


BODY_OF: Mapping[str, tuple[str, ...]] = {
    "call": ("call_jaxpr",),
    "closed_call": ("call_jaxpr",),
    "composite": ("jaxpr", "call_jaxpr"),
    "core_call": ("call_jaxpr",),
    "custom_jvp_call": ("call_jaxpr",),
    "custom_partitioning": ("call",),
    "custom_vjp_call": ("call_jaxpr",),
    "custom_vmap_call": ("call",),
    "eval_jaxpr": ("jaxpr", "call_jaxpr"),
    "fused_call": ("jaxpr", "call_jaxpr"),
    "jit": ("jaxpr",),
    "linear_call": ("callee",),
    "pjit": ("jaxpr",),
    "program_order": ("call_jaxpr",),
    "remat2": ("jaxpr",),
    "remat_opt": ("fwd_jaxpr",),
    "xla_metadata_call": ("jaxpr", "call_jaxpr"),
}
"""The parameter that holds the jaxpr of each primitive that wraps one, under its names in JAX's
versions: jax 0.12 puts `call_` before some."""


def body_of(name: str, params: Mapping[str, Any]) -> Any | None:
    """The jaxpr, closed or open, that a primitive of this name wraps; None: it wraps none."""
    held = [params[key] for key in BODY_OF.get(name, ()) if key in params]
    return held[0] if held else None


def gamma_one() -> Callable[..., jax.Array]:
    """JAX's sampler of one gamma variate, `(key, alpha, log_space) -> sample`."""
    return _random_core._gamma_one


def jax_function(module: str, name: str) -> Callable[..., Any]:
    """A function of a private module, by name."""
    return getattr(importlib.import_module(f"jax._src.{module}"), name)


CALLBACKS = frozenset(("debug_callback", "debug_print", "io_callback", "pure_callback"))
"""The names of primitives that call a Python function while the program runs."""

UNSAFE_ON_MADE_UP_DATA: Mapping[str, str] = {
    "while": "may never end",
    "cond": "may take another branch",
    **dict.fromkeys(sorted(CALLBACKS), "calls Python"),
}
"""By name the primitives that must not run on data other than the caller's, and why."""


def is_own_primitive(primitive: Primitive) -> bool:
    """Whether a primitive is one of JAX's or of this library's; another may have its name."""
    if primitive not in _own_primitives:
        _own_primitives.update(_defined(("jax", "shapeexec")))
    return primitive in _own_primitives


_own_primitives: set[Primitive] = set()


def _defined(packages: tuple[str, ...]) -> Iterator[Primitive]:
    """The primitives that modules hold, directly or as the `primitive` of a value."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in packages and cast(Any, module) is not None:
            for value in list(vars(module).values()):
                found = getattr(value, "primitive", None) if name.startswith("shape") else value
                yield from (one for one in (value, found) if isinstance(one, Primitive))


def new_identity(name: str, on_lowering: Callable[[], None]) -> Callable[[Any], Any]:
    """The `bind` of a new primitive that returns its operand unchanged.

    Args:
        name: The name of the primitive.
        on_lowering: Called whenever JAX lowers an equation of it.
    """

    def lowered(_: Any, operand: Any) -> list[Any]:
        on_lowering()
        return [operand]

    primitive = Primitive(name)
    primitive.def_impl(lambda operand: operand)
    primitive.def_abstract_eval(lambda aval: aval)
    mlir.register_lowering(primitive, lowered)
    return primitive.bind
