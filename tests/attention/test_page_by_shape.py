"""The table of docs/attention.md that tells the back end by shape says what is chosen."""

import dataclasses
import pathlib
import re

import numpy as np
import pytest

import shapeexec as sx
from shapeexec.attention.backends import _device
from shapeexec.attention.backends._choose import choose
from shapeexec.attention.masks import Dense
from tests.attention.test_choose import CALL

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "attention.md"
SECTION = PAGE.read_text().partition("### By shape")[2].partition("\n## ")[0]
ROWS = {
    found[1]: found[2].replace("`", "").split(" | ")
    for found in re.finditer(r"^\| (?!---|call)(.*?) \| (`.*) \|$", SECTION, re.MULTILINE)
}
LARGE = dataclasses.replace(
    CALL,
    batch=4,
    query_size=4096,
    key_size=4096,
    query_heads=16,
    key_heads=16,
    head_size=128,
    value_size=128,
    dtype="bfloat16",
)
IDS = np.arange(4096, dtype=np.int32) // 1000
TILES = sx.BlockMask(np.full((32, 32), 2, np.uint8), (128, 128), (4096, 4096))


def heads(size):
    return {"head_size": size, "value_size": size}


def length(size):
    return {"query_size": size, "key_size": size}


FULL, CAUSAL, WINDOW = sx.Full(), sx.Causal(), sx.SlidingWindow(1023)
OF_BIAS = {"bias": (1, 1, 4096, 4096)}
CALLS = {
    "full or causal, heads up to 128": [
        *((FULL, heads(64)), (CAUSAL, heads(64) | length(2048))),
        *((FULL, {}), (CAUSAL, length(2048))),
        (FULL, heads(64) | length(128) | {"batch": 64, "query_heads": 16}),
        (CAUSAL, heads(64) | length(1024) | {"batch": 16, "query_heads": 8}),
        (FULL, heads(64) | length(128)),
        (CAUSAL, heads(64) | length(1920)),
        (CAUSAL, length(128)),
        (FULL, length(96)),
        (CAUSAL, heads(64) | length(64)),
        (CAUSAL, length(4000)),
        (FULL, heads(40)),
    ],
    "causal window, heads of 64 or 128": [(WINDOW, heads(64)), (WINDOW, {})],
    "valid lengths": [(CAUSAL, {"is_ragged": True}), (FULL, {"is_ragged": True} | heads(64))],
    "documents, `BlockMask`, a bool array": [
        (sx.Documents(IDS), {}),
        (TILES, {}),
        (Dense(np.ones((4096, 4096), bool)), {}),
    ],
    "1 to 16 queries against a cache": [(FULL, {"query_size": n}) for n in (1, 16)],
    "heads of 129 to 256": [(CAUSAL, heads(136)), (CAUSAL, heads(256))],
    "`ALiBi`, `RelativeBias`, or a bias that needs no gradient": [
        (CAUSAL, {"bias": sx.ALiBi}),
        (CAUSAL, {"bias": sx.RelativeBias}),
        (CAUSAL, OF_BIAS),
    ],
    "a bias array with its gradient": [(CAUSAL, OF_BIAS | {"bias_gradient": True})],
    "`RelativeBias` with its gradient": [
        (CAUSAL, {"bias": sx.RelativeBias, "bias_gradient": True})
    ],
    "f32": [(CAUSAL, {"dtype": "float32"})],
    "heads above 256, or f64": [(CAUSAL, heads(264)), (CAUSAL, {"dtype": "float64"})],
}


def test_the_table_has_these_rows():
    assert ROWS.keys() == CALLS.keys()


@pytest.mark.parametrize("name", CALLS)
def test_each_row_tells_what_is_chosen(name, device):
    device(_device.HOPPER)
    forward, backward = ROWS[name]
    for mask, changes in CALLS[name]:
        chosen = []
        for is_backward, deterministic in ((False, True), (True, True), (True, False)):
            asked = {"is_backward": is_backward, "deterministic": deterministic} | changes
            asked["bias_gradient"] = is_backward and changes.get("bias_gradient", False)
            call = dataclasses.replace(LARGE, **asked)
            backend = choose(None, call, mask=mask, platform="cuda")
            chosen.append(type(backend).__module__.split(".")[-1])
        assert chosen == [forward, backward, backward]
