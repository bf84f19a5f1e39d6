"""Objects that are not pytrees: how two are compared, and how one is copied.

A mutable object whose content can be read is compared by its content at each call. Only an object
without readable content is compared by its identity: a function, a lock, a sentinel.
"""

import array
import collections
import dataclasses
import enum
import functools
import sys
import threading
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shapeexec.execution import _modules
from shapeexec.execution._weak_table import WeakTable


class Comparison(enum.Enum):
    """How objects of a class are compared, as constants of graphs."""

    BY_IDENTITY = "they have no value to read, or are handles of the running process"
    BY_VALUE = "their class says so with `==` and a hash"
    BY_CONTENT = "by their attributes and items, as they are at the call"
    BY_NOTHING = "they may change, and their content cannot be read"


@dataclasses.dataclass(frozen=True)
class Items:
    """What objects of a built-in type hold beside attributes.

    Attributes:
        read: What one holds, as a tree.
        new: A new object of a class: empty, or of these items where nothing can fill it.
        fill: Puts items into an empty object, which may then hold itself.
    """

    read: Callable[[Any], Any]
    new: Callable[..., Any]
    fill: Callable[[Any, Any], Any] | None = None


def _nothing(base: type) -> Items:
    return Items(lambda _: (), base.__new__, lambda value, items: None)


def _value(base: Any) -> Items:
    return Items(base, base.__new__)


def _made(read: Callable[[Any], Any], new: Callable[[Any, Any], Any]) -> Items:
    return Items(read, new)


def _sequence(base: Any) -> Items:
    # One that cannot change has no `extend`.
    extend = getattr(base, "extend", None)
    return Items(lambda value: list(base.__iter__(value)), base.__new__, extend)


def _set(base: Any) -> Items:
    return Items(_sorted, base.__new__, getattr(base, "update", None))


def _mapping(base: Any) -> Items:
    def read(value: Any) -> Any:
        keys = list(base.__iter__(value))
        return keys, [base.__getitem__(value, key) for key in keys]

    return Items(read, base.__new__, functools.partial(_fill_mapping, base=base))


def _fill_mapping(value: Any, items: Any, *, base: Any) -> None:
    for key, item in zip(*items, strict=True):
        base.__setitem__(value, key, item)


def _fill_default(value: Any, items: Any) -> None:
    value.default_factory, held = items
    _fill_mapping(value, held, base=dict)


def _fill_deque(value: Any, items: Any) -> None:
    base: Any = collections.deque
    base.__init__(value, *items)


def _new_array(kind: Any, items: Any) -> Any:
    base: Any = array.array
    return base.__new__(kind, *items)


def _sorted(items: Iterable[Any]) -> list[Any]:
    # Any order will do that most equal sets have: another one is another graph.
    return sorted(items, key=lambda item: (type(item).__qualname__, hash(item)))


_DICT = _mapping(dict)
_ITEMS: dict[Any, Items] = {
    object: _nothing(object),
    types.SimpleNamespace: _nothing(types.SimpleNamespace),
    threading.local: _nothing(threading.local),
    str: _value(str),
    bytes: _value(bytes),
    int: _value(int),
    float: _value(float),
    complex: _value(complex),
    bytearray: Items(bytes, bytearray.__new__, bytearray.extend),
    tuple: _sequence(tuple),
    frozenset: _set(frozenset),
    set: _set(set),
    list: _sequence(list),
    dict: _DICT,
    collections.OrderedDict: _mapping(collections.OrderedDict),
    collections.defaultdict: Items(
        lambda x: (x.default_factory, _DICT.read(x)),
        collections.defaultdict.__new__,
        _fill_default,
    ),
    collections.deque: Items(
        lambda x: (list(x), x.maxlen),
        collections.deque.__new__,
        _fill_deque,
    ),
    array.array: Items(lambda x: (x.typecode, x.tobytes()), _new_array),
    types.MappingProxyType: _made(dict, lambda _, x: types.MappingProxyType(x)),
    slice: _made(lambda x: [x.start, x.stop, x.step], lambda _, x: slice(*x)),
    BaseException: _made(lambda x: list(x.args), lambda kind, x: kind.__new__(kind, *x)),
}
# Objects of these libraries that are compared by identity are so under `jax.jit`, too.
_ARRAYS = {"jax", "jaxlib", "numpy", "flax", "equinox", "optax", "shapeexec"}
# Their objects belong to the running process: their content is no value.
_HANDLES = set(
    """_asyncio _contextvars _io _queue _random _socket _sqlite3 _ssl _thread _weakref abc asyncio
    builtins concurrent contextlib contextvars functools importlib inspect io itertools logging
    multiprocessing operator queue random select selectors socket sqlite3 ssl subprocess tempfile
    threading types typing weakref""".split()
)
_ATOMS = (type, types.ModuleType, types.FunctionType, enum.Enum)
_C_NEW = types.BuiltinFunctionType


def _is_atom(kind: type) -> bool:
    return issubclass(kind, _ATOMS)


