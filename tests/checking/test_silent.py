"""Code that goes another way for a symbolic size, and says nothing, is told with its line."""

import concurrent.futures
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shapeexec._errors import InconclusiveShapeError
from shapeexec.checking import Difference, Outcome, check
from shapeexec.shape._trace import trace
from tests.checking.support import examined, leaf

FIVE = jax.ShapeDtypeStruct((5,), np.float32)


def type_is_int(x: jax.Array) -> jax.Array:
    n = x.shape[0]
    return x * 2 if type(n) is int else x * 3  # told


def is_the_same_object(x: jax.Array) -> jax.Array:
    five = 5
    return x * 2 if x.shape[0] is five else x * 3  # told


def has_an_attribute(x: jax.Array) -> jax.Array:
    return x * 2 if hasattr(x.shape[0], "from_bytes") else x  # told


def aval_equals(x: jax.Array) -> jax.Array:
    return x * 2 if jax.typeof(x) == jax.typeof(jnp.zeros(5)) else x  # told


def struct_equals(x: jax.Array) -> jax.Array:
    return x * 2 if jax.ShapeDtypeStruct(x.shape, x.dtype) == FIVE else x  # told


def struct_differs(x: jax.Array) -> jax.Array:
    return x if jax.ShapeDtypeStruct(x.shape, x.dtype) != FIVE else x * 2  # told


def struct_in_a_set(x: jax.Array) -> jax.Array:
    return x * 2 if jax.ShapeDtypeStruct(x.shape, x.dtype) in {FIVE} else x  # told


def aval_in_a_dict(x: jax.Array) -> jax.Array:
    return x * {jax.typeof(jnp.zeros(5)): 2.0}.get(jax.typeof(x), 3.0)  # told


def result_of_eval_shape(x: jax.Array) -> jax.Array:
    return x * 2 if jax.eval_shape(jnp.sin, x) == FIVE else x  # told


def text_of_an_aval(x: jax.Array) -> jax.Array:
    return x * 2 if "5" in repr(jax.typeof(x)) else x  # told


def short_text_of_an_aval(x: jax.Array) -> jax.Array:
    return x * 2 if "5" in jax.typeof(x).str_short() else x  # told


def asked_in_another_thread(x: jax.Array) -> jax.Array:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        is_five = pool.submit(lambda: x.shape[0] == 5).result()
    return x * 2 if is_five else x  # told


def square_root_caught(x: jax.Array) -> jax.Array:
    try:
        return x * float(np.sqrt(x.shape[0]))  # told
    except Exception:
        return x


def list_caught(x: jax.Array) -> Any:
    try:
        return sum(list(x))  # told
    except Exception:
        return x[0]


def arange_caught(x: jax.Array) -> jax.Array:
    try:
        return x * np.arange(x.shape[0], dtype=np.float32)  # told
    except Exception:
        return x


def product_caught(x: jax.Array) -> jax.Array:
    try:
        return x @ jnp.arange(5.0) + x  # told
    except Exception:
        return x


def joined_caught(x: jax.Array) -> jax.Array:
    try:
        return jnp.stack([x, jnp.ones(5, np.float32)])[0] * 2  # told
    except Exception:
        return x


PROGRAMS: tuple[Callable[..., Any], ...] = (
    type_is_int,
    is_the_same_object,
    has_an_attribute,
    aval_equals,
    struct_equals,
    struct_differs,
    struct_in_a_set,
    aval_in_a_dict,
    result_of_eval_shape,
    text_of_an_aval,
    short_text_of_an_aval,
    asked_in_another_thread,
    square_root_caught,
    list_caught,
    arange_caught,
    product_caught,
    joined_caught,
)

REFUSED = (square_root_caught, arange_caught)
"""The programs whose question is heard although they catch its error: no trace of them is made."""


def _inner_of_a_loop(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: jax.lax.scan(lambda c, _: (jnp.sin(fn(c)) + c, None), x, length=2)[0]


@pytest.mark.parametrize("around", [None, jax.jit, _inner_of_a_loop], ids=("plain", "jit", "scan"))
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_what_is_not_heard_is_found_with_its_line(fn, around):
    program = fn if around is None else around(fn)
    if fn in REFUSED:
        with pytest.raises(InconclusiveShapeError, match="needs the size as a Python int"):
            trace(program, [leaf("s")], sizes={"s": 5})
        return
    traced = trace(program, [leaf("s")], sizes={"s": 5})
    found = check(traced, program, leaves=[leaf("s")], sizes={"s": 5})
    if any(guard.op == "==" and guard.right == "5" for guard in traced.guards):
        assert found is None  # heard after all
        return
    assert isinstance(found, Difference)
    assert "# told" in (found.line or "")
    assert found.text


def test_a_difference_that_no_size_but_one_has_is_found_at_that_size():
    def fn(x: jax.Array) -> jax.Array:
        return x * 2 if jax.ShapeDtypeStruct(x.shape, x.dtype) == FIVE else x

    assert examined(fn, "s", {"s": 4}).difference is None
    found = examined(fn, "s", {"s": 5}, traced_at={"s": 4}).difference
    assert isinstance(found, Difference)
    assert found.text == "argument 0, f32[5], instead of `mul` f32[5]"
    assert "== FIVE else x" in (found.line or "")


def test_an_exception_of_the_plain_function_comes_out_as_it_is():
    def fn(x: jax.Array) -> jax.Array:
        return x * (1 / (5 - 5) if type(x.shape[0]) is int else 1)

    traced = trace(fn, [leaf("s")], sizes={"s": 5})
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        check(traced, fn, leaves=[leaf("s")], sizes={"s": 5})


def test_another_tree_of_results_is_a_difference():
    def fn(x: jax.Array) -> Any:
        return (x,) if type(x.shape[0]) is int else [x]

    found = examined(fn, "s", {"s": 5})
    assert found == Outcome(
        Difference("the result is PyTreeDef([*]) instead of PyTreeDef((*,))"), 1
    )


def test_another_type_of_result_is_a_difference_with_its_line():
    def fn(x: jax.Array) -> jax.Array:
        return x.astype(np.int32 if type(x.shape[0]) is int else np.int8)

    found = examined(fn, "s", {"s": 5}).difference
    assert isinstance(found, Difference)
    assert found.text == "result 0 is i8[5] instead of i32[5]"
    assert "type(x.shape[0]) is int" in (found.line or "")
    assert found.line == found.symbolic_line


def test_an_effect_more_is_a_difference():
    def fn(x: jax.Array) -> jax.Array:
        if type(x.shape[0]) is int:
            jax.debug.callback(lambda _: None, x)
        return x

    found = examined(fn, "s", {"s": 5}).difference
    assert isinstance(found, Difference)
    assert found.text == "0 effects instead of 1"
    assert "jax.debug.callback" in (found.line or "")


def test_the_same_effects_are_no_difference():
    def fn(x: jax.Array) -> jax.Array:
        jax.debug.print("sum {}", x.sum())
        jax.debug.callback(lambda _: None, x)
        return x

    assert examined(fn, "s", {"s": 5}).difference is None


def test_effects_in_another_order_are_a_difference():
    def fn(x: jax.Array) -> jax.Array:
        words = ("a", "b") if type(x.shape[0]) is int else ("b", "a")
        for word in words:
            jax.debug.print(word)
        return x

    found = examined(fn, "s", {"s": 5}).difference
    assert isinstance(found, Difference)
    assert found.text == "`debug_print` instead of `debug_print`, with other parameters"
    assert "jax.debug.print(word)" in (found.line or "")
