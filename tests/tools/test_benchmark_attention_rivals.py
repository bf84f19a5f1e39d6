"""The rivals of the benchmark of attention are told the same problem, each in its own words."""

import re
import sys
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from shapeexec.tools.benchmark.attention import _serving
from shapeexec.tools.benchmark.attention._contestant import RefusalError, operands, slices
from shapeexec.tools.benchmark.attention._ours import contestants
from shapeexec.tools.benchmark.attention._problems import Pattern, Problem, pattern_of, shape_of
from shapeexec.tools.benchmark.attention._reference import check
from shapeexec.tools.benchmark.attention._run import Plan, measure
from shapeexec.tools.benchmark.attention.rivals import flash_attention_3, flex_attention, rivals

SHAPE = "2x128x4x2x16:float32"
SMALL = Pattern("window of 100", is_causal=True, window=100)


def flash_mha(q, k, v, *, is_causal, window_size):
    left, right = window_size
    window = None if left < 0 else (left, right)
    return jax.nn.dot_product_attention(q, k, v, is_causal=is_causal, local_window_size=window)


def flash_mha_varlen(q, k, v, starts, longest, *, is_causal, window_size):
    assert window_size == (-1, -1)
    assert q.ndim == 3
    assert longest == np.diff(starts).max()
    ids = np.searchsorted(starts, np.arange(len(q)), side="right")
    mask = (ids[:, None] == ids)[None, None]
    return jax.nn.dot_product_attention(q[None], k[None], v[None], mask=mask, is_causal=is_causal)


@pytest.mark.parametrize(
    "name", ["full", "causal", "documents", "window", "random50", "elements50", "alibi"]
)
def test_flash_attention_is_told_the_pattern(name, monkeypatch):
    module = SimpleNamespace(flash_mha=flash_mha, flash_mha_varlen=flash_mha_varlen)
    monkeypatch.setitem(sys.modules, "dew_flash_attn", module)
    pattern = SMALL if name == "window" else pattern_of(name)
    problem = Problem(shape_of(SHAPE), pattern)
    if name in ("random50", "elements50", "alibi"):
        with pytest.raises(RefusalError, match="neither masks by tile, nor by pair, nor biases"):
            flash_attention_3.rival.attention(problem)
        return
    attend, more = flash_attention_3.rival.attention(problem)
    q, k, v, _ = operands(problem.shape)
    check(problem, slices(problem.shape, (attend(q, k, v, *more).reshape(q.shape),)))


def decoded(monkeypatch, flash_mha):
    """The findings of `decode` that name FlashAttention, where its package has this function."""
    module = SimpleNamespace(flash_mha=flash_mha)
    monkeypatch.setitem(sys.modules, "dew_flash_attn", module)
    monkeypatch.setattr(flash_attention_3.rival, "absence", lambda: None)
    call = _serving._Call(1, 4, 256, 4, 2, 16, "end", dtype="float32")
    monkeypatch.setattr(_serving, "_ON_A_CPU", ((call,), ()))
    monkeypatch.setattr(_serving, "_PAGES", ())
    monkeypatch.setattr(_serving, "_COPIED", 2**10)
    found = [(one.case, one.meaning, one.compared) for one in _serving.decode()]
    return call.name, [one for one in found if "flash" in one[0] + one[1]]


def at_the_end(q, k, v, *, is_causal):
    assert is_causal
    keep = np.arange(k.shape[1]) - np.arange(q.shape[1])[:, None] <= k.shape[1] - q.shape[1]
    return jax.nn.dot_product_attention(q, k, v, mask=keep[None, None])


def in_splits(q, k, v, *, is_causal, num_splits=1):
    assert num_splits in (0, 1)
    return at_the_end(q, k, v, is_causal=is_causal)


def wrong(q, k, v, *, is_causal):
    return 2 * at_the_end(q, k, v, is_causal=is_causal)


def test_few_queries_stand_beside_flash_attention_whose_package_splits_no_keys(monkeypatch):
    name, found = decoded(monkeypatch, at_the_end)
    (absent, *why), (case, meaning, theirs) = found
    assert (absent, *why) == (
        "flash_attention_3, keys split",
        "its package has no split keys",
        None,
    )
    assert (case, meaning) == (name, "of flash_attention_3")
    assert theirs > 0


