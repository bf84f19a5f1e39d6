"""Copies, variants and methods of a loaded Exec load the saved graphs that fit them."""

import copy
import pickle

import pytest

import shapeexec as sx
from tests.execution.saving.support import W, attend, data, saved
from tests.tolerance import assert_close

OPTIONS = {"xla_llvm_disable_expensive_passes": True}
VARIANTS = {
    "a copy": (copy.copy, 1),
    "a deep copy": (copy.deepcopy, 1),
    "a variant": (lambda run: run.variant(), 1),
    "a variant of a variant": (lambda run: run.variant(check="off").variant(returns="host"), 1),
    "other buckets that meet": (lambda run: run.variant(buckets={"b": "pow2", "s": 4}), 1),
    "quick": (lambda run: run.variant(compiling=sx.Compiling(first="quick")), 1),
    "another function": (lambda run: run.variant(fn=lambda w, x: attend(w, x) + 0), 0),
    "other poison": (lambda run: run.variant(poison="nan"), 0),
    "other constraints": (lambda run: run.variant(constraints="s >= 2"), 0),
    "other options": (lambda run: run.variant(compiling=sx.Compiling(options=OPTIONS)), 0),
    "pickled": (lambda run: pickle.loads(pickle.dumps(run)), 0),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_made_of_a_loaded_exec_loads_what_fits_and_warns_of_nothing(tmp_path, name):
    saved(tmp_path)
    made, loads = VARIANTS[name]
    run = made(sx.load(tmp_path, attend, trusted=True))
    x = data(3, 5)
    assert_close(run(W, x), attend(W, x))
    assert run.stats.loads == loads


def test_methods_load_what_methods_have_saved(tmp_path):
    class Model:
        def __init__(self):
            self.w = W

        def attend(self, x):
            return attend(self.w, x)

    plain, x = Model.attend, data(3, 5)
    Model.attend = sx.Exec(plain, (None, "b, s, 4"))
    assert_close(Model().attend(x), attend(W, x))
    assert Model().attend.save(tmp_path) == 1
    Model.attend = sx.load(tmp_path, plain, trusted=True)
    run = Model().attend
    assert_close(run(x), attend(W, x))
    assert (run.stats.loads, run.stats.compiles) == (1, 0)
