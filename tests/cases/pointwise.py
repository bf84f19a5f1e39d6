"""Primitives that read their own position only: no padding reaches another element."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jax.ad_checkpoint import checkpoint_name

from tests.cases._case import Case


def _beyond_one(x):
    return jnp.abs(x) + 1.5


def _inside_one(x):
    return jnp.tanh(x) * 0.9


def _circular_and_hyperbolic(x):
    inside = _inside_one(x)
    return (
        (lax.tan(inside), lax.asin(inside), lax.acos(inside), lax.atan(x), lax.atan2(x, inside)),
        (lax.sinh(x), lax.cosh(x), lax.asinh(x), lax.acosh(_beyond_one(x)), lax.atanh(inside)),
    )


def _special(x):
    y = _beyond_one(x)
    fixed = lax.stop_gradient(y)  # JAX has no derivatives of zeta, and of betainc by these
    return (
        (lax.erf(x), lax.erfc(x), lax.bessel_i0e(x), lax.bessel_i1e(x)),
        (
            lax.erf_inv(_inside_one(x)),
            lax.lgamma(y),
            lax.digamma(y),
            lax.polygamma(jnp.ones_like(y), y),
        ),
        (
            lax.zeta(fixed, fixed),
            lax.betainc(fixed, fixed, y / (1 + y)),
        ),
    )


def _incomplete_gamma(x):
    y = _beyond_one(x)
    return lax.igamma(y, y), lax.igammac(y, y)


def _powers_and_roundings(x):
    return (
        (lax.pow(_beyond_one(x), x), lax.exp2(x), lax.expm1(x), lax.round(x)),
        (lax.cbrt(_beyond_one(x)), lax.ceil(x), lax.clamp(-1.0, x, 0.5)),
        (
            lax.reduce_precision(x, 5, 3),
            lax.nextafter(lax.stop_gradient(x), 9.0 + lax.stop_gradient(x)),
            x == lax.round(x),
        ),
    )


def _bits(n):
    return (
        (lax.population_count(n), lax.clz(n), n ^ 3, ~n, lax.mulhi(n, n << 30)),
        (lax.shift_left(n, n), lax.shift_right_arithmetic(-n, n)),
    )


def _named_and_kept(x):
    named = checkpoint_name(x, "x")
    device = jax.devices()[0]
    placed = lax.with_sharding_constraint(x, jax.sharding.SingleDeviceSharding(device))
    return lax.optimization_barrier((named, jnp.copy(named) * 2)), jax.device_put(x, device), placed


def _keys(x):
    key = random.clone(random.fold_in(random.key(0), 3))
    return x * random.uniform(key, (3,))[0]


CASES = (
    Case("circular and hyperbolic functions", _circular_and_hyperbolic, ("b, s",), naive="agrees"),
    Case("special functions", _special, ("b, s",), naive="agrees"),
    # Few elements: igamma takes long for each that is the greatest float32, as poison has it.
    Case(
        "incomplete gamma functions",
        _incomplete_gamma,
        ("s",),
        sizes={"s": 2},
        naive="agrees",
    ),
    Case("powers and roundings", _powers_and_roundings, ("b, s",), naive="agrees"),
    Case("bits of integers", _bits, ("b, s",), dtypes=np.int32, naive="agrees"),
    Case("names, barriers and devices", _named_and_kept, ("b, s",), naive="agrees"),
    Case("a key from another", _keys, ("b, s",), naive="agrees"),
)
