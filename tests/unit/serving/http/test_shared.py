"""Counters in memory that processes share."""

import multiprocessing

import pytest

from persia_cli.serving.http import shared
from persia_cli.serving.http.metrics import ServingMetrics
from persia_cli.serving.http.shared import ServerMemory


def count(memory: ServerMemory, part: int, feature: str) -> None:
    """Count in another process, as a worker does."""
    metrics = ServingMetrics(memory, part)
    metrics.missing.labels(feature).inc(3)
    metrics.logged.inc()
    metrics.count_answer("infer", 200, 0.004)


def test_metrics_are_sums_over_processes_that_have_ended_too() -> None:
    memory = ServerMemory(3)
    for part in (1, 2, 2):  # the last counts on where the one before it ended
        process = multiprocessing.get_context("spawn").Process(target=count, args=(memory, part, 'a"b\n'))
        process.start()
        process.join(60)
        assert process.exitcode == 0
    metrics = ServingMetrics(memory, 0)
    metrics.workers.set(2)
    text = metrics.text().decode()
    for line in (
        "# TYPE persia_missing_ids_total counter",
        r'persia_missing_ids_total{feature="a\"b\n"} 9.0',
        'persia_requests_total{route="infer",status="200"} 3.0',
        'persia_request_seconds_bucket{route="infer",le="0.003"} 0.0',
        'persia_request_seconds_bucket{route="infer",le="0.005"} 3.0',
        'persia_request_seconds_bucket{route="infer",le="+Inf"} 3.0',
        'persia_request_seconds_count{route="infer"} 3.0',
        "persia_workers 2.0",
    ):
        assert line in text.splitlines()
    assert metrics.log_counts() == (3, 0)
    assert metrics.inferences() == (0, 3, 0)
    memory.close()


def test_text_is_read_by_a_parser_of_prometheus() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    metrics = ServingMetrics()
    metrics.count_answer("infer", 503, 0.5)
    metrics.missing.labels('ü"').inc(2)
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in parser.text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }
    assert found["persia_missing_ids_total", 'ü"'] == 2
    assert found["persia_request_seconds_sum", "infer"] == 0.5
    assert found["persia_requests_total", "infer", "503"] == 1


def test_counters_without_space_disturb_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "COUNTERS", 20)
    memory = ServerMemory(1)
    for number in range(40):
        memory.counter(0, f"name {number}")[0] += 1
    sums = memory.sums()
    assert len(sums) == 20
    assert all(values[0] == 1 for values in sums.values())
    memory.close()
