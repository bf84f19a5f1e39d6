"""Jaxprs: how they are read, put together and run.

Primitives by name are in `primitives`.
"""

# The functions that this takes of JAX are private, and have no types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

import jax
from jax import tree_util
from jax.extend import core as _extend_core

ClosedJaxpr = _extend_core.ClosedJaxpr
Jaxpr = _extend_core.Jaxpr
Literal = _extend_core.Literal

T = TypeVar("T")


def is_literal(atom: Any) -> bool:
    """Whether an equation's operand is a constant, not a variable."""
    return isinstance(atom, Literal)


def scan_counts(params: dict[str, Any], operands: int) -> tuple[int, int]:
    """The numbers of constants and of carries among the operands of a `scan` equation.

    jax 0.12 replaced `num_consts` and `num_carry` by a tree of the operands, `ft_in`.
    """
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].update(range(operands)).unpack()
    return len(tree_util.tree_leaves(list(consts))), len(tree_util.tree_leaves(list(carry)))


_HI_PRIMITIVE = "call_hi_primitive"


def without_hi_primitives(closed_jaxpr: Any) -> Any:
    """A closed jaxpr with the plain functions behind its `call_hi_primitive` equations as calls.

    jax 0.12's `jnp.nonzero` is such a primitive. Its function is traced at the dims of the
    equation, and may ask something of them.
    """
    if not any(eqn.primitive.name == _HI_PRIMITIVE for eqn in equations(closed_jaxpr.jaxpr)):
        return closed_jaxpr
    return with_equations(closed_jaxpr, lambda jaxpr: [*map(_expanded, jaxpr.eqns)])


def _expanded(eqn: Any) -> Any:
    if eqn.primitive.name != _HI_PRIMITIVE:
        return eqn
    structs = [
        jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype, weak_type=var.aval.weak_type)
        for var in eqn.invars
    ]
    plain = functools.partial(eqn.primitive.to_lojax, **eqn.params)
    called = without_hi_primitives(jax.jit(plain).trace(*structs).jaxpr)
    return eqn.replace(
        primitive=_extend_core.primitives.closed_call_p, params={"call_jaxpr": called}
    )


def with_equations(closed_jaxpr: Any, change: Callable[[Any], list[Any]]) -> Any:
    """A closed jaxpr with other equations, those that `change` makes of an open one.

    So are the jaxprs inside of it.
    """
    opened = closed_jaxpr.jaxpr
    eqns = [
        eqn.replace(params={name: _changed(param, change) for name, param in eqn.params.items()})
        for eqn in change(opened)
    ]
    return closed_jaxpr.replace(jaxpr=opened.replace(eqns=eqns))


def _changed(param: Any, change: Callable[[Any], list[Any]]) -> Any:
    if isinstance(param, ClosedJaxpr):
        return with_equations(param, change)
    if isinstance(param, _extend_core.Jaxpr):
        return with_equations(closed(param), change).jaxpr
    if isinstance(param, tuple):
        items = (_changed(item, change) for item in param)
        return type(param)(*items) if hasattr(param, "_fields") else tuple(items)
    return param


def sub_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """The jaxprs (closed or open) among an equation's parameters."""
    return iter(_extend_core.jaxprs_in_params(params))


def bind_equation(
    eqn: Any, operands: Iterable[Any], *, params: dict[str, Any] | None = None
) -> list[Any]:
    """The results of an equation's primitive; `params` stand for the equation's own."""
    own = eqn.params if params is None else params
    with settings_around(eqn):
        return results_of(eqn.primitive, operands, params=eqn.primitive.get_bind_params(own))


def settings_around(eqn: Any) -> AbstractContextManager[Any]:
    """Have JAX's settings as they were where an equation was traced; see `own_settings`."""
    return contextlib.nullcontext() if own_settings(eqn) is None else eqn.ctx.manager


def own_settings(eqn: Any) -> tuple[Any, ...] | None:
    """Settings of an equation that differ from this thread's; None: none differ.

    They come from a `with` of the user's: how a draw makes its bits, where something is computed,
    and metadata for XLA.
    """
    own = eqn.ctx
    is_own = own.threefry_partitionable != jax.threefry_partitionable.value
    if not is_own and own.compute_type is None and not own.xla_metadata:
        return None
    metadata = tuple(sorted((own.xla_metadata or {}).items()))
    return own.threefry_partitionable, own.compute_type, metadata


def results_of(primitive: Any, operands: Iterable[Any], *, params: Mapping[str, Any]) -> list[Any]:
    """The results of a primitive, as a list also where it has one."""
    results = primitive.bind(*operands, **params)
    return [*results] if primitive.multiple_results else [results]


def closed(jaxpr: Any) -> Any:
    """A jaxpr as a closed one: some primitives keep theirs open, without constants."""
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())


