"""The counters of a server, for Prometheus."""

import os
from collections import Counter as Counts
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from persia_cli.serving.http.settings import SHARED

KIND = "text/plain; version=0.0.4; charset=utf-8"
LOGGED, NOT_LOGGED = "persia_logged_requests", "persia_not_logged_requests"
INFERENCES = ("infer", "predict")
"""Routes of requests for predictions."""
BOUNDS_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


class _SharedCounts(Collector):
    """The counters of all workers, including those that have ended: each has its own files in the folder."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def collect(self) -> Any:
        """Return the sums. A new file of a worker is empty."""
        files = [str(path) for path in self._folder.glob("*.db") if path.stat().st_size]
        return MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]


class ServingMetrics:
    """Counters of this process, or, if workers share a folder, of all of them together."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        shared = os.environ.get(SHARED)
        own = self._registry if shared is None else None
        if shared is not None:
            self._registry.register(_SharedCounts(shared))
        self.requests = Counter("persia_requests", "Requests by route and status", ["route", "status"], registry=own)
        self.seconds = Histogram(
            "persia_request_seconds", "From a request's arrival to its answer", ["route"], buckets=BOUNDS_S,
            registry=own,
        )  # fmt: skip
        self.samples = Counter("persia_samples", "Samples predicted", registry=own)
        self.logged = Counter(LOGGED, "Requests in the request log", registry=own)
        self.not_logged = Counter(
            NOT_LOGGED, "Requests of the log's sample that are not in it", ["reason"], registry=own
        )
        self.missing = Counter("persia_missing_ids", "Ids that had no row", ["feature"], registry=own)
        self._by_answer: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def count_answer(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        known = self._by_answer.get((route, status))
        if known is None:
            known = self._by_answer[route, status] = self.requests.labels(route, status), self.seconds.labels(route)
        known[0].inc()
        known[1].observe(seconds)

    def inferences(self) -> "InferenceCounts":
        """Return the number of predicted samples, of requests for them that were answered, and of refused ones."""
        found: Counts[str] = Counts()
        for sample in chain.from_iterable(metric.samples for metric in self._registry.collect()):
            if sample.name == "persia_samples_total":
                found["samples"] += round(sample.value)
            elif sample.name == "persia_requests_total" and sample.labels["route"] in INFERENCES:
                found["answered" if sample.labels["status"] == "200" else "refused"] += round(sample.value)
        return InferenceCounts(found["samples"], found["answered"], found["refused"])

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)


class InferenceCounts(NamedTuple):
    """The number of samples predicted, and of requests for predictions that were answered and refused."""

    samples: int
    answered: int
    refused: int


class LogCounts(NamedTuple):
    """The number of requests in the request log, and of those that should be in it and are not."""

    logged: int
    missed: int


def log_counts(folder: str) -> LogCounts:
    """Return the sums of all workers that share the folder, including those that have died."""
    found = {LOGGED: 0.0, NOT_LOGGED: 0.0}
    for metric in _SharedCounts(folder).collect():
        if metric.name in found:
            found[metric.name] += sum(sample.value for sample in metric.samples)
    return LogCounts(round(found[LOGGED]), round(found[NOT_LOGGED]))
