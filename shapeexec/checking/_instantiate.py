"""Substitutes sizes in a symbolic jaxpr and inlines its calls, as plain JAX would trace it.

Only dims are evaluated. Programs are not compared here.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np
from jax import export

from shapeexec import _compat
from shapeexec._errors import ConfigError
from shapeexec.shape import _dim
from shapeexec.shape._host import HostOperand, HostValues
from shapeexec.shape._numbers import host_value_p
from shapeexec.shape._transposes import TRANSPOSED, expand

Expansion = Callable[..., Callable[..., Any]]

EXPANSIONS: dict[str, Expansion] = {}
"""The expansion at known sizes of each primitive of ours, which plain JAX never traces."""


def register_expansion(primitive: Any, expand: Expansion) -> None:
    """Register the expansion of a primitive that only symbolic traces contain.

    Args:
        primitive: The primitive, or its name.
        expand: `expand(sizes, **params) -> function of the operands`. `sizes` holds the sizes of
            the call's symbols and of the trace's own; in `params` each dim is its int. The function
            returns one result per result of the equation: NumPy or Python values if there are no
            operands (a host number), else traced values.

    Raises:
        ConfigError: The primitive is already registered.
    """
    name = primitive if isinstance(primitive, str) else primitive.name
    if name in EXPANSIONS:
        raise ConfigError(
            f"`{name}` is registered already.",
            option="primitive",
            fix="register one expansion per primitive",
        )
    EXPANSIONS[name] = expand


def _number(sizes: Mapping[str, int], *, operand: HostOperand, weak_type: bool) -> Any:
    del weak_type  # the equation's result has it
    return lambda: operand.at(HostValues(sizes))


register_expansion(host_value_p, _number)


def _transpose(primitive: Any, sizes: Mapping[str, int], **params: Any) -> Callable[..., Any]:
    del sizes  # they are in the parameters already
    return expand(primitive, params)


for _kind in TRANSPOSED.values():
    register_expansion(_kind.primitive, functools.partial(_transpose, _kind.primitive))


def instantiate(closed: Any, sizes: Mapping[str, int]) -> Any:
    """Return a closed jaxpr with sizes substituted and calls inlined.

    Args:
        closed: A closed jaxpr, whose dims may be symbolic.
        sizes: By symbol of the jaxpr (`Trace.substitution.sizes(sizes)` has those); may be empty
            for a jaxpr without symbols.

    Returns:
        A closed jaxpr with the same results: `dim_as_value` is replaced by constants, primitives of
        `EXPANSIONS` by their expansions, and jaxprs in parameters are instantiated, too.

    Raises:
        SpecError: A symbol has no size.
        Exception: Whatever an expansion raises at these sizes, such as an OverflowError.
    """
    flat = _Flat(sizes)
    outs = flat.inline(closed.jaxpr, closed.consts, operands=flat.inputs(closed.jaxpr.invars))
    return flat.closed(closed, outs)


class _Flat:
    """The equations of one jaxpr, with calls inlined."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._invars: list[Any] = []
        self._constvars: dict[int, tuple[Any, Any]] = {}
        self._eqns: list[Any] = []

    def inputs(self, invars: Sequence[Any]) -> list[Any]:
        self._invars = [_compat.new_variable(self._param(var.aval)) for var in invars]
        return self._invars

    def closed(self, original: Any, outs: Sequence[Any]) -> Any:
        constvars = [var for var, _ in self._constvars.values()]
        consts = [const for _, const in self._constvars.values()]
        opened = _compat.new_jaxpr(
            original.jaxpr, constvars=constvars, invars=self._invars, outvars=outs, eqns=self._eqns
        )
        return _compat.ClosedJaxpr(opened, consts)

    def inline(
        self, jaxpr: Any, consts: Sequence[Any], *, operands: Sequence[Any], within: Any = None
    ) -> list[Any]:
        """Inline a jaxpr; return the atoms of its results. `within`: the call, for its line."""
        env: _compat.Environment[Any] = _compat.Environment({}, of_literal=lambda atom: atom)
        env.write(jaxpr.invars, operands)
        avals = [self._param(var.aval) for var in jaxpr.constvars]
        env.write(jaxpr.constvars, map(self._constant, consts, avals))
        env.walk(
            jaxpr.eqns, lambda eqn: self._equation(eqn, [*map(env.read, eqn.invars)], within=within)
        )
        return [*map(env.read, jaxpr.outvars)]

    def _equation(self, eqn: Any, atoms: list[Any], *, within: Any) -> list[Any]:
        name = eqn.primitive.name
        if name == "dim_as_value":
            return [self._host(_dim.evaluate(eqn.params["dim"], self._sizes), eqn.outvars[0])]
        body = _compat.body_of(name, eqn.params)
        if body is not None:
            # Its derivatives and rematerialization were applied when the function was traced.
            inner = _compat.closed(body)
            return self.inline(
                inner.jaxpr, inner.consts, operands=atoms, within=_line_of(eqn, within)
            )
        params = {key: self._param(param) for key, param in eqn.params.items()}
        if name in EXPANSIONS:
            return self._expanded(eqn, params, atoms=atoms, within=within)
        outvars = [_compat.new_variable(self._param(var.aval)) for var in eqn.outvars]
        source = _line_of(eqn, within).source_info
        self._eqns.append(
            eqn.replace(invars=atoms, outvars=outvars, params=params, source_info=source)
        )
        return outvars

    def _expanded(
        self, eqn: Any, params: dict[str, Any], *, atoms: list[Any], within: Any
    ) -> list[Any]:
        meant = EXPANSIONS[eqn.primitive.name](self._sizes, **params)
        if not atoms:
            results = meant()
            results = results if eqn.primitive.multiple_results else [results]
            return [self._host(r, var) for r, var in zip(results, eqn.outvars, strict=True)]
        structs = [
            jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype, weak_type=atom.aval.weak_type)
            for atom in atoms
        ]
        traced = jax.jit(meant).trace(*structs).jaxpr
        traced = _compat.without_hi_primitives(traced)
        return self.inline(
            traced.jaxpr, traced.consts, operands=atoms, within=_line_of(eqn, within)
        )

    def _host(self, value: Any, var: Any) -> Any:
        """A host value as the constant that the graph would get."""
        aval = self._param(var.aval)
        const = _as_constant(value, aval.dtype)
        return (
            _compat.new_literal(const[()], aval) if not const.ndim else self._constant(const, aval)
        )

    def _constant(self, const: Any, aval: Any) -> Any:
        if id(const) not in self._constvars:
            self._constvars[id(const)] = _compat.new_variable(aval), const
        return self._constvars[id(const)][0]

    def _param(self, param: Any) -> Any:
        """A parameter or an aval with sizes in place of dims."""
        if type(param) in _dim.DIMLESS_TYPES:
            return param
        if export.is_symbolic_dim(param):
            return _dim.evaluate(param, self._sizes)
        if isinstance(param, _compat.ClosedJaxpr):
            return instantiate(param, self._sizes)
        if isinstance(param, _compat.Jaxpr):
            closed = instantiate(_compat.closed(param), self._sizes)
            return closed if closed.consts else closed.jaxpr
        if isinstance(param, _compat.ShapedArray):
            shape = tuple(param.shape)
            concrete = self._param(shape)
            return param if concrete is shape else param.update(shape=concrete)
        if hasattr(param, "inner_aval"):  # of a reference
            return param.update(inner_aval=self._param(param.inner_aval))
        if isinstance(param, tuple | list):
            if all(type(item) in _dim.DIMLESS_TYPES for item in cast(Sequence[Any], param)):
                return cast(Any, param)
            return _like(param, map(self._param, cast(Sequence[Any], param)))
        if type(param) is dict:
            by_name = cast(dict[Any, Any], param)
            return {name: self._param(value) for name, value in by_name.items()}
        return param


def _like(sequence: Any, items: Iterator[Any]) -> Any:
    kind = cast(Any, type(sequence))
    return kind(*items) if hasattr(sequence, "_fields") else kind(items)


def _as_constant(value: Any, dtype: Any) -> np.ndarray:
    """A Python or NumPy number in the dtype of the graph; integers wrap around."""
    if isinstance(value, int) and np.issubdtype(dtype, np.integer):
        bits = 8 * np.dtype(dtype).itemsize
        return np.asarray(value % 2**bits, f"uint{bits}").astype(dtype)
    return np.asarray(value).astype(dtype)


def _line_of(eqn: Any, within: Any) -> Any:
    """The equation with the user's line: for a jitted function, JAX keeps it with the call."""
    return eqn if within is None or _compat.eqn_line(eqn) is not None else within