def test_where_the_package_splits_keys_that_is_measured_too(monkeypatch):
    name, found = decoded(monkeypatch, in_splits)
    assert [one[:2] for one in found] == [
        (name, "of flash_attention_3"),
        (name, "of flash_attention_3, keys split"),
    ]


def test_a_wrong_rival_of_few_queries_is_told_and_is_no_figure(monkeypatch):
    _, (_, (_, meaning, theirs)) = decoded(monkeypatch, wrong)
    assert re.match(r"flash_attention_3: WrongResultError: .* is off by", meaning)
    assert theirs is None


def test_a_rival_that_refuses_short_sequences_is_reported_with_its_reason(monkeypatch):
    call = _serving._Call(1, 8, 8, 2, 2, 4, "causal", dtype="float32")
    monkeypatch.setattr(_serving, "_ON_A_CPU", ((), (call,)))
    monkeypatch.setattr(_serving, "_OF_JAX", ("no such rival", "xla"))
    refused, measured, *backward = _serving.short()
    assert [one.case for one in backward] == [f"{call.name}, both"] * 2
    assert (refused.case, refused.compared) == (call.name, None)
    assert re.match("jax.nn with no such rival: ValueError: .*no such rival", refused.meaning)
    assert measured.meaning == "of jax.nn with xla"
    assert measured.compared > 0


def test_who_is_not_beside_few_queries_is_told():
    told = {one.case: one.meaning for one in _serving._absent()}
    assert told["flash_attention_3"] == "not installed (dew-flash-attn-cu13)"
    assert told["flex_attention"] == "its workers take as many queries as keys"


def test_a_mask_of_single_pairs_is_right_for_ours_and_for_rivals():
    contestants_of = {one.name: one for one in (*contestants(), *rivals())}
    who = tuple(contestants_of[name] for name in ("default", "jax_nn_xla"))
    shape, pattern = shape_of(SHAPE), pattern_of("elements50")
    for rank in (0, 1):
        plan = Plan((shape,), (pattern,), who, re.compile("both"), time.monotonic() + 3600)
        (row,) = measure(plan, rank, tell=lambda text: None)
        assert row.milliseconds, row.reason
        assert (row.tile_density, row.density) == (1, pattern.pairs(128) / 128**2)


def test_each_file_of_a_rival_is_one():
    names = [rival.name for rival in rivals()]
    assert names == ["flash_attention_3", "flex_attention", "jax_nn_cudnn", "jax_nn_xla"]


WORKER = """
import json, sys, numpy as np
from pathlib import Path
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "compile":
        q, k, v, d_out = (np.load(Path(request["operands"]) / f"{i}.npy") for i in range(4))
        if request["documents"]:
            print(json.dumps({"error": "no documents"}), flush=True)
            continue
        if request["is_causal"]:
            sys.exit("it broke")
        q, k, v = (x.view("float32")[-1, :, -n:] for x, n in ((q, 2), (k, 1), (v, 1)))
        scores = np.einsum("tnh,sh->nts", q, k[:, 0]) / 4
        if request["elements"] is not None:
            scores = np.where(np.load(request["elements"]), scores, -np.inf)
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        np.savez(request["results"], np.einsum("nts,sh->tnh", weights, v[:, 0]))
        answer = {"seconds": 1.5}
    else:
        answer = {"wall": 2.0, "device": 1.0} if request["do"] == "measure" else {}
    print(json.dumps(answer), flush=True)
"""


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("full", None),
        ("elements50", None),
        ("documents", "no documents"),
        ("causal", "it broke"),
    ],
)
def test_a_process_of_its_own_is_handed_operands_and_hands_back_results(
    pattern, told, tmp_path, monkeypatch
):
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    monkeypatch.setattr(flex_attention, "SCRIPT", worker)
    flex = flex_attention.FlexAttention()
    shape, only = shape_of(SHAPE), re.compile("forward")
    plan = Plan((shape,), (pattern_of(pattern),), (flex,), only, time.monotonic() + 3600)
    try:
        (row,) = measure(plan, 0, tell=lambda text: None)
    finally:
        flex.close()
    if told is not None:
        assert told in row.reason
        assert not row.is_failure
        return
    assert (row.milliseconds, row.wall_milliseconds, row.compile_seconds) == (1.0, 2.0, 1.5)
    assert row.clock == "device"
