"""Random numbers under both counters of threefry; what depends on the whole shape is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shapeexec._errors import UnsupportedPrimitiveError
from tests.cases import Case
from tests.cases.random import CASES
from tests.checks import assert_pad_safe
from tests.tolerance import EQUAL


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_original_generator_too_draws_what_it_draws_unpadded(case: Case) -> None:
    with jax.threefry_partitionable(False):
        assert_pad_safe(case, case.sizes, 2, "garbage")


@pytest.mark.parametrize("partitionable", [True, False])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_bits_of_every_width_are_those_of_the_unpadded_call(dtype, partitionable: bool) -> None:
    def bits(x):
        keys = jax.random.split(jax.random.key(1), x.shape[0])
        return jax.vmap(lambda key: jax.random.bits(key, (x.shape[1], 3), dtype))(keys)

    with jax.enable_x64(True), jax.threefry_partitionable(partitionable):
        for size in (2, 5):
            sizes = {"b": 2, "s": size}
            assert_pad_safe(Case("bits", bits, ("b, s",), sizes, loose=EQUAL), sizes, 3, "max")


@pytest.mark.parametrize(
    ("draw", "primitive"),
    [
        (lambda x: jax.random.bits(jax.random.key(0, impl="rbg"), x.shape), "random_bits"),
        (
            lambda x: jax.random.key_data(jax.random.split(jax.random.key(0, impl="rbg"), x.shape)),
            "random_split",
        ),
        (lambda x: jax.random.gamma(jax.random.key(0, impl="rbg"), x), "random_gamma"),
        (lambda x: lax.rng_bit_generator(jnp.zeros(4, np.uint32), x.shape)[1], "rng_bit_generator"),
        (lambda x: lax.rng_uniform(jnp.float32(0), jnp.float32(1), x.shape), "rng_uniform"),
    ],
    ids=["bits", "split", "gamma", "rng_bit_generator", "rng_uniform"],
)
def test_a_generator_that_needs_the_whole_shape_is_refused(draw, primitive: str) -> None:
    case = Case("refused", draw, ("b, s",))
    with pytest.raises(UnsupportedPrimitiveError, match="threefry2x32") as caught:
        assert_pad_safe(case, case.sizes, 1, None)
    assert caught.value.primitive == primitive
    assert caught.value.symbols == {"b", "s"}
