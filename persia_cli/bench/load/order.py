"""The order to a process that loads a server, and its report at the end."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

LEAST_FOR_P999 = 1000
"""Number of answers from which the 99.9th percentile has a meaning."""


class SentRequest(msgspec.Struct, frozen=True):
    """A request as it is sent, and the only right body of an answer."""

    wire: bytes
    answer: bytes


class LoadOrder(msgspec.Struct, frozen=True):
    """The kind of load."""

    host: str
    port: int
    requests: list[SentRequest]
    """They are sent in turn, over and over."""
    connections: int
    warm_up_s: float
    """Seconds before those that count."""
    seconds: float
    """Predictions that come within these seconds count, and latencies and refusals of requests due within them."""
    rate: float | None
    """Requests per second, which arrive at random moments; None: each connection sends as soon as it has its answer."""
    seed: int
    """Of the random moments."""
    parent: int
    """Process id of the benchmark."""
    patience_s: float = 20.0
    """Seconds after which a load is aborted if the server does not answer."""


class LoadReport(msgspec.Struct, frozen=True):
    """The result of a load."""

    failure: str | None = None
    """Reason if the load was aborted."""
    answered: int = 0
    """Answers with predictions that came in time."""
    busy: int = 0
    """Requests that were answered 503, also late."""
    errors: int = 0
    """Requests that were answered by another status, also late, or not at all."""
    first_error: str = ""
    latencies: bytes = b""
    """Of requests that got predictions, also late: float64 seconds from the moment when each was due."""
    cpu_s: float = 0.0
    """CPU seconds of the process that sent them."""
    wall_s: float = 0.0
    """Seconds in which it used them."""

    def seconds_each(self) -> NDArray[np.float64]:
        """Return the latencies."""
        return np.frombuffer(self.latencies, np.float64)


def percentiles_ms(latencies: Sequence[float] | NDArray[np.float64]) -> dict[str, float]:
    """Return the times in ms within which half, 99 % and 99.9 % of the answers came; the last one if they suffice.

    Each is the time of an answer, by the nearest rank.
    """
    if not len(latencies):
        return {}
    parts = {"p50": 0.5, "p99": 0.99} | ({"p999": 0.999} if len(latencies) >= LEAST_FOR_P999 else {})
    found = np.quantile(latencies, list(parts.values()), method="inverted_cdf") * 1e3
    return dict(zip(parts, found.tolist(), strict=True))
