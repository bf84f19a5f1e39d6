"""Errors and notes name the user's line, also inside of functions that JAX jits itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx


def read_in_place(x):
    return jax.new_ref(x)[...]  # this line


def deviation(x):
    return jnp.std(x)  # this one


def test_an_error_names_the_users_line():
    with pytest.raises(sx.UnsupportedPrimitiveError) as refused:
        sx.Exec(read_in_place, ("s",))(np.ones(3, np.float32))
    assert "return jax.new_ref(x)[...]  # this line  (test_where.py:" in str(refused.value.where)


def test_each_note_names_the_users_line():
    notes = sx.Exec(deviation, ("s",)).explain(np.ones(3, np.float32)).masks
    assert notes
    assert all("return jnp.std(x)  # this one" in str(note.where) for note in notes)
