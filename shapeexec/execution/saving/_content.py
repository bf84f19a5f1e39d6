"""A digest of a traced program that two processes share, and two programs do not.

Every value is encoded with its type and its length, so that no two values have the same encoding. A
value of an unknown type is refused and never encoded as its string, which another value may share.
"""

import dataclasses
import enum
import functools
import hashlib
import struct
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import jax
import jax.export
import numpy as np

from shapeexec import _compat
from shapeexec.masking import _registry
from shapeexec.shape import _dim
from shapeexec.shape._host import HostOperand

_TRUSTED = frozenset(("builtins", "jax", "jaxlib", "ml_dtypes", "numpy", "shapeexec"))
"""Packages whose code is known by its version, or by a digest of its sources."""

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "AbstractMesh": ("axis_names", "axis_sizes", "axis_types", "abstract_device"),
    "AbstractRef": ("inner_aval", "memory_space", "kind"),
    "FTDict": ("keys", "_vals"),
    "FTFiltered": ("val",),
    "FTPyTree": ("xs", "_tree"),
    "FTSingleton": ("val",),
    "FTStatic": ("val",),
    "FTTuple": ("elts",),
    "JaxprEqnContext": (
        "compute_type",
        "cur_abstract_mesh",
        "remove_size_one_mesh_axis",
        "threefry_partitionable",
        "xla_metadata",
    ),
    "KeyTy": ("name", "_impl"),
    "ManualAxisType": ("varying", "unreduced", "reduced"),
    "Mesh": ("axis_names", "devices", "axis_types"),
    "NamedSharding": ("mesh", "spec", "memory_kind"),
    "P": ("_partitions", "unreduced", "reduced"),
    "PartitionSpec": ("_partitions", "unreduced", "reduced"),
    "ShapedArray": ("shape", "dtype", "weak_type", "sharding", "manual_axis_type", "memory_space"),
    "SingleDeviceSharding": ("_device", "memory_kind"),
    "UnspecifiedValue": (),
}
"""By name of a class of JAX the fields that identify a value."""

_IGNORED = frozenset(("DebugInfo", "NameStack", "SourceInfo", "Traceback"))
"""Classes of JAX whose values are source locations."""

_NOT_RUN: Mapping[str, frozenset[str]] = {
    "checkpoint": frozenset(("policy",)),
    "custom_jvp_call": frozenset(("jvp_jaxpr_fun", "jvp_jaxpr_thunk")),
    "custom_vjp_call": frozenset(("bwd", "fwd_jaxpr_thunk", "out_trees")),
    "reduce": frozenset(("computation",)),  # its jaxpr stands beside it
    "remat2": frozenset(("policy",)),
}
"""By primitive the parameters that only a derivative reads; a trace is never differentiated."""


class UnsaveableError(Exception):
    """A program holds a value that another process cannot identify."""


