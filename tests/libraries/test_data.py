"""What brings data and keeps results: iterators of batches, grain, and orbax's checkpoints."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import shapeexec as sx
from tests.execution.support import batch, ones, refused
from tests.libraries.support import BUCKETS, SIZES
from tests.tolerance import assert_close


def total(element: Any) -> Any:
    return element["x"].mean() * element["length"]


class Tensor:
    """An array of another library's: it has a shape, a dtype of its own, and becomes NumPy's."""

    shape, dtype = (3,), "tf.float32"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return ones(3)


def test_a_tensor_of_another_library_is_refused_with_the_way_to_numpy():
    ex = sx.Exec(jnp.mean, ("s",), buckets=BUCKETS)
    with refused(sx.ConfigError, "args[0] is a Tensor that JAX has no dtype", "np.asarray of it"):
        ex(Tensor())
    assert ex(np.asarray(Tensor())) == 2


def test_an_iterator_of_batches_is_read_as_it_is():
    ex = sx.Exec(total, ({"x": "s", "length": None},), buckets=BUCKETS)
    for element in ({"x": ones(n), "length": np.float32(n)} for n in SIZES):
        assert_close(np.asarray(ex(element)), element["x"].sum())
    assert ex.cache_size == 2


def test_elements_of_grain_run_one_by_one_and_as_ragged_batches():
    grain = pytest.importorskip("grain")
    lengths = (3, 4, 2, 5, 7, 6)
    elements = grain.MapDataset.source([ones(n) for n in lengths]).map(
        lambda x: {"x": x, "length": np.float32(len(x))}
    )
    ex = sx.Exec(total, ({"x": "s", "length": None},), buckets=BUCKETS)
    for element, n in zip(elements.to_iter_dataset(), lengths, strict=True):
        assert_close(np.asarray(ex(element)), ones(n).sum())
    assert ex.cache_size == 2
    mean = sx.Exec(jnp.mean, ("s",), buckets=BUCKETS)
    lists = elements.map(lambda e: e["x"]).batch(3, batch_fn=list)
    found = [float(x) for examples in lists for x in mean.map(examples)]
    assert_close(found, [float(ones(n).mean()) for n in lengths])


OPTIMIZER = optax.adam(1e-2)


def step(params: Any, state: Any, x: Any) -> Any:
    value, gradient = jax.value_and_grad(lambda p: ((x @ p["w"]) ** 2).mean())(params)
    updates, state = OPTIMIZER.update(gradient, state)
    return optax.apply_updates(params, updates), state, value


def test_what_a_ragged_step_made_is_restored_and_goes_on(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    ex = sx.Exec(step, (None, None, "b, 3"), buckets=BUCKETS, donate_argnums=(0, 1))
    params = {"w": jnp.ones((3, 2))}
    state = OPTIMIZER.init(params)
    for n in SIZES:
        params, state, _ = ex(params, state, batch(n))
    with ocp.StandardCheckpointer() as checkpoints:
        checkpoints.save(tmp_path / "one", (params, state))
        checkpoints.wait_until_finished()
        shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, (params, state))
        restored = checkpoints.restore(tmp_path / "one", shapes)
    assert_close(restored, (params, state))
    ex.clear()
    for n in (3, 4):  # what is restored stands on a device on purpose, and so do its successors
        restored = ex(*restored, batch(n))[:2]
        params, state = jax.jit(step)(params, state, batch(n))[:2]
    assert_close(restored, (params, state))
    assert ex.cache_size == 1


def test_a_module_of_nnx_takes_what_was_saved_without_another_graph(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")

    def train(model: Any, optimizer: Any, x: Any) -> Any:
        value, gradient = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
        optimizer.update(model, gradient)
        return value

    def made(seed: int) -> Any:
        model = nnx.Linear(3, 2, rngs=nnx.Rngs(seed))
        return model, nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)

    ex, (old, new) = sx.Exec(train, (None, None, "b, 3"), buckets=BUCKETS), (made(0), made(1))
    ex(*old, batch(3))
    with ocp.StandardCheckpointer() as checkpoints:
        checkpoints.save(tmp_path / "one", nnx.state(old))
        checkpoints.wait_until_finished()
        nnx.update(new, checkpoints.restore(tmp_path / "one", nnx.state(new)))
    assert_close(nnx.state(new), nnx.state(old))
    assert_close(ex(*new, batch(4)), ex(*old, batch(4)))
    assert_close(nnx.state(new), nnx.state(old))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_a_tokenizer_makes_runs_as_a_dictionary_and_as_examples():
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: n for n, word in enumerate("[PAD] a quick brown fox the dog".split())}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[PAD]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=model, pad_token="[PAD]")
    table = np.random.default_rng(0).normal(size=(len(words), 4)).astype(np.float32)

    def pooled(table: Any, batch: Any) -> Any:  # the mask is between rows of one batch
        mask = batch["attention_mask"][..., None]
        return (jnp.asarray(table)[batch["input_ids"]] * mask).sum(1) / mask.sum(1)

    spec = {"input_ids": "b, s", "attention_mask": "b, s"}
    ex = sx.Exec(pooled, (None, spec), buckets=BUCKETS)
    mean = sx.Exec(lambda t, ids: jnp.asarray(t)[ids].mean(axis=0), (None, "s"), buckets=BUCKETS)
    for texts in (["a quick brown fox", "the dog"], ["a fox", "the quick dog", "dog"]):
        encoded = tokenizer(texts, padding=True, return_tensors="np")
        batch = {name: encoded[name] for name in spec}
        got = ex(table, batch)
        assert_close(got, pooled(table, batch))
        ids = [np.asarray(one) for one in tokenizer(texts)["input_ids"]]
        assert_close(np.stack(mean.map(table, ids)), np.asarray(got))
    assert ex.cache_size == 1
