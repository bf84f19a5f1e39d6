"""Transposes of strided windows ask nothing of sizes, and are JAX's own where sizes are numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shapeexec import _compat
from shapeexec.shape._dim import Dim, evaluate
from shapeexec.shape._trace import Leaf, trace
from shapeexec.shape._transposes import TRANSPOSED, expand
from tests.tolerance import EQUAL, assert_close

S, T = Dim("s"), Dim("t")
NHC = ("NHC", "HIO", "NHC")


def conv(x, kernel, stride=2, padding="SAME", **options):
    return lax.conv_general_dilated(x, kernel, (stride,), padding, dimension_numbers=NHC, **options)


def average(x):
    return lax.reduce_window(x, 0.0, lax.add, (1, 3, 1), (1, 2, 1), "SAME")


def dilated_maximum(x):
    padding = ((0, 0), (1, 2), (0, 0))
    return lax.reduce_window(
        x, -jnp.inf, lax.max, (1, 3, 1), (1, 2, 1), padding, base_dilation=(1, 2, 1)
    )


KERNEL = np.ones((3, 3, 4), np.float32)
# By name a function of x [2, s, 3], and the transposes that its gradient is made of.
FUNCTIONS = {
    "SAME": (lambda x: conv(x, KERNEL), {"conv_general_dilated_transpose_lhs"}),
    "VALID with stride 1": (
        lambda x: conv(x, KERNEL, 1, "VALID"),
        {"conv_general_dilated_transpose_lhs"},
    ),
    "dilated": (
        lambda x: conv(x, KERNEL, 3, [(2, -1)], lhs_dilation=(2,), rhs_dilation=(2,)),
        {"conv_general_dilated_transpose_lhs"},
    ),
    "by the kernel": (
        lambda x: conv(x, jnp.tile(x.mean(1).sum(0), (3, 4, 1)).transpose(0, 2, 1)),
        {"conv_general_dilated_transpose_lhs", "conv_general_dilated_transpose_rhs"},
    ),
    "average pooling": (average, {"reduce_window_sum_transpose"}),
    "dilated maximum": (dilated_maximum, {"select_and_gather_add_transpose"}),
    "slice": (lambda x: lax.slice_in_dim(x, 1, x.shape[1], 2, 1), {"slice_transpose"}),
    "pad": (lambda x: lax.pad(x, 0.0, [(0, 0, 0), (-1, 3, 2), (0, 0, 0)]), {"pad_transpose"}),
    "SAME with stride 1": (lambda x: conv(x, KERNEL, 1), set()),
    "a static axis": (lambda x: conv(x.transpose(2, 0, 1)[..., :3], KERNEL[:, :3]), set()),
}


def traced(fn, size=5):
    leaf = Leaf((2, S, 3), np.dtype(np.float32))
    return trace(jax.grad(lambda x: jnp.sin(fn(x)).sum()), [leaf], sizes={"s": size})


def own_equations(jaxpr):
    return [eqn for eqn in _compat.equations(jaxpr) if eqn.primitive.name in TRANSPOSED]


@pytest.mark.parametrize(("fn", "names"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_gradient_asks_nothing_and_says_what_it_transposes(fn, names):
    if fn is FUNCTIONS["a static axis"][0]:
        leaf = Leaf((S, 7, 3), np.dtype(np.float32))
        found = trace(jax.grad(lambda x: conv(x, KERNEL).sum()), [leaf], sizes={"s": 5})
    else:
        found = traced(fn)
    assert found.guards == ()
    assert {eqn.primitive.name for eqn in own_equations(found.jaxpr.jaxpr)} == names


def at(param, sizes):
    if type(param) is tuple:
        return tuple(at(part, sizes) for part in param)
    return evaluate(str(param), sizes) if jax.export.is_symbolic_dim(param) else param


@pytest.mark.parametrize("size", [1, 4, 7])
@pytest.mark.parametrize("name", [name for name, (_, found) in FUNCTIONS.items() if found])
def test_at_known_sizes_it_expands_to_the_equations_of_jax(name, size):
    fn = FUNCTIONS[name][0]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, size, 3)).astype(np.float32)
    plain = jax.make_jaxpr(jax.grad(lambda x: jnp.sin(fn(x)).sum()))(x)
    known = [(eqn.primitive.name, str(eqn.params)) for eqn in _compat.equations(plain.jaxpr)]
    for eqn in own_equations(traced(fn).jaxpr.jaxpr):
        shapes = [at(tuple(var.aval.shape), {"s": size}) for var in eqn.invars]
        structs = [
            jax.ShapeDtypeStruct(shape, var.aval.dtype)
            for shape, var in zip(shapes, eqn.invars, strict=True)
        ]
        params = {key: at(param, {"s": size}) for key, param in eqn.params.items()}
        made = jax.make_jaxpr(expand(eqn.primitive, params))(*structs)
        assert made.out_avals[0].shape == params["shape"]
        assert made.out_avals[0].dtype == eqn.outvars[0].aval.dtype
        # The function inside of `pad`'s rule may be jitted: only what computes counts.
        assert {(e.primitive.name, str(e.params)) for e in made.jaxpr.eqns} <= {*known}
        bound = eqn.primitive.bind(*[np.ones(s, np.float32) for s in shapes], **params)
        want = expand(eqn.primitive, params)(*[np.ones(s, np.float32) for s in shapes])
        assert_close(bound, want, loose=EQUAL)


def test_jax_keeps_its_own_rules_outside_of_a_trace():
    before = jax.make_jaxpr(jax.grad(lambda x: conv(x, KERNEL).sum()))(np.ones((2, 5, 3)))
    traced(FUNCTIONS["SAME"][0])
    after = jax.make_jaxpr(jax.grad(lambda x: conv(x, KERNEL).sum()))(np.ones((2, 5, 3)))
    assert str(before) == str(after)
    assert not own_equations(after.jaxpr)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_many_strided_layers_are_traced_without_a_search(padding):
    def fn(x):
        for _ in range(9):
            x = conv(jnp.tanh(x), KERNEL[..., :3], 2, padding)
        return x

    found = traced(fn, 2000)
    assert found.guards == ()
    assert len(own_equations(found.jaxpr.jaxpr)) == 9


def test_two_ragged_axes_of_residual_blocks_agree_in_size():
    def block(x):
        y = lax.conv(x, jnp.ones((3, 3, 3, 3)), (2, 2), "SAME")
        return y + lax.conv(x, jnp.ones((3, 3, 1, 1)), (2, 2), "SAME")

    leaf = Leaf((2, 3, S, T), np.dtype(np.float32))
    fn = jax.grad(lambda x: block(block(block(x))).sum())
    found = trace(fn, [leaf], sizes={"s": 9, "t": 6})
    assert found.guards == ()