def _comparison(kind: type) -> Comparison:
    is_own = kind.__hash__ is object.__hash__ or kind.__eq__ is object.__eq__
    if _is_atom(kind):
        return Comparison.BY_IDENTITY if kind.__hash__ is object.__hash__ else Comparison.BY_VALUE
    if kind.__hash__ is not None and is_own:
        return _of_own_identity(kind)
    base = _base(kind)
    if kind.__hash__ is None or base is frozenset:
        return Comparison.BY_NOTHING if base is None else Comparison.BY_CONTENT
    # A string with attributes: the equality of strings knows nothing of them.
    is_inherited = base not in (None, object, kind) and kind.__eq__ is base.__eq__
    return Comparison.BY_CONTENT if is_inherited else Comparison.BY_VALUE


comparison = WeakTable(_comparison)
"""How objects of a class are compared."""


def _of_own_identity(kind: type) -> Comparison:
    library, base = kind.__module__.partition(".")[0], _base(kind)
    if library in _ARRAYS or kind is object:
        return Comparison.BY_IDENTITY
    if library in _HANDLES and kind is not threading.local:
        return Comparison.BY_IDENTITY
    if base is not None:
        return Comparison.BY_CONTENT
    is_python = bool(kind.__flags__ & _HEAP_TYPE) and _c_base(kind) is not kind
    is_called = any("__call__" in vars(base) for base in kind.__mro__)
    return Comparison.BY_NOTHING if is_python and not is_called else Comparison.BY_IDENTITY


_HEAP_TYPE = 1 << 9  # CPython's Py_TPFLAGS_HEAPTYPE


def _c_base(kind: type) -> type:
    """The class whose `__new__` makes the memory of its subclasses."""
    return next(base for base in kind.__mro__ if isinstance(vars(base).get("__new__"), _C_NEW))


def _find_base(kind: type) -> Any:
    for base in kind.__mro__:
        if base in _ITEMS:
            return base if base is not object or _is_made_by_object(kind) else None
        if isinstance(vars(base).get("__new__"), _C_NEW) and not issubclass(base, BaseException):
            return None
    return None


_base: WeakTable[type, Any] = WeakTable(_find_base)
"""The built-in type that says what objects of a class hold beside attributes; None: none does."""


def _is_made_by_object(kind: type) -> bool:
    try:
        object.__new__(kind)
    except TypeError:  # it has memory of its own, written in C
        return False
    return True


def items_of(kind: type) -> Items:
    """How the items of objects of a class are read and made, where content tells them."""
    return _ITEMS[_base(kind)]


def is_opened(value: object) -> bool:
    """Whether a value is compared by its content."""
    kind = type(value)
    by = comparison(kind)
    if by is Comparison.BY_CONTENT:
        # One without a value is a sentinel, and compared with `is`.
        return kind.__hash__ is None or _base(kind) is not object or bool(attributes_of(value))
    if by is not Comparison.BY_VALUE or not dataclasses.is_dataclass(value):
        return False
    if kind.__module__.partition(".")[0] in _ARRAYS or _base(kind) is not object:
        return False
    held = attributes_of(value)
    if _modules.is_linen_definition(value):
        held = {field.name: held.get(field.name) for field in dataclasses.fields(value)}
    return any(map(is_opened, held.values()))


def can_open(value: object) -> bool:
    """Whether a function that is an object of this kind can be opened, whatever its hash."""
    kind = type(value)
    if _modules.is_linen_definition(value):
        return False
    library = kind.__module__.partition(".")[0]
    if _is_atom(kind) or library in _ARRAYS:
        return False
    is_own = library == "__main__" or library not in sys.stdlib_module_names
    return is_own and _base(kind) is object


def cached_properties(kind: type) -> set[str]:
    """The attributes that objects of a class make of their others, and keep.

    Within a function they are computed anew for each graph, and never kept: the next call may
    compute them from another array.
    """
    cached = functools.cached_property
    held = ((name, value) for base in kind.__mro__ for name, value in vars(base).items())
    return {name for name, value in held if isinstance(value, cached)}


def attributes_of(value: object) -> dict[str, Any]:
    slots = {slot for base in type(value).__mro__ for slot in _slots(base)}
    held = {slot: getattr(value, slot) for slot in sorted(slots) if hasattr(value, slot)}
    return {**held, **getattr(value, "__dict__", {})}


def _slots(base: type) -> set[str]:
    slots = vars(base).get("__slots__", ())
    names = {slots} if isinstance(slots, str) else set(slots)
    names -= {"__dict__", "__weakref__"}
    owner = base.__name__.lstrip("_")
    is_private = {name: name.startswith("__") and not name.endswith("__") for name in names}
    return {f"_{owner}{name}" if is_private[name] and owner else name for name in names}


def assign(value: object, attributes: Mapping[str, Any]) -> None:
    for name, attribute in attributes.items():
        try:
            object.__setattr__(value, name, attribute)  # frozen or not
        except TypeError:  # the class is no plain one, and has a setter of its own in C
            setter: Any = _c_base(type(value)).__setattr__
            setter(value, name, attribute)
