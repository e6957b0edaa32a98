"""What a server counts, for Prometheus."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""Names, in the environment of workers, the folder of the files in which they count, each in its own."""
KIND = "text/plain; version=0.0.4; charset=utf-8"
LOGGED, NOT_LOGGED = "persia_logged_requests", "persia_not_logged_requests"
BOUNDS_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


class _AllFiles(MultiProcessCollector):
    """Reads the files of all workers; one that a worker has just made, or has died in making, is empty."""

    def collect(self) -> Any:
        files = [str(path) for path in Path(self._path).glob("*.db") if path.stat().st_size]
        return self.merge(files, accumulate=True)  # type: ignore[no-untyped-call]


class ServingFigures:
    """Counters of this process, or, where workers share a folder, of all of them together."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        own = None if SHARED in os.environ else self._registry
        if own is None:
            _AllFiles(self._registry)  # type: ignore[no-untyped-call]
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
        self.restarts = Counter(
            "persia_worker_restarts", "Workers in place of earlier ones, by how those ended", ["reason"], registry=own
        )
        self.missing = Counter("persia_missing_ids", "Ids that had no row", ["feature"], registry=own)
        self._by_answer: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def count_answer(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        known = self._by_answer.get((route, status))
        if known is None:
            known = self._by_answer[route, status] = self.requests.labels(route, status), self.seconds.labels(route)
        known[0].inc()
        known[1].observe(seconds)

    def text(self) -> bytes:
        """Return all figures as Prometheus reads them."""
        return generate_latest(self._registry)


class LogFigures(NamedTuple):
    """How many requests are in the request log, and how many should be and are not."""

    logged: int
    missed: int


def log_figures(folder: str) -> LogFigures:
    """Return what all workers have counted in the folder that they share, also those that are dead."""
    registry = CollectorRegistry()
    _AllFiles(registry, folder)  # type: ignore[no-untyped-call]
    found = {LOGGED: 0.0, NOT_LOGGED: 0.0}
    for metric in registry.collect():
        if metric.name in found:
            found[metric.name] += sum(sample.value for sample in metric.samples)
    return LogFigures(round(found[LOGGED]), round(found[NOT_LOGGED]))