def opened(jaxpr: Any) -> Any:
    """A jaxpr as an open one, which has variables for its constants, and not their values."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def jaxpr_name(jaxpr: Any) -> str | None:
    """The name of the function that a jaxpr was traced from; None of one without a name."""
    name = opened(jaxpr).debug_info.func_name
    return name if name.isidentifier() else None


def new_variable(aval: Any) -> Any:
    """A variable of a jaxpr to be made."""
    return _extend_core.Var(aval)


def jaxpr_of(eqn: Any) -> Any:
    """One equation as a closed jaxpr, whose inputs are its operands."""
    invars = [new_variable(atom.aval) for atom in eqn.invars]
    outvars = [new_variable(var.aval) for var in eqn.outvars]
    like = jax.make_jaxpr(lambda: ())().jaxpr.replace(effects=eqn.effects)
    only = eqn.replace(invars=invars, outvars=outvars)
    return ClosedJaxpr(
        new_jaxpr(like, constvars=(), invars=invars, outvars=outvars, eqns=[only]), ()
    )


def jaxpr_as_function(closed_jaxpr: Any) -> Callable[..., list[Any]]:
    """The function of flat arrays that a closed jaxpr is."""
    return _extend_core.jaxpr_as_fun(closed_jaxpr)


def new_literal(value: Any, aval: Any) -> Any:
    """A scalar constant as an operand; `value` is a NumPy scalar in the dtype of `aval`."""
    return Literal(value, aval)


def new_jaxpr(
    like: Any,
    *,
    constvars: Sequence[Any],
    invars: Sequence[Any],
    outvars: Sequence[Any],
    eqns: Sequence[Any],
) -> Any:
    """An open jaxpr of these equations, with the effects and the names of another.

    From jax 0.12 on it becomes a closed one by its constants; see `ClosedJaxpr`.
    """
    debug_info = like.debug_info.with_unknown_names()
    return Jaxpr([*constvars], [*invars], [*outvars], [*eqns], like.effects, debug_info=debug_info)


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of an open jaxpr, including equations of nested jaxprs."""
    for eqn in jaxpr.eqns:
        yield from (eqn, *equations_inside(eqn))


def equations_inside(eqn: Any) -> Iterator[Any]:
    """All equations of the jaxprs inside of an equation."""
    for inner in sub_jaxprs(eqn.params):
        yield from equations(opened(inner))


def live_equations(jaxpr: Any, wanted: Sequence[Any]) -> dict[Any, tuple[bool, ...]]:
    """The equations that these results or effects depend on, in order, and which results are read.

    Args:
        jaxpr: An open jaxpr.
        wanted: Those of its results that are read.
    """
    needed = {var for var in wanted if not is_literal(var)}
    live: list[tuple[Any, tuple[bool, ...]]] = []
    for eqn in reversed(jaxpr.eqns):
        is_used = tuple(var in needed for var in eqn.outvars)
        if any(is_used) or eqn.effects:
            live.append((eqn, is_used))
            needed.update(var for var in eqn.invars if not is_literal(var))
    return dict(reversed(live))


class Environment(Generic[T]):
    """The value of each variable of an open jaxpr while its equations are walked.

    Args:
        values: For the arguments and the constants.
        of_literal: What stands for a constant operand; by default its value.
    """

    def __init__(
        self, values: Mapping[Any, T], of_literal: Callable[[Any], T] = lambda atom: atom.val
    ) -> None:
        self.values: dict[Any, T] = {**values}
        self._of_literal = of_literal

    def read(self, atom: Any) -> T:
        """The value of a variable or of a constant operand."""
        return self._of_literal(atom) if is_literal(atom) else self.values[atom]

    def write(self, atoms: Iterable[Any], values: Iterable[T]) -> None:
        """Let values stand for variables; a constant operand stays a constant."""
        for atom, value in zip(atoms, values, strict=True):
            if not is_literal(atom):
                self.values[atom] = value

    def walk(self, eqns: Iterable[Any], step: Callable[[Any], Iterable[T]]) -> None:
        """Let `step(eqn)`, one value per result, stand for the results of each equation in turn."""
        for eqn in eqns:
            self.write(eqn.outvars, step(eqn))


def evaluate(
    closed_jaxpr: Any, operands: Iterable[T], *, step: Callable[[Any, list[T]], Iterable[T]]
) -> list[T]:
    """The results of a closed jaxpr, with `step(eqn, operands)` in the place of each equation."""
    jaxpr = closed_jaxpr.jaxpr
    env = Environment(dict(zip(jaxpr.constvars, closed_jaxpr.consts, strict=True)))
    env.write(jaxpr.invars, operands)
    env.walk(jaxpr.eqns, lambda eqn: step(eqn, [*map(env.read, eqn.invars)]))
    return [*map(env.read, jaxpr.outvars)]
