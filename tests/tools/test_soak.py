"""The soak finds what is wrong: an answer, an error that nobody promised, a stuck thread."""

import dataclasses
import importlib.util
import json
import os
import signal
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.__main__ import main
from shapeexec.masking import _registry
from shapeexec.tools.soaking import _run, _traffic, _watch
from shapeexec.tools.soaking._compare import Expected, WrongAnswerError, check, expected, jitted
from shapeexec.tools.soaking._faults import Faults
from shapeexec.tools.soaking._models import MODELS
from shapeexec.tools.soaking._outcome import Soak
from shapeexec.tools.soaking._report import SoakReport
from shapeexec.tools.soaking._services import WAYS, services
from shapeexec.tools.soaking._traffic import OPERATIONS, Traffic, shapes_of
from shapeexec.tools.soaking._watch import Sample, growth
from tests.execution.support import refused
from tests.tools.soaking import (
    BY_NAME,
    BY_WAY,
    RAGGED,
    SIZES,
    at,
    by_name,
    drawn,
    served,
    soak,
)


@pytest.mark.parametrize("model", [one for one in MODELS if one.numpy], ids=by_name)
@pytest.mark.parametrize("sizes", [{"b": 3, "s": 10}, {"b": 1, "s": 21}, {"b": 1, "s": 1}], ids=str)
def test_numpy_tells_what_the_plain_function_does(model, sizes):
    args = at(model, **{symbol: sizes[symbol] for symbol in model.symbols}).arguments(1)
    check(jitted(model)(*args), expected(model, args))


def test_without_numpy_plain_jax_tells_what_is_right():
    shape = at(BY_NAME["examples"], s=3)
    kept = Expected()
    for variant in (1, 0, 1):
        check(shape.model.fn(*shape.arguments(variant)), kept.of(shape, variant))


def test_there_are_as_many_shapes_as_asked_for_and_draws_follow_from_the_seed():
    shapes = shapes_of(MODELS, seed=3, count=500)
    assert sum(map(len, shapes.values())) == 500
    assert len({shape for known in shapes.values() for shape in known}) == 500
    assert shapes == shapes_of(MODELS, seed=3, count=500)
    every = services(Faults(0, {}), Path(os.devnull))
    first, again = (Traffic(3, every, shapes, Expected()) for _ in range(2))
    draws = [first.draw(thread, n) for thread in (0, 1) for n in range(400)]
    assert draws == [again.draw(thread, n) for thread in (0, 1) for n in range(400)]
    assert {draw.operation for draw in draws} == OPERATIONS.keys()
    assert {draw.service.name for draw in draws} == {service.name for service in every}
    assert "seed 3, thread 1, call 399" in str(draws[-1])


@pytest.mark.parametrize("way", WAYS, ids=by_name)
@pytest.mark.parametrize("name", ["examples", "decode"])
@pytest.mark.filterwarnings("ignore:shapeexec. . graphs are not saved:RuntimeWarning")
def test_each_operation_is_right_in_each_way(name, way, tmp_path):
    model = BY_NAME[name]
    service, traffic, _ = served(model=model, way=way.name, directory=tmp_path)
    small, large = at(model, s=3), at(model, s=33)
    if way.is_warmed:
        service.warm_up(small.arguments(0))
    for operation in service.operations:
        if not (operation == "map" and way.refuses):
            traffic.do(drawn(service, operation, small, at(model, s=5)))
    large_call = drawn(service, "call", large)
    if way.refuses:
        with pytest.raises(sx.FrozenError) as caught:
            traffic.do(large_call)
        assert _traffic.is_promised(large_call, caught.value, was_warm=True)
        own = drawn(service, "call", small)
        assert not _traffic.is_promised(own, caught.value, was_warm=True)
        assert _traffic.is_promised(own, caught.value, was_warm=False)
    else:
        traffic.do(large_call)
    service.run.clear()  # what is made in other threads is not for the next test
    assert service.run.stats.differences == 0


def test_a_soak_of_all_that_is_right_finds_nothing(tmp_path, capsys):
    file, plot = tmp_path / "a" / "soak.json", tmp_path / "b" / "soak.png"
    names = ["--models", "sizes, guards", "--ways", "plain,few graphs,exact memory"]
    numbers = ["--minutes", "0.1", "--threads", "4", "--seed", "5", "--shapes", "30"]
    command = ["soak", *names, *numbers, "--json", str(file)]
    if importlib.util.find_spec("matplotlib"):
        command += ["--plot", str(plot)]
    assert main(command) == 0
    record = json.loads(file.read_text())
    assert record["command"] == " ".join(["python -m shapeexec", *command])
    assert {"cpu", "cores", "device", "python", "jax", "shapeexec"} <= record["machine"].keys()
    assert (record["status"], record["threads"], record["seed"]) == (0, 4, 5)
    assert (record["wrong_answers"]["count"], record["wrong_faults"]["count"]) == (0, 0)
    assert record["books"] == record["stalls"] == []
    assert record["calls"]["call"] > 0
    assert record["graphs"]["compiles"] > 0
    assert [phase["name"] for phase in record["phases"]] == ["warm-up", "churn", "steady"]
    assert len(record["samples"]) > 5
    assert plot.exists() == ("--plot" in command)
    text = capsys.readouterr().out
    for part in ("0 wrong answers, 0 wrong faults", "MiB/10,000 calls", "the longest call took"):
        assert part in text