def digest(value: Any) -> str:
    """The digest of a value of Python's, NumPy's or JAX's types: 64 hexadecimal digits.

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
    return hashlib.sha256(_joined("program", encoder.of(types), *encoder.lines(jaxpr))).hexdigest()


class _Encoder:
    """Encodes values; each object of `_LASTING` once."""

    def __init__(self) -> None:
        self._operands: dict[HostOperand, int] = {}  # by the order in which a program has them
        self._known: dict[int, tuple[Any, bytes]] = {}  # with the value, so that its id stays
        self._objects: dict[Any, tuple[Any, bytes]] = {}  # by the ids of fields, likewise

    def of(self, value: Any) -> bytes:
        """The encoding of a value; for a compound value `#` and a digest."""
        kind = cast(type[Any], type(value))
        own = _SIMPLE.get(kind)
        if own is not None:
            return b"%b:%b" % (kind.__name__.encode(), own(value))
        if kind not in _LASTING:
            return self._compound(value, kind)
        known = self._known.get(id(value))
        if known is None:
            known = self._known[id(value)] = value, self._compound(value, kind)
        return known[1]

    def _compound(self, value: Any, kind: type) -> bytes:
        if kind is tuple:  # most values are
            return _joined("tuple", *self._items(value))
        for known, encoded in self._BY_TYPE:
            if isinstance(value, known):
                return _joined(known.__name__, *encoded(self, value))
        if not _is_trusted(kind.__module__):
            raise UnsaveableError(f"a {kind.__module__}.{kind.__qualname__}")
        if kind.__name__ in _IGNORED:
            return _joined(kind.__name__)
        if kind.__name__ in _FIELDS:
            return self._fields(value, _FIELDS[kind.__name__])
        if dataclasses.is_dataclass(value):
            return self._fields(value, [field.name for field in dataclasses.fields(value)])
        if kind.__name__ == "PyTreeDef":
            return _joined("PyTreeDef", *self._tree(value))
        if callable(value) and hasattr(value, "__qualname__"):
            return _joined("callable", *self._function(value))
        return self._special(value, kind)

    def _special(self, value: Any, kind: type) -> bytes:
        if jax.export.is_symbolic_dim(value):
            return _joined("dim", _dim.dim_text(value).encode())
        if hasattr(value, "platform") and hasattr(value, "device_kind"):
            return _joined("device", f"{value.platform} {value.id}".encode())
        if kind.__module__.startswith("jaxlib") and hasattr(value, "name"):  # its enumerations
            return _joined("jaxlib", _name_of(kind), str(value.name).encode())
        raise UnsaveableError(f"a {kind.__module__}.{kind.__qualname__}")

    def _fields(self, value: Any, names: Sequence[str]) -> bytes:
        kind = cast(type[Any], type(value))
        try:
            held = [getattr(value, name) for name in names]
        except AttributeError as error:  # in a version of JAX that is not known here
            raise UnsaveableError(f"a {kind.__module__}.{kind.__qualname__}") from error
        ids = (kind, *map(id, held))  # each equation has a context of its own, of the same fields
        if ids not in self._objects:
            parts = [self.of(pair) for pair in zip(names, held, strict=True)]
            self._objects[ids] = held, _joined("object", _name_of(kind), *parts)
        return self._objects[ids][1]

    def _items(self, value: Iterable[Any]) -> list[bytes]:
        return [self.of(item) for item in value]

    def _tuple(self, value: tuple[Any, ...]) -> list[bytes]:
        if not _is_trusted(type(value).__module__) or not hasattr(value, "_fields"):
            raise UnsaveableError(f"a {type(value).__module__}.{type(value).__qualname__}")
        return [_name_of(type(value)), *self._items(value)]

    def _mapping(self, value: Mapping[Any, Any]) -> list[bytes]:
        return sorted(_joined("item", self.of(key), self.of(held)) for key, held in value.items())

    def _set(self, value: Iterable[Any]) -> list[bytes]:
        return sorted(self._items(value))

    def _array(self, value: Any) -> list[bytes]:
        if _compat.is_extended(value.dtype):
            return [self.of(value.dtype), *self._array(jax.random.key_data(value))]
        array = np.asarray(value)
        if array.dtype.hasobject:  # such as the devices of a mesh
            return [self.of(array.shape), *self._items(array.ravel().tolist())]
        weak = b"weak" if getattr(value, "weak_type", False) else b""
        return [self.of(array.dtype), self.of(array.shape), weak, array.tobytes()]

    def _dtype(self, value: np.dtype[Any]) -> list[bytes]:
        return [f"{value.name} {value.str} {value.itemsize}".encode()]

    def _enum(self, value: enum.Enum) -> list[bytes]:
        return [_name_of(type(value)), value.name.encode()]

    def _type(self, value: type) -> list[bytes]:
        return [_name_of(value)]

    def _partial(self, value: "functools.partial[Any]") -> list[bytes]:
        return [self.of(value.func), self.of(value.args), self.of(value.keywords)]

    def _host_operand(self, value: HostOperand) -> list[bytes]:
        number = self._operands.setdefault(value, len(self._operands))
        return [self.of((number, str(value.dtype), value.shape, value.via, str(value)))]

    def _function(self, value: Any) -> list[bytes]:
        """A function of a trusted package, with its defaults and closure."""
        if not _is_trusted_function(value):
            raise UnsaveableError(f"the function {value.__qualname__}, whose code may change")
        code = getattr(value, "__code__", None)
        cells = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        line = 0 if code is None else code.co_firstlineno
        owner = getattr(value, "__self__", None)
        owner = None if isinstance(owner, types.ModuleType) else owner
        names = f"{value.__module__}:{value.__qualname__}:{line}".encode()
        held = (getattr(value, "__defaults__", None), getattr(value, "__kwdefaults__", None))
        return [names, self.of(owner), *self._items((*held, *cells))]

    def _tree(self, value: Any) -> list[bytes]:
        data = value.node_data()
        if data is None:
            return [str(value).encode()]  # a leaf, or None
        kind, held = data
        inner = (_joined("", *self._tree(child)) for child in value.children())
        return [_qualified(kind), self.of(held), *inner]

    def _jaxpr(self, value: Any) -> list[bytes]:
        consts = self._items(getattr(value, "consts", ()))
        return [_joined("consts", *consts), *self.lines(_compat.opened(value))]

    def _primitive(self, value: Any) -> list[bytes]:
        _check_primitive(value)
        return [value.name.encode()]

    def _number(self, value: Any) -> list[bytes]:
        """A number type of JAX: a Python number with a dtype."""
        plain, dtype = value.__pos__(), getattr(value, "dtype", None)
        return [_name_of(cast(Any, type(value))), self.of(plain), self.of(dtype)]

    def lines(self, jaxpr: Any) -> Iterator[bytes]:
        """An open jaxpr's variables by number, and its equations."""
        numbers: dict[Any, int] = {}

        def declared(variables: Sequence[Any]) -> bytes:
            for var in variables:
                numbers[var] = len(numbers)
            return _joined("vars", *(self.of(var.aval) for var in variables))

        def read(atoms: Sequence[Any]) -> bytes:
            return _joined(
                "atoms",
                *(
                    _joined("literal", self.of(atom.val), self.of(atom.aval))
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
            yield _joined("eqn", name.encode(), operands, own, context, declared(eqn.outvars))
        yield read(jaxpr.outvars)

    _BY_TYPE: Any = (
        (_compat.ClosedJaxpr, _jaxpr),
        (_compat.Jaxpr, _jaxpr),
        (_compat.Primitive, _primitive),
        (HostOperand, _host_operand),
        (enum.Enum, _enum),
        (tuple, _tuple),
        (list, _items),
        (Mapping, _mapping),
        (set, _set),
        (frozenset, _set),
        (jax.Array, _array),
        (np.ndarray, _array),
        (np.generic, _array),
        (int, _number),
        (float, _number),
        (complex, _number),
        (np.dtype, _dtype),
        (type, _type),
        (functools.partial, _partial),
    )


_LASTING = (_compat.Jaxpr, _compat.ClosedJaxpr, _compat.ShapedArray)
_SIMPLE: Mapping[type, Callable[[Any], bytes]] = {
    type(None): lambda value: b"",
    type(...): lambda value: b"",
    bool: lambda value: str(value).encode(),
    int: lambda value: str(value).encode(),
    float: lambda value: struct.pack("<d", value),
    complex: lambda value: struct.pack("<dd", value.real, value.imag),
    str: lambda value: value.encode(),
    bytes: lambda value: value,
    range: lambda value: str(value).encode(),
}


def _joined(kind: str, *parts: bytes) -> bytes:
    """The digest of parts, each with its length, so that no two lists have the same encoding."""
    every = (kind.encode(), *parts)
    pieces = (piece for part in every for piece in (len(part).to_bytes(8, "little"), part))
    return b"#" + hashlib.sha256(b"".join(pieces)).digest()


def _is_trusted(module: str) -> bool:
    return module.partition(".")[0] in _TRUSTED


def _is_trusted_function(value: Any) -> bool:
    """Whether all code of a function is of trusted packages.

    `functools.wraps` gives a user's function the name and the module of another one, but not the
    globals.
    """
    while value is not None:
        module = getattr(value, "__module__", None) or ""
        own = getattr(value, "__globals__", {}).get("__name__", module)
        if not (_is_trusted(module) and _is_trusted(own)):
            return False
        value = getattr(value, "__wrapped__", None)
    return True


def _name_of(kind: type) -> bytes:
    if not _is_trusted(kind.__module__):
        raise UnsaveableError(f"the class {kind.__module__}.{kind.__qualname__}")
    return _qualified(kind)


def _qualified(kind: type) -> bytes:
    return f"{kind.__module__}.{kind.__qualname__}".encode()


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
        if not _is_trusted_function(function):
            raise UnsaveableError(f"`{name}`, whose rule is {function.__module__}'s")
