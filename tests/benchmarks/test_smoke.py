"""Each benchmark runs and says what it measured; how fast it was is not a test's business."""

import functools
import importlib
import json

import pytest

from benchmarks import run_all
from tests.marks import marked_slow
from tests.tolerance import SUMS, tolerance

SLOW = {
    "cold_stream",
    "attention_graphs",
    "command_buffers",
    "cost_model",
    "graph_cost",
    "latency",
    "loops",
    "masks",
    "restart",
    "tracing",
}
ALONE = ("attention_graphs", "command_buffers", "cost_model", "graph_cost", "latency")
"""Those that `run_all` leaves out."""
LENGTHS = "kind,tokens,count\ncontext,0,1\ncontext,3,2\ncontext,90,1\ngenerated,7,4\n"


@pytest.fixture
def lengths(tmp_path):
    for service in ("code", "conv"):
        (tmp_path / f"azure_llm_2023_{service}_lengths.csv").write_text(LENGTHS)
    return tmp_path


@pytest.fixture(scope="module")
def record_of(tmp_path_factory):
    """The record of a benchmark, which runs once."""

    @functools.cache
    def record(name):
        path = tmp_path_factory.mktemp(name) / "result.json"
        importlib.import_module(f"benchmarks.{name}").main(["--tiny", "--json", str(path)])
        return json.loads(path.read_text())

    return record


every_benchmark = pytest.mark.parametrize("name", marked_slow((*run_all.BENCHMARKS, *ALONE), SLOW))


@every_benchmark
def test_a_benchmark_writes_what_it_measured(name, record_of):
    record = record_of(name)
    assert record["benchmark"] == name
    assert record["figures"]
    assert record["claims"]
    assert {"cpu", "cores", "python", "jax"} <= record["machine"].keys()


@every_benchmark
def test_results_in_a_benchmark_differ_by_rounding(name, record_of):
    for case in record_of(name)["figures"].values():
        assert (case.get("largest_difference") or 0) < tolerance("float32", loose=SUMS)


def test_claims_on_compilations_hold_at_every_size(record_of):
    assert all(claim["holds"] for claim in record_of("compilations")["claims"])


@pytest.mark.slow
def test_masks_by_rule_are_as_few_as_by_hand(record_of):
    missed = {claim["text"] for claim in record_of("masks")["claims"] if not claim["holds"]}
    # The gradient of a transformer has more, and docs/adr/0008 says why.
    assert all("transformer" in text for text in missed if "gradient, selects" in text)
    assert not [text for text in missed if "forward, selects" in text]


@pytest.mark.slow
def test_the_rate_of_a_cold_stream_has_a_spread(record_of):
    for case in record_of("cold_stream")["figures"].values():
        rate = case["cold_over_exact"]
        assert rate["least"] <= rate["median"] <= rate["most"]


@pytest.mark.parametrize(("part", "word"), [("calls", "output"), ("models", "passages")])
def test_hit_overhead_measures_one_table_and_shows_each_row_when_measured(part, word, capsys):
    hit_overhead = importlib.import_module("benchmarks.hit_overhead")
    report = hit_overhead.main(["--tiny", "--only", part])
    (table,) = report.tables
    assert all(word in case for case in report.figures)
    before_the_table, _ = capsys.readouterr().out.split(table.title)
    lines = before_the_table.splitlines()
    for row in table.rows:
        assert "; ".join(cell for cell in row if cell) in lines


def test_ladders_gives_both_scales_of_padding(lengths, tmp_path):
    ladders = importlib.import_module("benchmarks.ladders")
    report = ladders.main(["--data", str(lengths), "--json", str(tmp_path / "result.json")])
    pow2 = report.figures["code, context"]["Pow2()"]
    assert pow2["valid_tokens"] == 2 * 3 + 90
    assert pow2["padding_per_valid"] == pytest.approx((2 * 1 + 38) / 96)
    assert pow2["padding_per_padded"] == pytest.approx((2 * 1 + 38) / (2 * 4 + 128))
    assert report.figures["conv, generated"]["Ladder.fit, 16"]["padding_per_valid"] == 0


def test_a_ladder_that_learns_is_compared_with_the_best_one(lengths):
    report = importlib.import_module("benchmarks.adaptive").main(["--data", str(lengths)])
    assert {"code, context", "conv then code, context"} <= report.figures.keys()
    assert all(claim.measured >= 0 for claim in report.claims)
    for runs in report.figures.values():
        assert all(one["compiles"] >= one["best_compiles"] for one in runs)


def test_fitted_buckets_never_cost_more_than_other_ladders(lengths, tmp_path):
    fitting = importlib.import_module("benchmarks.fitting")
    plot = tmp_path / "fitting.png"
    report = fitting.main(["--data", str(lengths), "--tiny", "--plot", str(plot)])
    assert plot.stat().st_size
    for by_graphs in report.figures.values():
        for by_strategy in by_graphs.values():
            least = min(one["seconds"] for one in by_strategy.values())
            assert by_strategy["sx.fit"]["seconds"] == pytest.approx(least)
            assert by_strategy["sx.fit"]["least_waste"] <= by_strategy["sx.fit"]["waste"]


def test_tiles_are_compared_on_each_axis():
    figures = importlib.import_module("benchmarks.tiles").main(["--tiny"]).figures
    for axis in ("rows", "columns", "summed"):
        found = figures[f"float32, {axis}"]
        assert [*found] == ["1", "2", "4", "8", "16"]
        assert all(share > 0 for share in found.values())
