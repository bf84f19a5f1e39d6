"""Flax models whose attention becomes this library's, without a change of their code.

It knows where modules of nnx and linen keep their attention function, and leaves what that
function means to `_flax`. Flax is not imported: a model can exist only if it is there already.
"""

# Flax is looked up when it is there, so its types are unknown here.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import contextlib
import functools
import sys
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from shapeexec._errors import ConfigError
from shapeexec.attention._api import Implementation
from shapeexec.attention._flax import flax_attention_fn
from shapeexec.attention.masks import Mask

_Model = TypeVar("_Model")
_Fn = Callable[..., Any]


def replace_attention(
    model: _Model, *, within: Mask | None = None, implementation: Implementation = None
) -> _Model:
    """Give a model of Flax the attention of this library.

    It replaces each `attention_fn` that is Flax's own `dot_product_attention`, as in
    `MultiHeadAttention`, by `flax_attention_fn`, whose docstring says where the two differ. An
    attention function of your own stays. Parameters and their names stay, too.

    Args:
        model: A module of nnx, which is changed in place, or of linen.
        within: Only pairs that this mask allows, beside those that the model's own masks allow.
        implementation: The name of a back end; None: the best one for device and shapes.

    Returns:
        For nnx `model` itself. For linen a new module of a class derived from that of `model`:
        its `init`, `apply` and their like reach layers that are made in `setup` and `__call__`,
        too. Bind the layers of no other module in it: replace in the outermost one.

    Raises:
        ConfigError: It is no model of Flax, a module of nnx has no attention of Flax's, or the
            replaced linen model is bound.

    Example:
        >>> from flax import nnx
        >>> layer = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))
        >>> replace_attention(layer, within=SlidingWindow(127)) is layer
        True
    """
    fn: _Fn = flax_attention_fn
    if within is not None or implementation is not None:
        fn = functools.partial(flax_attention_fn, within=within, implementation=implementation)
    nnx, linen = sys.modules.get("flax.nnx"), sys.modules.get("flax.linen")
    if nnx is not None and isinstance(model, nnx.Module):
        _replace_in_nnx(model, fn, nnx=nnx)
        return model
    if linen is not None and isinstance(model, linen.Module):
        kind = _derived(type(model), within=within, implementation=implementation)
        return _as_kind(model, kind)
    raise ConfigError(
        f"replace_attention takes a model of Flax, not a {type(model).__name__}.",
        fix="pass a module of nnx or linen; elsewhere call sx.dot_product_attention yourself",
    )


def _replace_in_nnx(model: Any, fn: _Fn, *, nnx: Any) -> None:
    """Replace in each module of a model.

    Raises:
        ConfigError: None has Flax's own attention.
    """
    own = _flaxs_own()
    layers = [layer for _, layer in nnx.iter_modules(model) if _of(layer) in own]
    if not layers:
        raise ConfigError(
            f"{type(model).__name__} has no attention of Flax's to replace.",
            why="no module in it has an `attention_fn` that is Flax's dot_product_attention",
            fix="pass attention_fn=shapeexec.attention.flax_attention_fn where layers are made",
        )
    for layer in layers:
        layer.attention_fn = fn


def _flaxs_own() -> tuple[Any, ...]:
    rooms = (sys.modules.get("flax.nnx"), sys.modules.get("flax.linen"))
    return tuple(room.dot_product_attention for room in rooms if room is not None)


def _of(layer: Any) -> Any:
    return getattr(layer, "attention_fn", None)


def _as_kind(model: Any, kind: Any) -> Any:
    """A linen module of another class with the fields of `model`."""
    fields = {
        name: getattr(model, name)
        for name, field in type(model).__dataclass_fields__.items()
        if field.init and name != "parent"
    }
    return kind(**fields, parent=None)


@functools.cache  # a class a kind: models that are equal stay equal, and share graphs
def _derived(base: Any, *, within: Mask | None, implementation: Implementation) -> Any:
    """A subclass of a linen module's class whose layers attend by another function."""
    linen: Any = sys.modules["flax.linen"]
    fn = functools.partial(flax_attention_fn, within=within, implementation=implementation)

    def replaced(name: str) -> Any:
        plain = getattr(base, name)

        @functools.wraps(plain)
        def method(*args: Any, **kwargs: Any) -> Any:
            with linen.intercept_methods(functools.partial(_intercept, fn=fn)):
                return plain(*args, **kwargs)

        return linen.nowrap(method)

    @linen.nowrap
    def bind(self: Any, *_: Any, **__: Any) -> Any:
        raise ConfigError(
            "a model with replaced attention cannot be bound.",
            got=f"{type(self).__name__}.bind",
            why="layers are replaced while `apply` runs",
            fix="call `model.apply(variables, ...)`, with method= for another method",
        )

    methods = {name: replaced(name) for name in ("apply", "init", "init_with_output", "lazy_init")}
    members = {"__module__": base.__module__, "__qualname__": base.__qualname__, "bind": bind}
    return type(base.__name__, (base,), {**members, **methods})


def _intercept(  # noqa: PLR0917 - the order is linen's
    call: _Fn, args: Any, kwargs: Any, context: Any, *, fn: _Fn
) -> Any:
    with _attending_by(context.module, fn):
        return call(*args, **kwargs)


@contextlib.contextmanager
def _attending_by(layer: Any, fn: _Fn) -> Generator[None]:
    """Replace Flax's attention in a linen module, which is frozen, until a method of it returns."""
    before = _of(layer)
    if before not in _flaxs_own():
        yield
        return
    object.__setattr__(layer, "attention_fn", fn)
    try:
        yield
    finally:
        object.__setattr__(layer, "attention_fn", before)
