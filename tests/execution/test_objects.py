"""Objects of all kinds of classes, as arguments and held by `self`, are told by what they hold."""

import abc
import argparse
import array
import collections
import ctypes
import dataclasses
import itertools
import random
import string
import threading
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from tests.execution.support import refused

P = sx.Pow2()


def ones(n: int) -> np.ndarray[Any, Any]:
    return np.ones(n, np.float32)


class Single:
    """One that a class makes by itself."""

    def __new__(cls, *_: Any) -> "Single":
        return super().__new__(cls)

    def __init__(self) -> None:
        self.k = 2.0


class Failure(ValueError):
    k = 2.0


class Text(str):
    k = 2.0


class Pair(tuple[Any, ...]):
    k = 2.0


class Hashed:
    k = 2.0

    def __hash__(self) -> int:
        return 1


class Private:
    __slots__ = ("__k",)

    def __init__(self) -> None:
        self.k = 2.0

    @property
    def k(self) -> float:
        return self.__k

    @k.setter
    def k(self, value: float) -> None:
        self.__k = value


class Local(threading.local):
    k = 2.0


class Dict(dict[Any, Any]):
    pass


class Ordered(collections.OrderedDict[Any, Any]):
    pass


class Default(collections.defaultdict[Any, Any]):
    pass


class List(list[Any]):
    pass


@dataclasses.dataclass(frozen=True)
class Frozen:
    inner: Any = dataclasses.field(default_factory=lambda: types.SimpleNamespace(k=2.0))
    other: Any = dataclasses.field(default_factory=Single)


@dataclasses.dataclass(frozen=True)
class Holder:
    inner: Single = dataclasses.field(default_factory=Single)


def put(value: Any) -> None:
    value.k = 9.0


def put_item(value: Any) -> None:
    value["k"] = 9.0


def first(value: Any) -> Any:
    return value[0]


def k_of(value: Any) -> Any:
    return value.k


def item_of(value: Any) -> Any:
    return value["k"]


def put_first(value: Any) -> None:
    value[0] = 9.0


ATTRIBUTES = [
    lambda: argparse.Namespace(k=2.0),
    lambda: types.SimpleNamespace(k=2.0),
    Single,
    lambda: Failure("a string"),
    lambda: Text("a string"),
    lambda: Pair((1, 2)),
    Hashed,
    Private,
    Local,
]
MAPPINGS = [
    lambda: collections.Counter({"k": 2}),
    lambda: collections.UserDict(k=2.0),
    lambda: collections.ChainMap({"k": 2.0}),
    lambda: Dict(k=2.0),
    lambda: Ordered(k=2.0),
    lambda: Default(int, {"k": 2.0}),
]
SEQUENCES = [
    lambda: collections.UserList([2.0]),
    lambda: List([2.0]),
    lambda: collections.deque([2.0], 3),
    lambda: array.array("d", [2.0]),
]
KINDS = [
    *((make, put, k_of) for make in ATTRIBUTES),
    *((make, put_item, item_of) for make in MAPPINGS),
    *((make, put_first, first) for make in SEQUENCES),
    (lambda: collections.deque([[2.0]]), lambda d: put_first(d[0]), lambda d: d[0][0]),
    (Holder, lambda h: put(h.inner), lambda h: h.inner.k),
    (Frozen, lambda h: put(h.inner), lambda h: h.inner.k),
    (lambda: {Single()}, lambda s: put(next(iter(s))), lambda s: next(iter(s)).k),
    (lambda: frozenset([Single()]), lambda s: put(next(iter(s))), lambda s: next(iter(s)).k),
    (
        lambda: string.Template("2"),
        lambda t: setattr(t, "template", "9"),
        lambda t: float(t.template),
    ),
    (lambda: bytearray(b"2"), lambda b: b.__setitem__(0, ord("9")), lambda b: float(b.decode())),
]
Case = tuple[Callable[[], Any], Callable[[Any], None], Callable[[Any], Any]]


def each_kind(test: Any) -> Any:
    ids = [type(make()).__name__ for make, _, _ in KINDS]
    return pytest.mark.parametrize(("make", "change", "read"), KINDS, ids=ids)(test)


class Model:
    def __init__(self, held: Any, read: Callable[[Any], Any]) -> None:
        self.held, self.read = held, read

    @sx.bucketed(("s",), P)
    def total(self, x: jax.Array) -> jax.Array:
        return x.sum() * self.read(self.held)

    def plain(self, x: jax.Array) -> jax.Array:
        return x.sum() * self.read(self.held)


@each_kind
def test_what_self_holds_is_told_by_its_value_at_each_call(make, change, read):
    model = Model(make(), read)
    ex = sx.Exec(model.plain, ("s",), buckets=P)
    assert [model.total(ones(3)), ex(ones(3))] == [6, 6]
    change(model.held)
    assert [model.total(ones(3)), ex(ones(3))] == [27, 27]


@each_kind
def test_an_argument_is_told_by_its_value_at_each_call(make, change, read):
    ex = sx.Exec(lambda held, x: x.sum() * read(held[0]), (None, "s"), buckets=P)
    held = make()
    assert ex([held], ones(3)) == 6
    change(held)
    assert ex([held], ones(3)) == 27
    assert ex([make()], ones(4)) == 8  # not what the first one has become
    assert type(held) is type(make())


def test_arrays_that_an_object_of_any_class_holds_are_data():
    ex = sx.Exec(lambda c, x: x.sum() * c["k"].a + c["k"].b[0], (None, "s"), buckets=P)
    for a in (1.0, 2.0):
        held = collections.UserDict({"k": argparse.Namespace(a=jnp.float32(a), b=[jnp.float32(a)])})
        assert ex(held, ones(3)) == 4 * a
    assert ex.cache_size == 1


