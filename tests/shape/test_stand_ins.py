"""Stand-ins for functions of JAX's library: whom they serve, and that JAX is left as it was."""

import importlib
import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import signal

import shapeexec as sx
from shapeexec import _compat
from shapeexec._compat.dims import stand_ins
from tests.execution.support import assert_runs_as, ones
from tests.shape.test_library import KEY, OWN_FILES, P


class Rows(nn.Module):
    """Layers of flax that look at the sizes of the axes that they go along."""

    @nn.compact
    def __call__(self, x):
        lifted = {"variable_axes": {"params": 0}, "split_rngs": {"params": False}}
        dense = nn.vmap(nn.Dense, **lifted | {"variable_axes": {"params": None}})(3)
        return nn.RNN(nn.GRUCell(3), reverse=True)(dense(x))


def test_layers_that_flax_lifts_share_a_graph():
    rows = Rows()
    params = rows.init(KEY, ones(2, 5, 3))
    ex = sx.Exec(rows.apply, (None, "b, s, 3"), buckets={"b": sx.Linear(4), "s": sx.Linear(8)})
    for b, s in ((2, 5), (3, 7), (4, 8), (1, 3)):
        assert_runs_as(rows.apply, ex, params, ones(b, s, 3) / 50)
    assert ex.stats.compiles == ex.stats.traces < 3
    assert not [guard for guard in ex.plan(params, ones(3, 7, 3)).guards if guard.op == "=="]


def test_arrays_of_different_sizes_are_refused_as_ever():
    def fn(x, y):
        return lax.associative_scan(lambda a, b: a, (x, y))

    with pytest.raises(ValueError, match="same first dimension"):
        sx.Exec(fn, ("s", "t"), buckets=P)(ones(3), ones(4))


def test_a_permutation_takes_as_many_rounds_as_the_plain_one():
    fn = lambda x: jax.random.permutation(KEY, x)
    ex = sx.Exec(fn, ("s",), buckets=sx.Linear(2048))
    for size in (1, 1625, 1626, 2000):
        assert_runs_as(fn, ex, np.arange(size, dtype=np.int32))
    assert ex.stats.traces == 2


def test_whole_axes_of_one_element_are_squeezed_at_that_size_alone():
    ex = sx.Exec(jnp.cov, ("b, s",), buckets={"b": P, "s": P}, poison="nan")
    for rows in (1, 2, 3, 4):
        assert_runs_as(jnp.cov, ex, ones(rows, 5) ** 2)


def test_indices_have_the_dtype_of_the_plain_ones_also_where_integers_are_wide():
    def fn(x):
        return jnp.argsort(x), jnp.searchsorted(x, x), jnp.nonzero(x, size=2)

    with jax.enable_x64(True):
        assert_runs_as(fn, sx.Exec(fn, ("s",), buckets=P), ones(5))


def test_where_no_size_is_symbolic_jax_runs_its_own():
    def fn(x, y):
        known = [lax.associative_scan(jnp.add, y), jnp.searchsorted(y, y), jnp.cov(y)]
        known += [jax.random.permutation(KEY, y), jnp.convolve(y, y), signal.stft(y, nperseg=4)]
        return x, known

    plan = sx.Exec(fn, ("s", None), buckets=P).plan(ones(3), ones(5))
    assert plan.guards == ()
    assert_runs_as(fn, sx.Exec(fn, ("s", None), buckets=P), ones(3), ones(300))


def test_jax_is_as_it_was_when_nobody_traces():
    own = inspect.unwrap(lax.associative_scan)
    names = inspect.unwrap(jnp.searchsorted).__globals__
    seen = []

    def fn(x):
        seen.append((own.__code__, names.get("len")))
        return x

    before = own.__code__
    sx.Exec(fn, ("s",), buckets=P)(ones(3))
    (code, length), *_ = seen
    assert code is not before
    assert length is not None
    assert own.__code__ is before
    assert "len" not in names


def test_a_function_is_found_by_whatever_name_it_was_imported():
    from jax.lax import associative_scan  # noqa: PLC0415 - as users do inside of functions
    from jax.numpy import convolve, searchsorted  # noqa: PLC0415 - likewise

    def fn(x):
        return associative_scan(jnp.add, x), searchsorted(x, x), jax.jit(convolve)(x, x[::-1])

    assert_runs_as(fn, sx.Exec(fn, ("s",), buckets=P), ones(5))


def test_what_the_users_line_is_does_not_change():
    def fn(x):
        return lax.associative_scan(jnp.add, x) + jnp.searchsorted(x, 2.0)

    told = str(sx.Exec(fn, ("s",), buckets=P).explain(ones(5)))
    assert "<- return lax.associative_scan(jnp.add, x) + jnp" in told
    assert not [file for file in OWN_FILES if f"({file}:" in told]


def test_each_stand_in_is_for_a_function_of_this_version():
    for module, name in [place for places in stand_ins._LIBRARY.values() for place in places[:1]]:
        assert callable(_compat.jax_function(module.removeprefix("jax._src."), name))
    assert stand_ins._LIBRARY.keys() == stand_ins._STAND_INS.keys()
    for module, name in stand_ins._ANYWHERE:
        owner = importlib.import_module(module)
        assert name in ("len", "set") or hasattr(owner, name)


def test_stand_ins_take_the_parameters_of_what_they_stand_in_for():
    for name, places in stand_ins._LIBRARY.items():
        own = inspect.signature(stand_ins._STAND_INS[name])
        _, *ours = own.parameters.values()
        if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in ours):
            continue
        module, function = places[0]
        theirs = inspect.signature(_compat.jax_function(module.removeprefix("jax._src."), function))
        assert [p.name for p in ours] == list(theirs.parameters)
