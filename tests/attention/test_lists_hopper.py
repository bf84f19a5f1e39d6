"""The Hopper kernel that makes lists of tiles, lowered for CUDA and then run in NumPy."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapeexec.attention._lists import _by_operations
from shapeexec.attention.backends import _device
from tests.attention.lists import CASES, FIELDS, LARGE, columns_of

if jax.__version_info__ < (0, 11):
    pytest.skip("jax < 0.11 cannot lower these kernels", allow_module_level=True)

from shapeexec.attention import _lists_hopper
from tests.attention import lockstep

both_sides = pytest.mark.parametrize("side", ["query", "key"])


def assert_right(kinds, *, side, room):
    def make(kinds):
        lists = _lists_hopper.lists(kinds, room=room, side=side)
        return [getattr(lists, name) for name in FIELDS]

    with _device.assumed(_device.HOPPER):
        module = lockstep.kernel_of(make, kinds)
    made = lockstep.run(module, kinds.reshape(-1, *kinds.shape[2:]))
    right = _by_operations(kinds, room=room, side=side)
    for name, one in zip(FIELDS, made, strict=True):
        np.testing.assert_array_equal(one.reshape(getattr(right, name).shape), getattr(right, name))


@both_sides
@pytest.mark.parametrize("kinds", CASES.values(), ids=CASES)
def test_the_kernel_makes_the_lists_that_operations_make(kinds, side):
    room = columns_of(kinds, side)
    assert_right(kinds, side=side, room=room)


@both_sides
@pytest.mark.parametrize("room", [1, 31, 32, 33])
def test_what_does_not_fit_is_left_out(room, side):
    random = np.random.default_rng(0)
    assert_right(random.integers(0, 3, (2, 2, 40, 70), np.uint8), side=side, room=room)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_kinds(data):
    numbers = st.integers(1, 140)
    shape = (*data.draw(st.tuples(st.integers(1, 2), st.integers(1, 2), numbers, numbers)),)
    shares = data.draw(st.sampled_from([(1, 1, 1), (8, 1, 1), (0, 1, 9), (1, 0, 0)]))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    kinds = random.choice(np.arange(3, dtype=np.uint8), shape, p=np.array(shares) / sum(shares))
    side = data.draw(st.sampled_from(["query", "key"]))
    room = data.draw(st.integers(1, columns_of(kinds, side)))
    assert_right(kinds, side=side, room=room)


def test_numbers_of_64_bits_change_nothing():
    with jax.enable_x64(True):
        assert_right(CASES["33 x 65"], side="key", room=33)


@both_sides
@pytest.mark.parametrize("kinds", LARGE.values(), ids=LARGE)
def test_kinds_of_any_shape_fit_into_shared_memory(kinds, side):
    assert _lists_hopper.suffices(kinds.shape)
    with _device.assumed(_device.HOPPER):
        module = lockstep.kernel_of(
            lambda kinds: vars(_lists_hopper.lists(kinds, room=1, side=side)), kinds
        )
    assert lockstep.shared_memory(module) <= 227 * 1024


def test_a_row_of_all_tiles_that_it_takes():
    assert_right(LARGE["16384 columns"], side="query", room=16384)
    assert_right(LARGE["16384 rows"], side="key", room=300)


def test_more_tiles_and_none_are_left_to_operations():
    assert not any(_lists_hopper.suffices((1, 1, *size)) for size in [(129, 128), (0, 3), (3, 0)])


@pytest.mark.parametrize("barrier", [1, 2])
def test_a_missing_barrier_would_be_found(monkeypatch, barrier):
    passed, wait = [], _lists_hopper.wait_for_all

    def all_but_one():
        passed.append(None)
        if len(passed) != barrier:
            wait()

    monkeypatch.setattr(_lists_hopper, "wait_for_all", all_but_one)
    with pytest.raises(AssertionError, match="no barrier lies between"):
        assert_right(CASES["33 x 65"], side="query", room=65)
