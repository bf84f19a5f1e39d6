"""Each way out that an error tells is followed, and leads to a program that is right."""


import jax
import numpy as np
import pytest

from tests.advice import inconclusive

ROWS = [*inconclusive.ROWS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind}: {row.name}")
def test_the_way_out_leads_to_a_program_that_is_right(row):
    with pytest.raises(row.error) as caught:
        row.broken()
    assert type(caught.value) is row.error
    assert row.fix in caught.value.fix
    assert str(caught.value).splitlines()[-1] == f"  Fix:   {caught.value.fix}"
    got, want = row.follow(caught.value.fix), row.expected()
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for actual, expected in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
