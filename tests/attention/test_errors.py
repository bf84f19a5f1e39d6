"""Every bad call is an error that names the argument and the way out."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx

Q, K = jnp.ones((2, 5, 4, 8)), jnp.ones((2, 6, 2, 8))
GOOD = {"query": Q, "key": K, "value": K}

BAD = {
    "axes": ({"query": Q[0, 0]}, r"query is f32\[4,8\], with 2 axes", "without the batch"),
    "integers": ({"query": Q.astype(int)}, "query is int32, not a floating dtype", "astype"),
    "dtypes": (
        {"key": K.astype(np.float16)},
        "key is float16, but query is float32",
        "one other dtype",
    ),
    "batch": ({"value": K[:1]}, "value has 1 examples, but query has 2", "one batch"),
    "lengths differ": ({"value": K[:, :5]}, "key and value differ in length", r"\[B, S, K, V\]"),
    "head sizes": (
        {"query": Q[..., :7]},
        "heads of size 8, but query has heads of size 7",
        "one head size",
    ),
    "heads": ({"query": Q[:, :, :3]}, "3 heads, not a multiple of the 2", "same number"),
    "mask of numbers": ({"mask": jnp.ones((1, 1, 5, 6))}, "mask is f32.*, not bool", "mask != 0"),
    "mask's shape": ({"mask": jnp.ones((1, 3, 5, 6), bool)}, "does not broadcast", "4 axes"),
    "mask's axes": ({"mask": jnp.ones((1, 1, 1, 5, 6), bool)}, "does not broadcast", "4 axes"),
    "documents": ({"mask": sx.Documents(np.zeros((2, 7), int))}, "Documents", "B"),
    "bias's shape": ({"bias": jnp.ones((1, 1, 5, 5))}, "bias is .* does not broadcast", "4 axes"),
    "bias of booleans": ({"bias": jnp.ones((5, 6), bool)}, "cannot be added", "mask="),
    "modifier": ({"bias": sx.ALiBi(jnp.ones(3))}, "ALiBi.slopes", "N"),
    "lengths' dtype": ({"query_seq_lengths": jnp.ones(2)}, "query_seq_lengths is f32", "int32"),
    "lengths' shape": (
        {"key_value_seq_lengths": jnp.ones(3, np.int32)},
        r"key_value_seq_lengths is i32\[3\], not i32\[2\]",
        "each example",
    ),
    "window": ({"local_window_size": (1, 2, 3)}, "local_window_size=", "keys before"),
    "scale": ({"scale": np.ones(2)}, r"scale has shape \(2,\), not \(\)", "one number"),
    "dropout": ({"dropout_rate": 1}, "dropout_rate=1 is not a number in", "=0.1"),
    "no rate": ({"dropout_rate": "0.1"}, "dropout_rate='0.1' is not a number in", "=0.1"),
    "no key": (
        {"dropout_rate": 0.1},
        "dropout_key is None, but dropout_rate=0.1 needs a key",
        "jax.random.key",
    ),
    "a class": ({"mask": sx.Causal}, "mask is the class Causal, not an array", "Causal\\(\\) &"),
    "a list of masks": ({"mask": [sx.Causal(), sx.Causal()]}, "mask is of type list", "&"),
    "a function": ({"mask": lambda b, h, q, k: k <= q}, "mask is of type function", "bool array"),
    "a modifier as mask": ({"mask": sx.ALiBi.for_heads(4)}, "mask is of type ALiBi", "bool array"),
    "a mask's name": ({"mask": "causal"}, "mask is of type str", "bool array"),
    "bias's class": ({"bias": sx.ALiBi}, "bias is the class ALiBi", "ALiBi\\(slopes\\)"),
    "a mask as bias": ({"bias": sx.Causal()}, "bias is of type Causal", "an array"),
    "nothing": ({"query": None}, "query is of type NoneType, not an array", "floating"),
    "lengths' name": ({"query_seq_lengths": "5"}, "query_seq_lengths is of type str", "int32"),
    "scale's name": ({"scale": "x"}, "scale='x' is not a real number", "0.125"),
    "complex scale": ({"scale": 1j}, "scale=1j is not a real number", "0.125"),
    "window's numbers": ({"local_window_size": ("x", 1)}, "left='x' is not an array", "int"),
    "window's floats": ({"local_window_size": (1.5, 1)}, "left is float", "int"),
    "keys": (
        {"dropout_rate": 0.1, "dropout_key": jax.random.split(jax.random.key(0), 2)},
        "is not a single key",
        "jax.random.key",
    ),
    "a seed": ({"dropout_rate": 0.1, "dropout_key": 3}, "dropout_key=3 is not a single", "key"),
    "evaluation": (
        {"dropout_rate": 0.1, "dropout_key": jax.random.key(0), "deterministic": True},
        "deterministic=True with dropout_rate=0.1",
        "flax_attention_fn",
    ),
    "no share": (
        {"expected_density": 0},
        r"expected_density=0 is not a number in \(0, 1\]",
        "=0.25",
    ),
    "per cent": ({"expected_density": 25}, "expected_density=25 is not a number", "=0.25"),
    "no finite share": ({"expected_density": np.nan}, "expected_density=nan is not", "or None"),
    "a share's name": ({"expected_density": "1"}, "expected_density='1' is not", "from_mask"),
    "a flag as share": ({"expected_density": True}, "expected_density=True is not", "=0.25"),
    "a share of an array": (
        {"expected_density": jnp.float32(0.5)},
        r"expected_density=Array\(0.5.* is not a number",
        "density",
    ),
    "implementation": (
        {"implementation": "cuda"},
        "implementation='cuda' is not the name of a back end",
        "xla",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_argument_is_named(name):
    bad, what, fix = BAD[name]
    with pytest.raises(sx.ConfigError, match=what) as caught:
        sx.dot_product_attention(**(GOOD | bad))
    assert isinstance(caught.value, ValueError)
    assert caught.value.fix
    assert re.search(fix, caught.value.fix)
    assert caught.value.option


def test_a_back_end_says_why_it_cannot():
    with pytest.raises(sx.BackendError, match="implementation='cudnn' cannot run") as caught:
        sx.dot_product_attention(**GOOD, implementation="cudnn")
    assert caught.value.why == "cudnn because it needs an NVIDIA GPU, and this is cpu"
    assert caught.value.reasons == {"cudnn": "it needs an NVIDIA GPU, and this is cpu"}
    assert "(test_errors.py:" in (caught.value.where or "")
    assert "implementation=" in caught.value.fix
