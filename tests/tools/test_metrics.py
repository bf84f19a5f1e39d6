"""What Prometheus scrapes of an Exec are its stats, and the latencies of its calls."""

import gc
import sys
import urllib.request

import jax.numpy as jnp
import prometheus_client
import pytest

import shapeexec as sx
from tests.execution.support import ones, refused


def total(x):
    return jnp.sum(x)


@pytest.fixture
def registry():
    return prometheus_client.CollectorRegistry()


def metrics_of(run, registry, **options):
    """A function of a name and labels, and what ends the metrics."""
    stop = sx.prometheus_metrics(run, registry=registry, **options)

    def sample(metric, **labels):
        return registry.get_sample_value(f"shapeexec_{metric}", {"function": "total", **labels})

    return sample, stop


def test_a_scrape_reads_the_stats_of_that_moment(registry):
    run = sx.Exec(total, ("s",))
    sample, _ = metrics_of(run, registry)
    assert sample("calls_total", result="hit") == 0
    run(ones(5)), run(ones(7)), run(ones(9))
    assert sample("calls_total", result="hit") == 1
    assert sample("calls_total", result="miss") == 2
    assert sample("events_total", event="compiled") == run.stats.compiles == 2
    assert sample("elements_total", of="valid") == 21
    assert sample("elements_total", of="bucket") == 32
    assert sample("graphs") == 2
    assert sample("device_bytes") == run.stats.device_bytes
    assert sample("graph_seconds_total", part="compile") == run.stats.compile_seconds
    assert sample("call_seconds_count") == 3


def test_calls_at_exact_sizes_are_counted_by_symbol(registry):
    run = sx.Exec(lambda x: jnp.stack([row * 2 for row in x.T]), ("b, s",), on_unsupported="exact")
    sx.prometheus_metrics(run, registry=registry, name="stacked")
    run(ones(2, 3))
    labels = {"function": "stacked", "symbol": "s"}
    assert registry.get_sample_value("shapeexec_exact_calls_total", labels) == 1


def test_a_scrape_over_http_has_each_exec_under_its_name_and_each_metric_once(registry):
    first, second = sx.Exec(total, ("s",)), sx.Exec(total, ("s",))
    sx.prometheus_metrics(first, registry=registry)
    sx.prometheus_metrics(second, registry=registry, name="other")
    first(ones(3))
    server, thread = prometheus_client.start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert lines.count("# TYPE shapeexec_calls_total counter") == 1
    assert 'shapeexec_calls_total{function="total",result="miss"} 1.0' in lines
    assert 'shapeexec_calls_total{function="other",result="miss"} 0.0' in lines


def test_an_exec_that_stops_or_is_gone_is_scraped_no_more(registry):
    run = sx.Exec(total, ("s",))
    sample, stop = metrics_of(run, registry)
    run(ones(3))
    stop()
    run(ones(3))
    assert sample("graphs") is None
    assert sample("call_seconds_count") == 1
    sample, _ = metrics_of(run, registry)  # its name is free again
    assert sample("graphs") == 1
    del run
    gc.collect()
    assert sample("graphs") is None


@pytest.mark.parametrize(
    ("make", "what", "fix"),
    [
        (lambda: total, "is not an Exec", "sx.Exec(fn, ...)"),
        (lambda: sx.Exec(total, ("s",)), "there are metrics of 'total'", 'name="..."'),
    ],
)
def test_what_cannot_be_exported_is_told(registry, make, what, fix):
    kept = sx.Exec(total, ("s",))
    sx.prometheus_metrics(kept, registry=registry)
    with refused(sx.ConfigError, what, fix):
        sx.prometheus_metrics(make(), registry=registry)


def test_without_the_client_it_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with refused(sx.ConfigError, "not installed", "pip install prometheus-client"):
        sx.prometheus_metrics(sx.Exec(total, ("s",)))
