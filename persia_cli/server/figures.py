"""What a server counts, for Prometheus."""

import os

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""Names, in the environment of workers, the folder of the files in which they count, each in its own."""
KIND = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


class ServingFigures:
    """Counters of this process, or, where workers share a folder, of all of them together."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        own = None if SHARED in os.environ else self._registry
        if own is None:
            MultiProcessCollector(self._registry)  # type: ignore[no-untyped-call]
        self.requests = Counter("persia_requests", "Requests by route and status", ["route", "status"], registry=own)
        self.seconds = Histogram(
            "persia_request_seconds", "From a request's arrival to its answer", ["route"], buckets=BOUNDS_S,
            registry=own,
        )  # fmt: skip
        self.samples = Counter("persia_samples", "Samples predicted", registry=own)
        self.missing = Counter("persia_missing_ids", "Ids that had no row", ["feature"], registry=own)

    def text(self) -> bytes:
        """Return all figures as Prometheus reads them."""
        return generate_latest(self._registry)
