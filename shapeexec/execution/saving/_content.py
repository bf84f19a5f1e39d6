"""A digest of a traced program that two processes share, and two programs do not.

`_identity` encodes values; this module adds programs, and the numbers that a program is given.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax.export

from shapeexec import _compat
from shapeexec._identity import (
    Encoder,
    UnsaveableError,
    is_trusted_function,
    joined,
    qualified,
)
from shapeexec.masking import _registry
from shapeexec.shape import _dim
from shapeexec.shape._host import HostOperand

_NOT_RUN: Mapping[str, frozenset[str]] = {
    "checkpoint": frozenset(("policy",)),
    "custom_jvp_call": frozenset(("jvp_jaxpr_fun", "jvp_jaxpr_thunk")),
    "custom_vjp_call": frozenset(("bwd", "fwd_jaxpr_thunk", "out_trees")),
    "reduce": frozenset(("computation",)),  # its jaxpr stands beside it
    "remat2": frozenset(("policy",)),
}
"""By primitive the parameters that only a derivative reads; a trace is never differentiated."""


def digest(value: Any) -> str:
    """The digest of a value, as `_identity.digest`; it may hold programs.

    Raises:
        UnsaveableError: It holds an object or a function that is not known, or calls the host.
    """
    return hashlib.sha256(_Encoder().of(value)).hexdigest()


def digest_of_program(jaxpr: Any, types: Sequence[Any]) -> str:
    """The digest of a traced program whose constants are arguments: only their types count.

    Args:
        jaxpr: The program. From jax 0.12 on an open one holds its constants, too.
        types: The types of the constants.

    Raises:
        UnsaveableError: See `digest`.
    """
    encoder = _Encoder()
    return hashlib.sha256(joined("program", encoder.of(types), *encoder.lines(jaxpr))).hexdigest()


class _Encoder(Encoder):
    """Encodes values and programs."""

    LASTING: ClassVar[tuple[type, ...]] = (_compat.Jaxpr, _compat.ClosedJaxpr, *Encoder.LASTING)

    def __init__(self) -> None:
        super().__init__()
        self._operands: dict[HostOperand, int] = {}  # by the order in which a program has them

    def special(self, value: Any, kind: type) -> bytes:
        """See `Encoder`; and a symbolic dim."""
        if jax.export.is_symbolic_dim(value):
            return joined("dim", _dim.dim_text(value).encode())
        return super().special(value, kind)

    def name_of_node(self, kind: type) -> bytes:
        """The name of any class: what it computes is in the program."""
        return qualified(kind)

    def _host_operand(self, value: HostOperand) -> list[bytes]:
        number = self._operands.setdefault(value, len(self._operands))
        return [self.of((number, str(value.dtype), value.shape, value.via, str(value)))]

    def _jaxpr(self, value: Any) -> list[bytes]:
        consts = self.items(getattr(value, "consts", ()))
        return [joined("consts", *consts), *self.lines(_compat.opened(value))]

    def _primitive(self, value: Any) -> list[bytes]:
        _check_primitive(value)
        return [value.name.encode()]

    def lines(self, jaxpr: Any) -> Iterator[bytes]:
        """An open jaxpr's variables by number, and its equations."""
        numbers: dict[Any, int] = {}

        def declared(variables: Sequence[Any]) -> bytes:
            for var in variables:
                numbers[var] = len(numbers)
            return joined("vars", *(self.of(var.aval) for var in variables))

        def read(atoms: Sequence[Any]) -> bytes:
            return joined(
                "atoms",
                *(
                    joined("literal", self.of(atom.val), self.of(atom.aval))
                    if _compat.is_literal(atom)
                    else str(numbers[atom]).encode()
                    for atom in atoms
                ),
            )

        yield declared(jaxpr.constvars)
        yield declared(jaxpr.invars)
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            _check_primitive(eqn.primitive)
            unread = _NOT_RUN.get(name, frozenset())
            params = {key: held for key, held in eqn.params.items() if key not in unread}
            try:
                own = self.of(params)
            except UnsaveableError as error:
                raise UnsaveableError(f"`{name}` holds {error}") from error
            operands, context = read(eqn.invars), self.of(eqn.ctx)
            yield joined("eqn", name.encode(), operands, own, context, declared(eqn.outvars))
        yield read(jaxpr.outvars)

    BY_TYPE: ClassVar[Any] = (
        (_compat.ClosedJaxpr, _jaxpr),
        (_compat.Jaxpr, _jaxpr),
        (_compat.Primitive, _primitive),
        (HostOperand, _host_operand),
        *Encoder.BY_TYPE,
    )


def _check_primitive(primitive: Any) -> None:
    """Check that a primitive and its rules are JAX's, or the library's own.

    Raises:
        UnsaveableError: They are from other packages, whose code may change.
    """
    name = primitive.name
    if name in _compat.CALLBACKS:
        raise UnsaveableError(f"`{name}`, which calls a function of this process")
    if not _compat.is_own_primitive(primitive):
        raise UnsaveableError(f"the primitive `{name}`, which is neither JAX's nor shapeexec's")
    rule = _registry.RULES.get(name)
    functions = [rule and rule.apply, _registry.KNOWLEDGE.get(name), _registry.NESTED.get(name)]
    for function in filter(None, functions):
        if not is_trusted_function(function):
            raise UnsaveableError(f"`{name}`, whose rule is {function.__module__}'s")
