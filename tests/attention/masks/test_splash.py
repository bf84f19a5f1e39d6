"""What the page for those who come from splash attention tells of its masks and scores."""

import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu import splash_attention as splash

import shapeexec as sx
from shapeexec.attention._blocks import to_dense
from tests.tolerance import assert_close

SHAPE = (5, 7)
MASKS = {
    "causal": (splash.CausalMask(SHAPE), sx.Causal()),
    "causal at the end": (splash.CausalMask(SHAPE, SHAPE[1] - SHAPE[0]), sx.Causal(align="end")),
    "full": (splash.FullMask(SHAPE), sx.Full()),
    "local": (splash.LocalMask(SHAPE, (2, 1), 0), sx.SlidingWindow(2, 1)),
    "local to one side": (splash.LocalMask(SHAPE, (None, 0), 0), sx.SlidingWindow(None)),
    "and": (
        splash.CausalMask(SHAPE) & splash.LocalMask(SHAPE, (1, None), 0),
        sx.Causal() & sx.SlidingWindow(1, None),
    ),
    "or": (
        splash.CausalMask(SHAPE) | splash.LocalMask(SHAPE, (0, 2), 0),
        sx.Causal() | sx.SlidingWindow(0, 2),
    ),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_of_splash_attention_is_the_one_that_the_page_names(name):
    theirs, ours = MASKS[name]
    np.testing.assert_array_equal(to_dense(ours, SHAPE)[0, 0], theirs[:, :])


def test_heads_segments_and_scores_of_splash_attention_are_as_the_page_says():
    random = np.random.default_rng(0)
    q, k, v = (random.normal(size=(2, length, 8)).astype(np.float32) for length in (5, 7, 7))
    own = [sx.Causal(align="end"), sx.SlidingWindow(3, 2)]
    by_head = np.concatenate([to_dense(mask, SHAPE) for mask in own], axis=1)
    ids = np.array([0, 0, 0, 1, 1]), np.array([0, 0, 0, 0, 1, 1, 1])
    masks = splash.MultiHeadMask([splash.NumpyMask(mask) for mask in by_head[0]])
    theirs = splash.make_masked_mha_reference(masks)(q, k, v, splash.SegmentIds(*ids))
    ours = sx.dot_product_attention(
        *(x.transpose(1, 0, 2)[None] for x in (q, k, v)),
        mask=sx.Documents(*ids) & by_head,
        scale=1.0,
    )
    assert_close(ours[0].transpose(1, 0, 2), theirs)