class Variable:
    """As those of Keras: around an array, which `jnp` takes and `jax.jit` refuses."""

    __hash__ = None

    def __init__(self, value: float) -> None:
        self._value = jnp.float32(value)

    shape = property(lambda self: self._value.shape)
    dtype = property(lambda self: self._value.dtype)
    value = property(lambda self: self._value)

    def __eq__(self, other: object) -> Any:
        return self._value == other

    def __jax_array__(self) -> jax.Array:
        return self._value


class Layer:
    def __init__(self) -> None:
        self.scale = Variable(2)
        self.expected = argparse.Namespace(shape=None, dtype=None)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x.sum() * jnp.asarray(self.scale) * self.scale.value


def test_the_array_of_a_variable_of_another_library_is_data():
    layer = Layer()
    ex = sx.Exec(layer, ("s",), buckets=P)
    assert [ex(ones(3)), ex(ones(4))] == [12, 16]
    layer.scale._value = jnp.float32(3)
    assert [ex(ones(3)), ex(ones(4))] == [27, 36]
    assert ex.cache_size == 1


def test_a_variable_that_is_an_argument_is_refused_as_by_jit():
    ex = sx.Exec(lambda scale, x: x * scale, (None, "s"), buckets=P)
    with refused(sx.ConfigError, "args[0] is a Variable that JAX has no dtype for.", "numbers"):
        ex(Variable(2), ones(3))


def test_a_change_that_jit_would_allow_is_not_told_as_an_error_of_jit():
    def fn(held: Any, x: jax.Array) -> jax.Array:
        held.k = 9.0
        return x

    assert jax.jit(lambda x: fn(argparse.Namespace(k=1.0), x))(ones(3)).shape == (3,)
    with pytest.raises(sx.ConfigError, match="the function changes `k`") as told:
        sx.Exec(fn, (None, "s"), buckets=P)(argparse.Namespace(k=1.0), ones(3))
    assert not any("raises this" in note for note in getattr(told.value, "__notes__", ()))


def test_an_object_without_attributes_is_itself():
    class Missing:
        pass

    one, other = Missing(), Missing()
    ex = sx.Exec(lambda c, x: x.sum() * (2 if c[0] is one else 3), (None, "s"), buckets=P)
    assert [ex([one], ones(3)), ex([other], ones(3))] == [6, 9]


def test_an_object_may_hold_itself_through_its_items():
    class Tree(List):
        parent: Any = None

    tree, leaf = Tree(), Tree([2.0])
    tree.append(leaf)
    leaf.parent = tree
    ex = sx.Exec(lambda t, x: x.sum() * t[0].parent[0][0], (None, "s"), buckets=P)
    assert ex(tree, ones(3)) == 6
    leaf[0] = 9.0
    assert ex(tree, ones(3)) == 27


def test_a_tuple_that_holds_itself_is_refused():
    pair = Pair(([],))
    pair.k = 1
    pair[0].append(pair)
    with refused(sx.ConfigError, "an immutable object contains", "break the cycle") as told:
        sx.Exec(lambda p, x: x, (None, "s"), buckets=P)(pair, ones(3))
    assert told.value.got == "a Pair"


@pytest.mark.parametrize(
    ("make", "change", "what"),
    [
        (collections.Counter, put_item, "the function changes the items of a Counter."),
        (lambda: collections.deque([1]), put_first, "the function changes the items of a deque."),
        (argparse.Namespace, put, "the function changes `k` of a Namespace."),
    ],
)
def test_what_a_function_puts_into_an_object_is_an_error(make, change, what):
    def fn(held: Any, x: jax.Array) -> jax.Array:
        change(held)
        return x

    held = make()
    with refused(sx.ConfigError, what, "return the new value"):
        sx.Exec(fn, (None, "s"), buckets=P)(held, ones(3))
    assert list(getattr(held, "__dict__", {})) == []


class Number(ctypes.c_int):
    pass


class Count(itertools.count):
    pass


class Abstract(abc.ABC):  # noqa: B024 - what matters is its metaclass
    lock: Any = None


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (Count, "self.held.inner is a Count, which may change unseen."),
        (Number, "self.held.inner is a Number, which is neither an array nor hashable."),
        ({}.keys, "self.held.inner is a dict_keys, which is neither an array nor hash"),
    ],
)
def test_what_may_change_and_cannot_be_read_is_refused_with_its_path(make, what):
    model = Model(types.SimpleNamespace(inner=make()), lambda held: 1)
    with refused(sx.ConfigError, what, "a frozen dataclass"):
        model.total(ones(3))


@pytest.mark.parametrize(
    "make",
    [threading.Lock, lambda: random.Random(0), lambda: np, lambda: jnp, object, lambda: len],
    ids="lock generator numpy jax.numpy object function".split(),
)
def test_handles_of_the_process_and_modules_are_told_by_identity(make):
    held = Abstract()
    held.lock = make()
    model = Model(held, lambda held: 2.0)
    assert [model.total(ones(n)) for n in (3, 4)] == [6, 8]


def test_objects_of_any_class_come_back_in_results():
    def fn(x: jax.Array) -> Any:
        counter: Any = collections.Counter()
        counter["k"] = x * 2
        return counter, argparse.Namespace(a=x.sum(), b="text")

    counter, space = sx.Exec(fn, ("s",), buckets=P)(ones(3))
    assert type(counter) is collections.Counter
    assert (counter["k"].tolist(), space.a, space.b) == ([2.0, 2.0, 2.0], 3, "text")