@pytest.mark.slow
def test_the_function_finds_what_the_command_writes(tmp_path):
    file, told = tmp_path / "soak.json", []
    numbers = ["--minutes", "0.05", "--threads", "2", "--shapes", "5"]
    names = ["--models", "sizes", "--ways", "plain"]
    assert main(["soak", *numbers, *names, "--json", str(file)]) == 0
    report = sx.tools.soak(
        minutes=0.05, threads=2, shapes=5, models=["sizes"], ways=["plain"], tell=told.append
    )
    assert isinstance(report, sx.tools.SoakReport)
    assert report.status == 0
    written, own = json.loads(file.read_text()), json.loads(json.dumps(report.to_dict()))
    assert written.pop("command").startswith("python -m shapeexec soak")
    assert list(written) == list(own)
    same = ("tool", "seed", "threads", "shapes", "status", "books", "stalls", "wrong_answers")
    assert [written[name] for name in same] == [own[name] for name in same]
    assert str(report).endswith("0 wrong answers, 0 wrong faults, 0 wrong counts, 0 stalls")


@pytest.mark.parametrize(
    ("given", "what", "fix"),
    [
        ({"minutes": 0.0}, "minutes=0.0 is not a number above 0 and up to 1,000,000", "minutes=10"),
        ({"minutes": 1e7}, "minutes=10000000.0 is not a number above 0", "minutes=10"),
        ({"stall": 0.0}, "stall=0.0 is not a number above 0", "stall=120"),
        ({"threads": -1}, "threads=-1 is not an integer >= 1.", "threads=32"),
        ({"shapes": 0}, "shapes=0 is not an integer >= 9.", "shapes=500"),
        ({"seed": -1}, "seed=-1 is not an integer >= 0.", "seed=0"),
        ({"models": ["size"]}, "models: there is no 'size'.", "choose from pooled, gradient"),
        ({"ways": ["plain", "all"]}, "ways: there is no 'all'.", "choose from plain, quick"),
        ({"ways": []}, "ways=(): nothing would run.", "one or more, or leave ways out"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_told_with_a_fix(given, what, fix, capsys):
    ((option, value),) = given.items()
    with refused(sx.ConfigError, what, fix) as caught:
        sx.tools.soak(**given)
    assert caught.value.option == option
    text = (",".join(value) or "none") if isinstance(value, list) else str(value)
    assert main(["soak", f"--{option}", text]) == 2
    told = capsys.readouterr().err
    assert f"ConfigError: {what}" in told
    assert f"Fix:   {fix}" in told


@pytest.mark.parametrize(
    ("given", "what", "fix"),
    [
        ({"models": "sizes"}, "models='sizes' is not a list of names.", "models=['sizes']"),
        ({"ways": 3}, "ways=3 is not a list of names.", 'ways=["name"]'),
        ({"ways": [3]}, "ways=[3] is not a list of names.", 'ways=["name"]'),
        ({"threads": 1.5}, "threads=1.5 is not an integer >= 1.", "threads=32"),
        ({"minutes": "1"}, "minutes='1' is not a number above 0", "minutes=10"),
        ({"minutes": True}, "minutes=True is not a number above 0", "minutes=10"),
        ({"stall": float("nan")}, "stall=nan is not a number above 0", "stall=120"),
    ],
    ids=str,
)
def test_what_a_command_line_cannot_say_is_refused_too(given, what, fix):
    with refused(sx.ConfigError, what, fix):
        sx.tools.soak(**given)


def test_a_fault_that_does_not_exist_is_refused():
    with refused(sx.ConfigError, "there is no fault 'fire'", "compile: XLA fails"):
        Faults(0, {"fire": 1})


@pytest.mark.parametrize("threads", ["--threads=x", "--minutes=x"])
def test_what_is_no_number_is_refused_by_argparse(threads, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["soak", threads])
    assert caught.value.code == 2
    assert "invalid" in capsys.readouterr().err


# What is wrong is found


def test_a_wrong_answer_is_found_with_its_model_sizes_options_and_seed(capsys):
    broken = dataclasses.replace(SIZES, fn=lambda x: (x.sum(), x * 1.001))
    outcome = soak(models=[dataclasses.replace(broken, name="broken")])
    assert outcome.status == 1
    assert outcome.findings.counts["wrong"] > 0
    first = outcome.findings.wrong[0]
    assert "of broken/plain at broken s=" in first.call
    assert "(seed 0, thread " in first.call
    assert "instead of" in first.told
    text = str(SoakReport({}, outcome))
    assert f"WRONG ANSWER: {first.call}" in text


def test_a_rule_without_its_mask_is_found(monkeypatch):
    rule = _registry.RULES["reduce_min"]
    unmasked = lambda ctx, x, **params: ctx.bind(x, **params)
    monkeypatch.setitem(_registry.RULES, "reduce_min", dataclasses.replace(rule, apply=unmasked))
    outcome = soak(models=[RAGGED], minutes=0.1)
    assert outcome.findings.counts["wrong"] > 0


@pytest.mark.slow
def test_an_error_that_nobody_promised_is_found_with_its_traceback():
    def fails(x):
        raise ArithmeticError("of the function")

    outcome = soak(models=[dataclasses.replace(SIZES, fn=fails, numpy=SIZES.numpy)])
    assert outcome.status == 1
    assert "ArithmeticError: of the function" in outcome.findings.faults[0].told
    assert "Traceback" in outcome.findings.faults[0].told


def test_a_call_that_is_not_refused_is_found():
    service, traffic, _ = served(way="error")
    service.run = sx.Exec(SIZES.fn, SIZES.specs)
    with pytest.raises(_traffic.NotRefusedError, match="not refused, with the result"):
        traffic.do(drawn(service, "call", at(SIZES, s=33)))


def test_a_count_that_is_wrong_is_found():
    service, traffic, _ = served()
    traffic.do(drawn(service, "call", at(SIZES, s=3)))
    assert _run._books([service]) == []
    service.run(np.ones(3, np.float32))
    assert _run._books([service]) == ["sizes/plain: calls that returned: 1, not 2"]


def test_a_stall_is_found_and_all_stacks_are_told(monkeypatch, capfd):
    go_on = threading.Event()

    def stuck(x):
        go_on.wait(60)
        return SIZES.fn(x)

    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    model = dataclasses.replace(SIZES, name="stuck", fn=stuck)
    monkeypatch.setattr("shapeexec.tools.soaking._main.MODELS", [model])
    try:
        stall = ["--stall", "0.5"]
        assert main(["soak", "--minutes", "1", "--threads", "2", "--ways", "plain", *stall]) == 2
    finally:
        go_on.set()
    assert ended == [2]
    told = capfd.readouterr()
    assert "in stuck" in told.err
    assert "STALL: " in told.out
    assert "of stuck/plain at stuck s=" in told.out


def test_an_interrupt_ends_it_early_with_the_report(monkeypatch):
    lines = []

    def tell(line):
        lines.append(line)

    monkeypatch.setattr(_run, "_LINES", 0.5)
    watched = _run._watched

    def interrupted(threads, tell):
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.signal(signal.SIGINT, before)
        return watched(threads, tell)

    monkeypatch.setattr(_run, "_watched", interrupted)
    given = Soak(minutes=10, threads=2, models=[SIZES], ways=[BY_WAY["plain"]], rates={})
    outcome = _run.run(given, tell)
    assert outcome.is_interrupted
    assert outcome.status == 0
    assert lines == ["interrupted"]
    assert str(SoakReport({}, outcome)).endswith("0 wrong counts, 0 stalls")


@pytest.mark.slow
@pytest.mark.parametrize("is_installed", [True, False])
def test_a_report_tells_that_no_metrics_were_scraped(is_installed, monkeypatch):
    if not is_installed:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    report = SoakReport({}, soak())
    assert report.is_scraped == report.to_dict()["is_scraped"] == is_installed
    told = "no metrics were scraped: pip install prometheus-client"
    assert (told in str(report).splitlines()) != is_installed


# What is measured


def test_a_leak_is_told_in_bytes_for_each_call():
    def sample(at, mib):
        return Sample(float(at), "steady", 100 * at, 5, 1, mib)

    leak = [sample(at, 500 + 0.25 * at) for at in range(20)]
    assert growth(leak, "calls") == pytest.approx(0.0025)
    assert growth(leak, "seconds") == pytest.approx(0.25)
    assert growth(leak, "compiles") is None
    assert growth(leak[:2], "calls") is None


def test_the_longest_call_is_known_while_it_runs_and_after():
    watch = _watch.Watch(2)
    watch.begin(1, "slow")
    (running,) = watch.running()
    assert (running.call, watch.longest().call) == ("slow", "slow")
    watch.end(1, "call")
    assert watch.running() == []
    assert watch.longest().call == "slow"
    assert watch.counts == {"call": 1}


def test_results_are_compared_leaf_by_leaf():
    want = (np.float32([1, 2]), np.int32(3))
    check((jnp.float32(jnp.array([1, 2])), jnp.int32(3)), want)
    for got in ((want[0],), (want[0] + 1e-2, want[1]), (want[0], np.int32(4)), (want[0][:1], 3)):
        with pytest.raises(WrongAnswerError):
            check(got, want)
