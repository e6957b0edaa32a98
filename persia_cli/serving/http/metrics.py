"""The metrics of a server, for Prometheus."""

import threading
from bisect import bisect_left
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.serving.http.shared import ServerMemory

KIND = "text/plain; version=0.0.4; charset=utf-8"
LOGGED, NOT_LOGGED = "persia_logged_requests_total", "persia_not_logged_requests_total"
INFERENCES = ("infer", "predict")
"""Routes of requests for predictions."""
BOUNDS_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Counter:
    """A counter with certain values of its labels, in this process's part of the shared memory."""

    def __init__(self, values: NDArray[np.float64], lock: threading.Lock) -> None:
        self._values, self._lock = values, lock

    @property
    def value(self) -> float:
        """The value in this process."""
        return float(self._values[0])

    def inc(self, amount: float = 1.0) -> None:
        """Add to it."""
        with self._lock:
            self._values[0] += amount

    def set(self, value: float) -> None:
        """Set it, if it is a gauge."""
        self._values[0] = value

    def observe(self, seconds: float) -> None:
        """Count a value, if it is a histogram."""
        with self._lock:
            self._values[bisect_left(BOUNDS_S, seconds)] += 1
            self._values[-1] += seconds


class _Family:
    """A metric, in the format of Prometheus, and its counters by the values of its labels."""

    def __init__(
        self, memory: ServerMemory, part: int, lock: threading.Lock, name: str, text: str, kind: str,
        labels: tuple[str, ...],
    ) -> None:  # fmt: skip
        self.name, self.text, self.kind = name, text, kind
        self._memory, self._part, self._lock, self._labels = memory, part, lock, labels
        self._known: dict[tuple[object, ...], Counter] = {}

    def labels(self, *values: object) -> Counter:
        """Return the counter with these values of its labels."""
        counter = self._known.get(values)
        if counter is None:
            pairs = zip(self._labels, values, strict=True)
            name = ",".join(f'{label}="{str(value).translate(_ESCAPED)}"' for label, value in pairs)
            with self._lock:
                values_here = self._memory.counter(self._part, f"{self.name}{{{name}}}")
            counter = self._known[values] = Counter(values_here, self._lock)
        return counter


class ServingMetrics:
    """The metrics of a process, and the sums of all processes that share the memory."""

    def __init__(self, memory: ServerMemory | None = None, part: int = 0) -> None:
        self._memory = memory or ServerMemory(1)
        self._part, self._lock = part, threading.Lock()
        self._families: list[_Family] = []
        self.requests = self._add("persia_requests_total", "Requests by route and status", "route", "status")
        self.seconds = self._add(
            "persia_request_seconds", "From a request's arrival to its answer", "route", kind="histogram"
        )
        self.samples = self._add("persia_samples_total", "Samples predicted").labels()
        self.logged = self._add(LOGGED, "Requests in the request log").labels()
        self.not_logged = self._add(NOT_LOGGED, "Requests of the log's sample that are not in it", "reason")
        self.missing = self._add("persia_missing_ids_total", "Ids that had no row", "feature")
        self.failures = self._add("persia_worker_failures_total", "Workers that died, hung or did not start", "reason")
        self.workers = self._add("persia_workers", "Workers that answer requests", kind="gauge").labels()
        self.refused = self._add("persia_serving_refused_versions_total", "Published versions that are not served")
        self._by_answer: dict[tuple[str, int], tuple[Counter, Counter]] = {}

    def _add(self, name: str, text: str, *labels: str, kind: str = "counter") -> _Family:
        self._families.append(_Family(self._memory, self._part, self._lock, name, text, kind, labels))
        return self._families[-1]

    def count_answer(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        known = self._by_answer.get((route, status))
        if known is None:
            known = self._by_answer[route, status] = self.requests.labels(route, status), self.seconds.labels(route)
        known[0].inc()
        known[1].observe(seconds)

    def inferences(self) -> "InferenceCounts":
        """Return the counts of requests for predictions, of all processes."""
        prefixes = [f'persia_requests_total{{route="{route}",status="' for route in INFERENCES]
        answered = self._sum(*(f"{prefix}200" for prefix in prefixes))
        return InferenceCounts(self._sum("persia_samples_total"), answered, self._sum(*prefixes) - answered)

    def log_counts(self) -> "LogCounts":
        """Return the counts of the request log, of all processes."""
        return LogCounts(self._sum(LOGGED), self._sum(NOT_LOGGED))

    def _sum(self, *begins: str) -> int:
        """Return the sum of all counters whose names begin with one of these."""
        return round(sum(float(values[0]) for name, values in self._memory.sums().items() if name.startswith(begins)))

    def text(self) -> bytes:
        """Return the metrics of all processes in the text format of Prometheus."""
        sums = self._memory.sums()
        lines = []
        for family in self._families:
            lines += [f"# HELP {family.name} {family.text}", f"# TYPE {family.name} {family.kind}"]
            for name, values in sums.items():
                if name.startswith(f"{family.name}{{"):
                    lines += _histogram(name, values) if family.kind == "histogram" else [_line(name, values[0])]
        lag_s = self._memory.lag_s()
        if lag_s is not None:
            lines += _gauge("persia_serving_version", "Version that is served", self._memory.served_version())
            lines += _gauge("persia_serving_lag_seconds", "Time for which it has not been the current one", lag_s)
        return "\n".join([*lines, ""]).encode()


def _gauge(name: str, text: str, value: float) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} gauge", _line(name, value)]


def _line(name: str, value: float) -> str:
    return f"{name.removesuffix('{}')} {float(value)!r}"


def _histogram(name: str, values: NDArray[np.float64]) -> list[str]:
    metric, _, labels = name.partition("{")
    bounds = [*map(repr, BOUNDS_S), "+Inf"]
    counts = np.cumsum(values[:-1]).tolist()
    buckets = [
        _line(f'{metric}_bucket{{{labels[:-1]},le="{bound}"}}', number)
        for bound, number in zip(bounds, counts, strict=True)
    ]
    return [*buckets, _line(f"{metric}_count{{{labels}", counts[-1]), _line(f"{metric}_sum{{{labels}", values[-1])]


class InferenceCounts(NamedTuple):
    """The number of samples predicted, and of requests for predictions that were answered and refused."""

    samples: int
    answered: int
    refused: int


class LogCounts(NamedTuple):
    """The number of requests in the request log, and of those that should be in it and are not."""

    logged: int
    missed: int
