"""NumPyro: log densities, their gradients, and inference over data of every size."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from tests.execution.support import batch, ones
from tests.libraries.support import BUCKETS, KEY, SIZES
from tests.tolerance import SUMS, assert_close

numpyro = pytest.importorskip("numpyro")
dist, handlers = pytest.importorskip("numpyro.distributions"), numpyro.handlers
infer = pytest.importorskip("numpyro.infer")


def regression(x: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(jnp.zeros(3), 1).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, spread), obs=y)


def subsampled(x: Any, y: Any) -> None:
    """Of the rows two, whose weight is the number of all."""
    w = numpyro.sample("w", dist.Normal(jnp.zeros(3), 1).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("rows", x.shape[0], subsample_size=2):
        x, y = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(x @ w, spread), obs=y)


def hidden(x: Any, y: Any) -> None:
    """As many variables as rows, which are drawn where none are given, and a mask of one's own."""
    w = numpyro.sample("w", dist.Normal(jnp.zeros(3), 1).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("rows", x.shape[0]), handlers.mask(mask=y > 0):
        z = numpyro.sample("z", dist.StudentT(4.0, x @ w, spread))
        numpyro.sample("y", dist.Normal(z, spread), obs=y)


PARAMS = {"w": jnp.array([0.5, -1.0, 2.0]), "spread": jnp.float32(0.7)}


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("model", [regression, subsampled, hidden])
def test_a_log_density_and_its_gradient_are_those_of_the_valid_rows(model):
    def density(params: Any, key: Any, x: Any, y: Any) -> Any:
        seeded = handlers.seed(model, key)
        return infer.util.log_density(seeded, (x, y), {}, params)[0]

    fn = jax.value_and_grad(density)
    ex, plain = sx.Exec(fn, (None, None, "b, 3", "b"), buckets=BUCKETS), jax.jit(fn)
    for n in SIZES:
        args = (PARAMS, jax.random.key(n), batch(n), batch(n)[:, 0])
        assert_close(ex(*args), plain(*args), loose=SUMS)
    assert ex.stats.differences == 0
    assert ex.cache_size <= 3  # a plate asks whether it is subsampled


def mean(x: Any) -> None:
    m = numpyro.sample("m", dist.Normal(0, 1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("x", dist.Normal(m, 1.0), obs=x)


@pytest.mark.slow
def test_an_update_of_variational_inference_is_that_of_jit():
    guide = infer.autoguide.AutoNormal(mean)
    svi = infer.SVI(mean, guide, numpyro.optim.Adam(0.1), infer.Trace_ELBO())
    state = plain = svi.init(KEY, ones(3))
    ex = sx.Exec(svi.update, (None, "s"), buckets=BUCKETS)
    for n in SIZES:
        state, value = ex(state, ones(n))
        plain, wanted = jax.jit(svi.update)(plain, ones(n))
        assert_close((state, value), (plain, wanted), loose=SUMS)
    assert ex.cache_size == 2


@pytest.mark.slow
def test_a_chain_of_hamiltonian_steps_is_that_of_jit():
    kernel = infer.HMC(mean, num_steps=3, trajectory_length=None)

    def chain(key: Any, x: Any) -> Any:
        start = kernel.init(key, 5, None, (x,), {})

        def step(state: Any, _: None) -> Any:
            state = kernel.sample(state, (x,), {})
            return state, state.z["m"]

        return jax.lax.scan(step, start, None, length=8)[1]

    ex, key = sx.Exec(chain, (None, "s"), buckets=BUCKETS), jax.random.PRNGKey(0)
    for n in (3, 4, 2):
        x = np.linspace(0, 1, n, dtype=np.float32)
        assert_close(ex(key, x), jax.jit(chain)(key, x), loose=SUMS)
    assert ex.cache_size == 1
