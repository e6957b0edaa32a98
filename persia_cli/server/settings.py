"""The settings of a server, which the parent hands to its workers."""

import msgspec

from persia_cli.serving.row_reader import Missing

PULSE, PULSE_S = b"\n", 1.0
"""What a worker writes to its standard output each so many seconds: it goes on to read, compute and answer."""
SILENCE_S = 30.0
"""Seconds without it after which a worker hangs, where a request has at most the usual samples and bytes."""
USUAL_SAMPLES, USUAL_BYTES = 10_000, 2**24


class ServerSettings(msgspec.Struct, frozen=True):
    """How a model is served. Secrets are named by their files."""

    folder: str
    """The exported model."""
    missing: Missing | None = None
    deadline_s: float = 1.0
    """Seconds within which the body of a request must have come, and its computation begun."""
    threads: int = 1
    """Computations that a worker runs at once."""
    most_requests: int = 64
    """Requests that a worker holds at once: read, waiting and computed."""
    most_bytes: int = USUAL_BYTES
    """Of a request's body."""
    most_samples: int = USUAL_SAMPLES
    """Of a request."""
    token_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    drain_s: int = 10
    """Seconds in which requests are finished after SIGTERM."""
    log: str | None = None
    """Folder of the request log."""
    sample: float = 1.0
    """Fraction of requests that are logged."""
    log_s: int = 5
    """Seconds after draining in which what is logged is written."""

    @property
    def silence_s(self) -> float:
        """Seconds without a pulse after which a worker hangs: many times what the largest request takes."""
        return SILENCE_S * max(1.0, self.most_samples / USUAL_SAMPLES, self.most_bytes / USUAL_BYTES)


class WorkerOrder(msgspec.Struct, frozen=True):
    """What a worker is told through its standard input."""

    settings: ServerSettings
    parent: int
    """Process id of the parent, with which the worker dies."""
    listener: int
    """Descriptor of the listening socket, which all workers share."""
    connections: int
    """Descriptor of the memory in which workers count their connections."""
    number: int
    """Of this worker, from 0 on."""
    workers: int
    model: str
    """Digest of the model's description when the server began: all workers serve the same one."""
    after: str | None = None
    """Why there is a worker in place of an earlier one, for figures."""


class WorkerNews(msgspec.Struct, frozen=True):
    """A line that a worker writes to its standard output: it is ready, or why it never will be."""

    failure: str | None = None
    is_users: bool = False
    """Whether the failure is one that the user can correct."""
