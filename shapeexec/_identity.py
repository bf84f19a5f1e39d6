"""A digest of a value that two processes share, and two values do not.

Every value is encoded with its type and its length, so that no two values have the same encoding. A
value of an unknown type is refused and never encoded as its string, which another value may share.
"""

import builtins
import dataclasses
import enum
import functools
import hashlib
import struct
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, cast

import jax
import numpy as np

from shapeexec import _compat

_ROOT = Path(__file__).parent
_IMPORTED = time.time()
_TRUSTED = frozenset(("builtins", "jax", "jaxlib", "ml_dtypes", "numpy", "shapeexec"))
"""Packages whose code is known by `versions`."""

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


class UnsaveableError(Exception):
    """A program holds a value that another process cannot identify."""


def digest(value: Any) -> str:
    """The digest of a value of Python's, NumPy's or JAX's types: 64 hexadecimal digits.

    Raises:
        UnsaveableError: It holds an object or a function that is not known, or calls the host.
    """
    return hashlib.sha256(Encoder().of(value)).hexdigest()


class Encoder:
    """Encodes values of Python's, NumPy's and JAX's types.

    Attributes:
        LASTING: Types whose values are encoded once each.
        BY_TYPE: By type the method that encodes the parts of its values; the first that fits.
    """

    LASTING: ClassVar[tuple[type, ...]] = (_compat.ShapedArray,)

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, bytes]] = {}  # with the value, so that its id stays
        self._objects: dict[Any, tuple[Any, bytes]] = {}  # by the ids of fields, likewise

    def of(self, value: Any) -> bytes:
        """The encoding of a value; for a compound value `#` and a digest."""
        kind = cast(type[Any], type(value))
        own = _SIMPLE.get(kind)
        if own is not None:
            return b"%b:%b" % (kind.__name__.encode(), own(value))
        if kind not in self.LASTING:
            return self._compound(value, kind)
        known = self._known.get(id(value))
        if known is None:
            known = self._known[id(value)] = value, self._compound(value, kind)
        return known[1]

    def _compound(self, value: Any, kind: type) -> bytes:
        if kind is tuple:  # most values are
            return joined("tuple", *self.items(value))
        for known, encoded in self.BY_TYPE:
            if isinstance(value, known):
                return joined(known.__name__, *encoded(self, value))
        if not _is_known(kind):
            raise UnsaveableError(f"a {kind.__module__}.{kind.__qualname__}")
        if kind.__name__ in _IGNORED:
            return joined(kind.__name__)
        if kind.__name__ in _FIELDS:
            return self._fields(value, _FIELDS[kind.__name__])
        if dataclasses.is_dataclass(value):
            return self._fields(value, [field.name for field in dataclasses.fields(value)])
        if kind.__name__ == "PyTreeDef":
            return joined("PyTreeDef", *self._tree(value))
        if callable(value) and hasattr(value, "__qualname__"):
            return joined("callable", *self._function(value))
        return self.special(value, kind)

    def special(self, value: Any, kind: type) -> bytes:
        """The encoding of a value of a trusted package that is none of the above."""
        if hasattr(value, "platform") and hasattr(value, "device_kind"):
            return joined("device", f"{value.platform} {value.id}".encode())
        if kind.__module__.startswith("jaxlib") and hasattr(value, "name"):  # its enumerations
            return joined("jaxlib", name_of(kind), str(value.name).encode())
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
            self._objects[ids] = held, joined("object", name_of(kind), *parts)
        return self._objects[ids][1]

    def items(self, value: Iterable[Any]) -> list[bytes]:
        """The encodings of several values."""
        return [self.of(item) for item in value]

    def _tuple(self, value: tuple[Any, ...]) -> list[bytes]:
        if not _is_known(type(value)) or not hasattr(value, "_fields"):
            raise UnsaveableError(f"a {type(value).__module__}.{type(value).__qualname__}")
        return [name_of(type(value)), *self.items(value)]

    def _mapping(self, value: Mapping[Any, Any]) -> list[bytes]:
        return sorted(joined("item", self.of(key), self.of(held)) for key, held in value.items())

    def _set(self, value: Iterable[Any]) -> list[bytes]:
        return sorted(self.items(value))

    def _array(self, value: Any) -> list[bytes]:
        if _compat.is_extended(value.dtype):
            return [self.of(value.dtype), *self._array(jax.random.key_data(value))]
        array = np.asarray(value)
        if array.dtype.hasobject:  # such as the devices of a mesh
            return [self.of(array.shape), *self.items(array.ravel().tolist())]
        weak = b"weak" if getattr(value, "weak_type", False) else b""
        return [self.of(array.dtype), self.of(array.shape), weak, array.tobytes()]

    def _dtype(self, value: np.dtype[Any]) -> list[bytes]:
        return [f"{value.name} {value.str} {value.itemsize}".encode()]

    def _enum(self, value: enum.Enum) -> list[bytes]:
        return [name_of(type(value)), value.name.encode()]

    def _type(self, value: type) -> list[bytes]:
        return [name_of(value)]

    def _partial(self, value: "functools.partial[Any]") -> list[bytes]:
        if type(value) is not functools.partial and not _is_known(type(value)):
            raise UnsaveableError(f"a {type(value).__module__}.{type(value).__qualname__}")
        return [self.of(value.func), self.of(value.args), self.of(value.keywords)]

    def _function(self, value: Any) -> list[bytes]:
        """A function of a trusted package, with its defaults and closure."""
        if not is_trusted_function(value):
            raise UnsaveableError(f"the function {value.__qualname__}, whose code may change")
        code = getattr(value, "__code__", None)
        cells = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        line = 0 if code is None else code.co_firstlineno
        owner = getattr(value, "__self__", None)
        owner = None if isinstance(owner, types.ModuleType) else owner
        names = f"{value.__module__}:{value.__qualname__}:{line}".encode()
        held = (getattr(value, "__defaults__", None), getattr(value, "__kwdefaults__", None))
        return [names, self.of(owner), *self.items((*held, *cells))]

    def _tree(self, value: Any) -> list[bytes]:
        data = value.node_data()
        if data is None:
            return [str(value).encode()]  # a leaf, or None
        kind, held = data
        inner = (joined("", *self._tree(child)) for child in value.children())
        return [self.name_of_node(kind), self.of(held), *inner]

    def name_of_node(self, kind: type) -> bytes:
        """The name of a class of nodes; its code counts, too, so it must be known."""
        return name_of(kind)

    def _number(self, value: Any) -> list[bytes]:
        """A number type of JAX: a Python number with a dtype."""
        plain, dtype = value.__pos__(), getattr(value, "dtype", None)
        return [name_of(cast(Any, type(value))), self.of(plain), self.of(dtype)]

    BY_TYPE: ClassVar[Any] = (
        (enum.Enum, _enum),
        (tuple, _tuple),
        (list, items),
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


def joined(kind: str, *parts: bytes) -> bytes:
    """The digest of parts, each with its length, so that no two lists have the same encoding."""
    every = (kind.encode(), *parts)
    pieces = (piece for part in every for piece in (len(part).to_bytes(8, "little"), part))
    return b"#" + hashlib.sha256(b"".join(pieces)).digest()


def is_trusted(module: str) -> bool:
    """Whether a module's code is known by `versions`."""
    return module.partition(".")[0] in _TRUSTED


def is_trusted_function(value: Any) -> bool:
    """Whether all code of a function is of trusted packages.

    `functools.wraps` gives a user's function the name and the module of another one, but not the
    globals.
    """
    while value is not None:
        module = getattr(value, "__module__", None) or ""
        own = getattr(value, "__globals__", {}).get("__name__", module)
        if not (is_trusted(module) and is_trusted(own)):
            return False
        value = getattr(value, "__wrapped__", None)
    return True


def _is_known(kind: type) -> bool:
    """Whether the code of a class is of a trusted package.

    A class that `exec` made says that it is of `builtins`.
    """
    if kind.__module__ == "builtins":
        return kind in _OF_PYTHON
    return is_trusted(kind.__module__)


_OF_PYTHON = frozenset(
    held
    for module in (builtins, types)
    for held in vars(module).values()
    if isinstance(held, type) and held.__module__ == "builtins"
)


def name_of(kind: type) -> bytes:
    """The name of a class of a trusted package.

    Raises:
        UnsaveableError: It is of another one.
    """
    if not _is_known(kind):
        raise UnsaveableError(f"the class {kind.__module__}.{kind.__qualname__}")
    return qualified(kind)


def qualified(kind: type) -> bytes:
    """The name of a class, of whatever package."""
    return f"{kind.__module__}.{kind.__qualname__}".encode()


def sources() -> str:
    """A digest of this library's code: an edited rule makes other programs.

    Raises:
        UnsaveableError: What runs may be other code than the sources: they are not there, or were
            changed after the library was imported.
    """
    found, paths = hashlib.sha256(), sorted(_ROOT.rglob("*.py"))
    if not paths:
        raise UnsaveableError("code of shapeexec whose sources are not there")
    # Not the time of modification, which an installer may set.
    if any(path.stat().st_ctime > _IMPORTED for path in paths):
        raise UnsaveableError("code of shapeexec that was changed after it was imported")
    root = len(_ROOT.as_posix())  # `relative_to` takes half the time of all this
    for path in paths:
        for part in (path.as_posix()[root:].encode(), path.read_bytes()):
            found.update(len(part).to_bytes(8, "little"))
            found.update(part)
    return found.hexdigest()[:16]


def versions() -> dict[str, str]:
    """By package the versions of code that counts by name; of this library the `sources`.

    Raises:
        UnsaveableError: See `sources`.
    """
    return {
        "jax": jax.__version__,
        "jaxlib": metadata.version("jaxlib"),
        "NumPy": np.__version__,
        "ml_dtypes": metadata.version("ml_dtypes"),
        "shapeexec": sources(),
    }
