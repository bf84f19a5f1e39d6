"""Cost models of attention: what its masks and pages leave to be computed."""

import numpy as np

import shapeexec as sx


def test_attention_is_counted_by_the_tiles_of_its_mask():
    def attend(x):  # x: f32[b, s, 2, 8]
        return sx.dot_product_attention(x, x, x, mask=sx.SlidingWindow(128))

    found = sx.Exec(attend, ("b, s, 2, 8",)).cost_model(np.ones((1, 5, 2, 8), np.float32))
    tiles = 2 * 10 - 1  # the diagonal and the one before it, in 10 rows of tiles
    assert found(b=1, s=1280).flops == 2 * 2 * 2 * 8 * 128 * 128 * tiles
    assert found(b=3, s=100).flops == 3 * 2 * 2 * 2 * 8 * 100 * 100


def test_attention_under_arrays_is_counted_by_the_density_that_is_expected():
    expected = {"deterministic": False, "expected_density": 0.3}

    def attend(x, ids):  # x: f32[b, s, 2, 8], ids: i32[b, s]
        x = sx.dot_product_attention(x, x, x, mask=sx.SlidingWindow(128), **expected)
        return sx.dot_product_attention(x, x, x, mask=sx.Documents(ids), **expected)

    run = sx.Exec(attend, ("b, s, 2, 8", "b, s"))
    found = run.cost_model(np.ones((1, 5, 2, 8), np.float32), np.zeros((1, 5), np.int32))
    tiles = 2 * 10 - 1 + 100 / 4  # known of the window
    assert found(b=1, s=1280).flops == 2 * 2 * 2 * 8 * 128 * 128 * tiles


def test_attention_to_pages_is_counted_by_the_positions_of_an_example():
    def attend(x, keys, pages):  # x: f32[b, 1, 2, 8], keys: f32[64, 16, 2, 8], pages: i32[b, n]
        return sx.dot_product_attention(x, keys, keys, pages=pages)

    args = np.ones((1, 1, 2, 8), np.float32), np.ones((64, 16, 2, 8), np.float32)
    run = sx.Exec(attend, ("b, 1, 2, 8", None, "b, n"))
    found = run.cost_model(*args, np.ones((1, 3), np.int32))
    assert found(b=3, n=5).flops == 3 * 2 * 2 * 2 * 8 * 5 * 16
